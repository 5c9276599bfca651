"""Operators that read between the elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.conformance.random_onnx.growth import Growth, RejectedError
from tests.conformance.random_onnx.operators.spatial import data
from tests.conformance.random_onnx.registry import writes


@writes("Upsample")
def upsample(g: Growth, op: str) -> None:
    """Scales by an attribute before version 9."""
    x = data(g, g.types(op), g.integer(1, 3), 2)
    scales = [1.0, 1.0, *(g.choose((1.0, 1.5, 2.0, 3.0)) for _ in range(2))]
    mode = g.choose((None, "nearest", "linear"))
    if mode == "linear" and not x.dtype.startswith("float"):
        raise RejectedError("rounding of integers")
    if g.version(op) < 9:
        g.node(op, [x], steps=mode != "linear" and not x.exact, mode=mode, scales=scales)
    else:
        g.node(op, [x, g.constant(np.array(scales, np.float32), shared=False)], mode=mode)


@writes("Resize")
def resize(g: Growth, op: str) -> None:
    """All modes, ways to find the place that is read, scales or sizes, of some axes."""
    version = g.version(op)
    rank = g.choose((1, 2, 2, 2, 3))
    x = data(g, g.types(op), g.integer(1, 3), rank)
    mode = g.choose((None, "nearest", "linear", "cubic" if version >= 11 and rank == 2 else "linear"))
    if mode in ("linear", "cubic") and not x.dtype.startswith("float"):
        raise RejectedError("rounding of integers")
    scales = [1.0, 1.0, *(g.choose((0.5, 1.0, 1.5, 2.0, 3.0)) for _ in range(rank))]
    if version < 11:
        g.node(op, [x, g.constant(np.array(scales, np.float32), shared=False)], mode=mode)
        return
    ways = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
    if version >= 19:
        ways.append("half_pixel_symmetric")
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": g.choose((None, *ways))}
    if mode in (None, "nearest"):
        attributes["nearest_mode"] = g.choose((None, "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
    if mode == "cubic":
        attributes["cubic_coeff_a"] = g.choose((None, -0.5))
        attributes["exclude_outside"] = g.choose((None, 0, 1))
    axes = list(range(x.rank))
    if version >= 18:
        if mode in ("linear", "cubic") and g.chance(0.3):
            attributes["antialias"] = 1
        if g.chance(0.3):
            axes = list(range(2, x.rank))
            attributes["axes"] = axes
    if attributes["coordinate_transformation_mode"] == "align_corners" and x.array.size:
        scales = [float(int(scale)) or 1.0 for scale in scales]  # of extents that are no fractions
    roi = g.constant(np.zeros(0, np.float32), shared=False) if version < 13 else None
    by_scales = [scales[axis] for axis in axes]
    if g.chance(0.5):
        g.node(op, [x, roi, g.constant(np.array(by_scales, np.float32), shared=False)], **attributes)
        return
    sizes = [max(1, int(x.shape[axis] * scales[axis])) for axis in axes]
    if version >= 18 and g.chance(0.3):
        attributes["keep_aspect_ratio_policy"] = g.choose(("stretch", "not_larger", "not_smaller"))
    empty = g.constant(np.zeros(0, np.float32), shared=False) if version < 13 else None
    g.node(op, [x, roi, empty, g.parameter(*sizes)], **attributes)


@writes("GridSample")
def grid_sample(g: Growth, op: str) -> None:
    """Modes have had other names before version 20."""
    x = data(g, ["float32", "float64"], g.integer(1, 2), 2)
    if g.version(op) < 20:
        mode = g.choose((None, "bilinear", "nearest", "bicubic"))
    else:
        mode = g.choose((None, "linear", "nearest", "cubic"))
    shape = (x.shape[0], g.integer(1, 4), g.integer(1, 4), 2)
    # Odd fractions: no place is half way between two elements, where rounding decides.
    grid = (g.rng.integers(-14, 15, shape) / 10.3 + 0.0137).astype(np.float32)
    padding = g.choose((None, "zeros", "border", "reflection"))
    g.node(
        op,
        [x, g.fresh(grid.astype(x.dtype))],
        mode=mode,
        padding_mode=padding,
        align_corners=g.choose((None, 0, 1)),
    )


@writes("AffineGrid")
def affine_grid(g: Growth, op: str) -> None:
    """In two and three dimensions."""
    rank = g.integer(2, 3)
    n = g.integer(1, 2)
    theta = g.value(["float32", "float64"], shape=(n, rank, rank + 1))
    size = g.parameter(n, g.integer(1, 3), *(g.integer(2, 4) for _ in range(rank)))  # corners of 1 are no corners
    g.node(op, [theta, size], align_corners=g.choose((None, 0, 1)))


@writes("RoiAlign")
def roi_align(g: Growth, op: str) -> None:
    """Average or maximum; half pixels by default from version 16 on."""
    x = data(g, ["float32", "float64"], g.integer(1, 2), 2, least=3)
    if min(x.shape[2:]) < 3:
        raise RejectedError(op)
    count = g.integer(1, 3)
    corner = g.rng.integers(0, 3, (count, 2)) / 1.3
    rois = np.concatenate([corner, corner + g.rng.integers(1, 5, (count, 2)) / 1.1], axis=1).astype(x.dtype)
    batch = g.rng.integers(0, x.shape[0], count).astype(np.int64)
    attributes: dict[str, Any] = {
        "mode": g.choose((None, "avg")),  # onnxruntime's maximum is another
        "output_height": g.choose((None, 2, 3)),
        "output_width": g.choose((None, 1, 2)),
        "sampling_ratio": g.choose((None, 1, 2, 2, 3)),
        "spatial_scale": g.choose((None, 0.5, 1.0)),
    }
    if g.version(op) >= 16:
        attributes["coordinate_transformation_mode"] = g.choose((None, "half_pixel", "output_half_pixel"))
    g.node(op, [x, g.fresh(rois), g.fresh(batch, constant=0.5)], **attributes)


@writes("MaxRoiPool")
def max_roi_pool(g: Growth, op: str) -> None:
    """Regions by whole numbers."""
    x = data(g, ["float32"], g.integer(1, 2), 2, least=3)
    count = g.integer(1, 3)
    corner = g.rng.integers(0, 2, (count, 2))
    batch = g.rng.integers(0, x.shape[0], (count, 1))
    rois = np.concatenate([batch, corner, corner + g.rng.integers(0, 2, (count, 2))], axis=1).astype(np.float32)
    g.node(op, [x, g.fresh(rois)], pooled_shape=[g.integer(1, 2), g.integer(1, 2)])
