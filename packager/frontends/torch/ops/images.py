"""Converters of torch's resizing of images, and of sampling by grids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from tvm import relax

from packager.frontends.resizing import ResizedAxis, resize_axes
from packager.frontends.torch.ops.program import RESIZING, argument

_R = relax.op


def _resize(method: str) -> Callable[[Any, Any], Any]:
    """Return a converter of ``upsample_*2d.vec``: TVM's operator, which other passes know, where it is exact."""

    def convert(importer: Any, node: Any) -> Any:
        nearest = method == "nearest_neighbor"
        corners = not nearest and bool(argument(node, 2, "align_corners", False))
        factors = argument(node, 2 if nearest else 3, "scale_factors")
        source, wanted = importer.shape(node.args[0])[2:], importer.shape(node)[2:]
        for extent, size, factor in zip(source, wanted, factors or (), strict=False):
            # torch would compute coordinates by this factor, which differs from the ratio of the sizes.
            known = isinstance(extent, int) and isinstance(size, int)
            if not corners and not known:
                raise ValueError(f"resizing {extent} by {factor} to {size} is not supported")
            if not corners and extent * factor != size:
                return _resize_by_tables(importer, node)
        smooth = "align_corners" if corners else "half_pixel"
        return _R.image.resize2d(
            importer.tensor(node.args[0]),
            relax.ShapeExpr(wanted),
            layout="NCHW",
            method=method,
            coordinate_transformation_mode="asymmetric" if nearest else smooth,
            rounding_method="floor" if nearest else "round",
        )

    return convert


def _resize_by_tables(importer: Any, node: Any) -> Any:
    """Resize one axis after the other: torch itself says by which weights."""
    source, wanted = importer.shape(node.args[0])[2:], importer.shape(node)[2:]
    if not all(isinstance(extent, int) for extent in (*source, *wanted)):
        raise ValueError(f"resizing {source} to {wanted} is not supported for symbolic extents")
    smooth = "nearest" not in node.target.__name__
    if smooth and not node.args[0].meta["val"].is_floating_point():
        raise ValueError("interpolation of integers is not supported")
    axes = [
        _resized_axis(node, axis, extent, size) for axis, (extent, size) in enumerate(zip(source, wanted, strict=True))
    ]
    changed = [axis for axis in axes if not _is_identity(axis, source[axis.axis - 2])]
    return resize_axes(importer.block_builder, importer.tensor(node.args[0]), changed)


def _resized_axis(node: Any, axis: int, extent: int, size: int) -> ResizedAxis:
    """Return the table of a spatial axis: the operator resizes an image along it that has a one in each channel.

    Other axes have two elements: torch's antialiasing is wrong along the first axis of images that are one wide.
    """
    names = [each.name for each in node.target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    given.pop(names[0])
    rank = node.meta["val"].ndim - 2
    others = tuple(place for place in range(rank) if place != axis)
    if given.get("output_size") is not None:
        given["output_size"] = [2 if place in others else size for place in range(rank)]
    if given.get("scale_factors") is not None:
        given["scale_factors"] = [1.0 if place in others else f for place, f in enumerate(given["scale_factors"])]
    scales = [name for name in names if name.startswith("scales")]
    given |= {name: None if place in others else given.get(name) for place, name in enumerate(scales)}
    double = node.meta["val"].dtype is torch.float64
    ones = torch.eye(extent, dtype=torch.float64 if double else torch.float32)
    ones = ones.reshape(1, extent, *(1 if place in others else extent for place in range(rank)))
    resized = node.target(ones.expand(1, -1, *(2 if place in others else -1 for place in range(rank))), **given)
    weights = resized[(0, slice(None), *(0 if place in others else slice(None) for place in range(rank)))].numpy().T
    first, last = (weights != 0).argmax(1), extent - 1 - (weights[:, ::-1] != 0).argmax(1)
    places = first[:, None] + np.arange((last - first).max() + 1)
    indices = np.minimum(places, extent - 1)
    taps = np.where(places < extent, np.take_along_axis(weights, indices, 1), 0)
    return ResizedAxis(axis + 2, indices.astype(np.int32), taps, np.zeros(size, bool))


def _is_identity(axis: ResizedAxis, extent: int) -> bool:
    same = axis.indices.shape == (extent, 1) and (axis.indices[:, 0] == np.arange(extent)).all()
    return bool(same and (axis.weights == 1).all())


def _grid_sampler(importer: Any, node: Any) -> Any:
    """Convert ``grid_sampler_2d`` or ``_3d``: TVM's grid has the coordinates first, torch's last."""
    data, grid, mode, padding, corners = node.args
    rank = len(importer.shape(data))
    return _R.image.grid_sample(
        importer.tensor(data),
        _R.permute_dims(importer.tensor(grid), [0, rank - 1, *range(1, rank - 1)]),
        method=("bilinear", "nearest", "bicubic")[mode],
        layout="NCHW" if rank == 4 else "NCDHW",
        padding_mode=("zeros", "border", "reflection")[padding],
        align_corners=corners,
    )


IMAGES: Mapping[str, Callable[[Any, Any], Any]] = {
    "upsample_bilinear2d.vec": _resize("linear"),
    "upsample_nearest2d.vec": _resize("nearest_neighbor"),
    **{f"{operator.__name__}": _resize_by_tables for operator in RESIZING},
    **{f"_upsample_{kind}2d_aa.default": _resize_by_tables for kind in ("bilinear", "bicubic")},
    "grid_sampler_2d.default": _grid_sampler,
    "grid_sampler_3d.default": _grid_sampler,
}
