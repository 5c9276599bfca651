"""Converters of Resize and Upsample by per-axis tables of indices and weights, for uses that TVM's importer lacks or
computes differently.

ONNX operators Resize (versions 10 to 19) and Upsample (7, 9): every mode is separable into weighted sums along each
axis, whose indices and weights depend on extents, scales and the region of interest only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm_ffi import structural_equal

from packager.bundle.arrays import Array
from packager.frontends.onnx.graph.stated.shapes import SIZES
from packager.frontends.onnx.ops.nn.resize_symbolic import resize_by_operands, resize_symbolic
from packager.frontends.onnx.ops.operands import (
    Convert,
    Converter,
    constant,
    extents,
    known,
    opset,
    optional,
    tensor_constant,
    text,
)
from packager.frontends.onnx.ops.shapes.arithmetic import is_symbolic
from packager.frontends.onnx.ops.shapes.rules import objects
from packager.frontends.resizing import ResizedAxis, resize_axes

# Mode, coordinates and rounding that TVM computes as the standard says, if extents are whole.
PLAIN = {
    *(("nearest", *how) for how in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"))),
    *(("linear", how, "round_prefer_floor") for how in ("half_pixel", "pytorch_half_pixel", "align_corners")),
    *(("linear", "asymmetric", rounding) for rounding in ("floor", "round_prefer_floor")),
}


def _resize(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    given, own = inputs, attributes
    if opset(attributes) < 11:
        inputs = [inputs[0], None, inputs[1]]
        attributes = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor", **attributes}
    data = inputs[0]
    if SIZES in attributes and not (_is_known(inputs, 1, attributes) and _is_known(inputs, 2, attributes)):
        return resize_by_operands(builder, inputs, attributes)
    if _is_symbolic(inputs, attributes):
        return resize_symbolic(builder, inputs, attributes)
    shape = extents(data)
    axes = [int(axis) % len(shape) for axis in attributes.get("axes", range(len(shape)))]
    sizes, scales = _geometry(shape, axes, inputs, attributes)
    if _is_plain(shape, sizes, scales, attributes):
        by_scales = [data, None, tensor_constant(np.array(scales, np.float32))]  # TVM reads no symbolic sizes
        return convert("Resize", by_scales if is_symbolic(optional(inputs, 3)) else list(given), own)
    regions = [(0.0, 1.0)] * len(shape)
    if text(attributes, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        region = known(inputs[1], attributes, "the region of interest of Resize").astype(np.float64)
        for number, axis in enumerate(axes):
            regions[axis] = (float(region[number]), float(region[len(axes) + number]))
    changes = [
        _table(axis, shape[axis], sizes[axis], scales[axis], regions[axis], attributes)
        for axis in axes
        if isinstance(shape[axis], int)
        and (sizes[axis] != shape[axis] or scales[axis] != 1.0 or regions[axis] != (0.0, 1.0))
    ]
    return resize_axes(builder, data, changes, float(attributes.get("extrapolation_value", 0.0)))


def _is_known(inputs: Sequence[Any], place: int, attributes: Mapping[str, Any]) -> bool:
    given = optional(inputs, place)
    return given is None or constant(given, attributes) is not None


def _is_symbolic(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> bool:
    """Tell whether a resized axis has a symbolic extent, before or after."""
    shape = extents(inputs[0])
    axes = [int(axis) % len(shape) for axis in attributes.get("axes", range(len(shape)))]
    scales = constant(inputs[2], attributes) if optional(inputs, 2) is not None else None
    if scales is not None and scales.size:
        changing = [axis for axis, scale in zip(axes, scales.tolist(), strict=True) if scale != 1.0]
        return not all(isinstance(shape[axis], int) for axis in changing)
    sizes = _wanted(inputs, attributes)
    if sizes is None:
        return False
    pairs = [(shape[axis], size) for axis, size in zip(axes, sizes, strict=True)]
    return not all(_equal(*pair) or all(isinstance(e, int) for e in pair) for pair in pairs)


def _is_plain(
    shape: Sequence[Any], sizes: Sequence[Any], scales: Sequence[float], attributes: Mapping[str, Any]
) -> bool:
    """Tell whether TVM's operator, which other passes know, computes the same: images of a symbolic batch, by scales
    that give whole extents."""
    if all(isinstance(extent, int) for extent in shape) or not all(isinstance(extent, int) for extent in shape[2:]):
        return False
    defaults = {"mode": "nearest", "coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_floor"}
    how = tuple(text(attributes, *default) for default in defaults.items())
    spatial = zip(sizes[2:], shape[2:], scales[2:], strict=True)
    whole = all(size == extent * scale != 1 for size, extent, scale in spatial)
    odd = any(attributes.get(name) for name in ("antialias", "exclude_outside", "axes"))
    return len(shape) == 4 and whole and how in PLAIN and not odd


def _equal(old: Any, new: Any) -> bool:
    return isinstance(old, int) == isinstance(new, int) and bool(structural_equal(old, new))


def _wanted(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> list[Any] | None:
    """Return the sizes, as integers or expressions; None if there are none that are known."""
    given = optional(inputs, 3)
    if given is not None and is_symbolic(given):
        return list(objects(given.values))
    value = None if given is None else constant(given, attributes)
    return None if value is None else [int(size) for size in value.reshape(-1)]


def _upsample(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    scales = np.asarray(attributes["scales"], np.float32) if "scales" in attributes else None
    if scales is None:
        scales = constant(inputs[1], attributes)
    given = {k: v for k, v in attributes.items() if k != "scales"}
    given |= {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
    given["tvm_custom"] = {**attributes["tvm_custom"], "opset": 13}
    factors = inputs[1] if scales is None else tensor_constant(scales)
    return _resize(builder, [inputs[0], None, factors, None], given, convert)


def _geometry(
    shape: list[Any], axes: list[int], inputs: Sequence[Any], attributes: Mapping[str, Any]
) -> tuple[list[Any], list[float]]:
    """Return the extents of the output and the scales of all axes; those with symbolic extents stay as they are."""
    sizes, scales = list(shape), [1.0] * len(shape)
    given = None if optional(inputs, 2) is None else constant(inputs[2], attributes)
    if given is not None and given.size:
        for axis, scale in zip(axes, given.tolist(), strict=True):
            scales[axis] = scale
            sizes[axis] = math.floor(shape[axis] * scale) if isinstance(shape[axis], int) else shape[axis]
        return sizes, scales
    wanted = _wanted(inputs, attributes)
    if wanted is None:
        raise ValueError("scales and sizes of Resize are computed from data: freeze them with --freeze")
    ratios = [
        size / shape[axis] if isinstance(shape[axis], int) else 1.0 for axis, size in zip(axes, wanted, strict=True)
    ]
    policy = text(attributes, "keep_aspect_ratio_policy", "stretch")
    chosen = (min if policy == "not_larger" else max)(ratios)
    if policy != "stretch" and chosen != 1.0 and not all(isinstance(shape[axis], int) for axis in axes):
        raise ValueError("Resize that keeps the aspect ratio needs extents that are numbers: fix the dims with --dim")
    for number, axis in enumerate(axes):
        scales[axis], sizes[axis] = ratios[number], wanted[number]
        if policy != "stretch" and isinstance(shape[axis], int):
            scales[axis] = chosen
            sizes[axis] = int(chosen * shape[axis] + 0.5)
    return sizes, scales


def _coordinates(mode: str, extent: int, size: int, scale: float, region: tuple[float, float]) -> Array:
    """Return the input coordinate of each output."""
    x = np.arange(size, dtype=np.float64)
    length = scale * extent
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and length != 1):
        return (x + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return np.full(size, -0.5)
    if mode == "half_pixel_symmetric":
        return extent / 2 * (1 - size / length) + (x + 0.5) / scale - 0.5
    if mode == "asymmetric":
        return x / scale
    if mode == "align_corners":
        return x * 0 if length == 1 else x * (extent - 1) / (length - 1)
    if mode == "tf_crop_and_resize":
        start, end = region
        if length == 1:
            return np.full(size, (start + (end - start) / 2) * (extent - 1))
        return (start + x * (end - start) / (length - 1)) * (extent - 1)
    raise ValueError(f"Resize has no coordinate_transformation_mode {mode!r}")


def _cubic(distance: Array, a: float) -> Array:
    """Source: Keys 1981, "Cubic convolution interpolation for digital image processing", equation 4."""
    x = np.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * a * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


_NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _table(
    axis: int, extent: int, size: int, scale: float, region: tuple[float, float], attributes: Mapping[str, Any]
) -> ResizedAxis:
    mode = text(attributes, "mode", "nearest")
    coordinates = text(attributes, "coordinate_transformation_mode", "half_pixel")
    x = _coordinates(coordinates, extent, size, scale, region)
    outside = (x < 0) | (x > extent - 1) if coordinates == "tf_crop_and_resize" else np.zeros(size, bool)
    if mode == "nearest":
        nearest = _NEAREST[text(attributes, "nearest_mode", "round_prefer_floor")](x)
        indices = np.clip(nearest, 0, extent - 1).astype(np.int32)[:, None]
        return ResizedAxis(axis, indices, np.ones((size, 1)), outside)
    shrink = min(scale, 1.0) if attributes.get("antialias", 0) else 1.0
    reach = 2 if mode == "cubic" else 1
    if mode not in ("linear", "cubic"):
        raise ValueError(f"Resize has no mode {mode!r}")
    first = math.floor(-reach / shrink) + 1
    # The element before a coordinate, and the fraction in (0, 1]; an integer coordinate belongs to the left interval.
    base = np.ceil(x).astype(np.int64) - 1
    offsets = np.arange(first, 2 - first if attributes.get("antialias", 0) else reach + 1)
    positions = base[:, None] + offsets[None, :]
    distance = (positions - x[:, None]) * shrink
    if mode == "cubic":
        weights = _cubic(distance, float(attributes.get("cubic_coeff_a", -0.75)))
    else:
        weights = np.clip(1 - np.abs(distance), 0, None)
    if attributes.get("exclude_outside", 0):
        weights = np.where((positions < 0) | (positions >= extent), 0.0, weights)
    if attributes.get("exclude_outside", 0) or attributes.get("antialias", 0):
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1.0, total)
    return ResizedAxis(axis, np.clip(positions, 0, extent - 1).astype(np.int32), weights, outside)


CONVERTERS: Mapping[str, Converter] = {"Resize": _resize, "Upsample": _upsample}
