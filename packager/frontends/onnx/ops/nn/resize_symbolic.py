"""Converter of Resize with symbolic extents: coordinates are computed at run time.

ONNX operator Resize (versions 11 to 19): plain ``nearest`` and ``linear`` in one loop nest, all else by
``resize_tables``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from tvm import te, tirx

from packager.frontends.onnx.graph.stated.shapes import SIZES
from packager.frontends.onnx.ops.nn.resize_tables import Axis, Coordinate, resize_by_tables
from packager.frontends.onnx.ops.operands import constant, dtype_of, extents, optional, text
from packager.frontends.onnx.ops.operands import known as constant_of
from packager.frontends.onnx.ops.shapes.arithmetic import known

# The largest denominator of a scale: sizes are computed from extents with integers.
MAX_DENOMINATOR = 1024


@dataclass(frozen=True)
class _Change:
    """A resized axis: extents before and after, and the model's scale; None if it gives sizes. ``region`` is the part
    of the input that is resized, from 0 to 1: numbers or expressions."""

    axis: int
    extent: Any
    size: Any
    scale: Fraction | None
    region: tuple[Any, Any] = (0.0, 1.0)
    ratio: Any | None = None  # the scale of a run, as float64


def resize_symbolic(builder: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """Return the resized data. Raises ValueError for uses that require static extents."""
    data = inputs[0]
    changes = _changes(extents(data), inputs, attributes)
    mode = text(attributes, "mode", "nearest")
    floats = dtype_of(data).startswith(("float", "bfloat"))
    plain = mode == "nearest" or (mode == "linear" and floats)
    if mode not in ("nearest", "linear", "cubic"):
        raise ValueError(f"Resize has no mode {mode!r}")
    if not plain or _crops(attributes) or any(attributes.get(name, 0) for name in ("antialias", "exclude_outside")):
        return _by_tables(builder, data, changes, attributes)
    work = "float64" if dtype_of(data) in ("float64", "int64", "int32") else "float32"

    def nearest(x: Any, *sizes: Any) -> Any:
        inside = _in_function(changes, x, sizes)

        def element(*output: Any) -> Any:
            source = list(output)
            for change in inside:
                source[change.axis] = _nearest(change, output[change.axis], attributes)
            return x(*source)

        return te.compute(_resized(x, inside), element, name="resize")

    def linear(x: Any, *sizes: Any) -> Any:
        inside = _in_function(changes, x, sizes)

        def element(*output: Any) -> Any:
            taps = [_taps(change, output[change.axis], attributes) for change in inside]
            total = tirx.const(0.0, work)
            for choice in itertools.product(*taps):
                source, weight = list(output), tirx.const(1.0, work)
                for change, (index, factor) in zip(inside, choice, strict=True):
                    source[change.axis] = index
                    weight = weight * factor.astype(work)
                total = total + x(*source).astype(work) * weight
            return total.astype(dtype_of(data))

        return te.compute(_resized(x, inside), element, name="resize")

    sizes = [_expression(change.size) for change in changes]
    compute = nearest if mode == "nearest" else linear
    return builder.call_te(compute, data, *sizes, primfunc_name_hint="resize")


def _by_tables(builder: Any, data: Any, changes: Sequence[_Change], attributes: Mapping[str, Any]) -> Any:
    def coordinate(change: _Change) -> Coordinate:
        return lambda i, old, new: _coordinate(replace(change, extent=old, size=new), i, attributes)

    axes = [Axis(c.axis, c.extent, c.size, None if c.scale is None else float(c.scale)) for c in changes]
    return resize_by_tables(builder, data, axes, [coordinate(change) for change in changes], attributes)


def resize_by_operands(builder: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """Return the data resized to stated sizes by scales, or from a region, that each run gives."""
    data, region, scales = (optional(inputs, place) for place in range(3))
    region = region if _crops(attributes) else None
    shape = extents(data)
    axes = [int(axis) % len(shape) for axis in attributes.get("axes", range(len(shape)))]
    sizes = [int(size) for size in attributes[SIZES]]
    if not all(isinstance(extent, int) for extent in shape):
        raise ValueError("Resize of symbolic extents by what data give: freeze it with --freeze")
    by_scale = scales is not None and 0 not in extents(scales)
    operands = tuple(x for x in (scales if by_scale else None, region) if x is not None)
    made, coordinates = [], []
    for number, axis in enumerate(axes):

        def changed(old: Any, new: Any, *given: Any, axis: int = axis, number: int = number) -> _Change:
            wide = [lambda at, tensor=tensor: tensor(tirx.const(at, "int64")).astype("float64") for tensor in given]
            ratio = wide[0](number) if by_scale else None
            part = (0.0, 1.0) if region is None else (wide[-1](number), wide[-1](len(axes) + number))
            return _Change(axis, old, new, None, part, ratio)

        def coordinate(i: Any, old: Any, new: Any, *given: Any, changed: Any = changed) -> Any:
            return _coordinate(changed(old, new, *given), i, attributes)

        def scale(*given: Any, changed: Any = changed) -> Any:
            return changed(0, 0, *given).ratio

        least = sizes[axis] / shape[axis]  # for a size is the extent times the scale, rounded down
        made.append(Axis(axis, shape[axis], sizes[axis], least, operands, scale if by_scale else None))
        coordinates.append(coordinate)
    return resize_by_tables(builder, data, made, coordinates, attributes)


def _crops(attributes: Mapping[str, Any]) -> bool:
    return text(attributes, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"


def _in_function(changes: Sequence[_Change], x: Any, sizes: Sequence[Any]) -> list[_Change]:
    """Return the changes in terms of the shape variables of a PrimFunc, which differ from the model's."""
    return [replace(change, extent=x.shape[change.axis], size=s) for change, s in zip(changes, sizes, strict=True)]


def _resized(x: Any, changes: Sequence[_Change]) -> list[Any]:
    sizes = list(x.shape)
    for change in changes:
        sizes[change.axis] = change.size
    return sizes


def _changes(shape: Sequence[Any], inputs: Sequence[Any], attributes: Mapping[str, Any]) -> list[_Change]:
    axes = [int(axis) % len(shape) for axis in attributes.get("axes", range(len(shape)))]
    regions = _regions(axes, inputs, attributes)
    given = None if optional(inputs, 2) is None else constant(inputs[2], attributes)
    if given is not None and given.size:
        changes = []
        for axis, number in zip(axes, given.tolist(), strict=True):
            scale = Fraction(number).limit_denominator(MAX_DENOMINATOR)
            if abs(float(scale) - number) > 1e-6 * number:
                raise ValueError(f"Resize by {number} needs extents that are numbers: fix the dims with --dim")
            if scale != 1 or regions[axis] != (0.0, 1.0):
                size = _floor(shape[axis] * scale.numerator, scale)
                changes.append(_Change(axis, shape[axis], size, scale, regions[axis]))
        return changes
    wanted = None if optional(inputs, 3) is None else known(inputs[3], attributes)
    if wanted is None:
        raise ValueError("scales and sizes of Resize are computed from data: freeze them with --freeze")
    if text(attributes, "keep_aspect_ratio_policy", "stretch") != "stretch":
        raise ValueError("Resize that keeps the aspect ratio needs extents that are numbers: fix the dims with --dim")
    analyzer = attributes["tvm_custom"]["analyzer"]
    pairs = [(axis, shape[axis], size) for axis, size in zip(axes, wanted.reshape(-1), strict=True)]
    return [
        _Change(axis, extent, size, None, regions[axis])
        for axis, extent, size in pairs
        if regions[axis] != (0.0, 1.0) or not analyzer.can_prove_equal(_expression(extent), _expression(size))
    ]


def _regions(
    axes: Sequence[int], inputs: Sequence[Any], attributes: Mapping[str, Any]
) -> dict[int, tuple[float, float]]:
    """Return the part of each axis that is resized. Raises ValueError if it is not constant."""
    if not _crops(attributes):
        return dict.fromkeys(axes, (0.0, 1.0))
    region = constant_of(inputs[1], attributes, "the region of interest of Resize").astype(np.float64).tolist()
    return {axis: (region[number], region[len(axes) + number]) for number, axis in enumerate(axes)}


def _floor(product: Any, scale: Fraction) -> Any:
    if isinstance(product, int):
        return product // scale.denominator
    return product if scale.denominator == 1 else tirx.floordiv(product, scale.denominator)


def _expression(extent: Any) -> Any:
    return tirx.const(int(extent), "int64") if isinstance(extent, int) else extent


def _float(extent: Any) -> Any:
    return _expression(extent).astype("float64")


def _coordinate(change: _Change, output: Any, attributes: Mapping[str, Any]) -> Any:
    """Return the input coordinate of an output, as float64."""
    mode = text(attributes, "coordinate_transformation_mode", "half_pixel")
    x = output.astype("float64")
    extent, size = _float(change.extent), _float(change.size)
    scale, length = size / extent, size
    given = change.ratio if change.scale is None else tirx.const(float(change.scale), "float64")
    if given is not None:
        scale, length = given, extent * given  # scales that give no whole extent count the fraction
    single = tirx.EQ(length, tirx.const(1.0, "float64"))
    middle = (x + 0.5) / scale - 0.5
    if mode == "half_pixel":
        return middle
    if mode == "half_pixel_symmetric":
        return middle + extent / 2.0 * (1.0 - size / length)
    if mode == "pytorch_half_pixel":
        return tirx.Select(single, tirx.const(-0.5, "float64"), middle)
    if mode == "asymmetric":
        return x / scale
    last = tirx.Select(single, tirx.const(1.0, "float64"), length - 1.0)
    if mode == "align_corners":
        return tirx.Select(single, tirx.const(0.0, "float64"), x * (extent - 1.0) / last)
    if mode == "tf_crop_and_resize":
        start, end = change.region
        inner = start + x * (end - start) / last
        return tirx.Select(single, (start + end) / 2.0 + extent * 0.0, inner) * (extent - 1.0)
    raise ValueError(f"Resize has no coordinate_transformation_mode {mode!r}")


def _nearest(change: _Change, output: Any, attributes: Mapping[str, Any]) -> Any:
    rounding = text(attributes, "nearest_mode", "round_prefer_floor")
    coordinates = text(attributes, "coordinate_transformation_mode", "half_pixel")
    # (i + 1/2) / f - 1/2 is never a tie, and rounds to floor(i / f).
    floors = (coordinates, rounding[:5]) in (("asymmetric", "floor"), ("half_pixel", "round"))
    if floors and change.scale is not None and change.scale.denominator == 1:
        return tirx.floordiv(output, change.scale.numerator)
    x = _coordinate(change, output, attributes)
    rounded = {
        "round_prefer_floor": lambda: tirx.ceil(x - 0.5),
        "round_prefer_ceil": lambda: tirx.floor(x + 0.5),
        "floor": lambda: tirx.floor(x),
        "ceil": lambda: tirx.ceil(x),
    }[rounding]()
    return _inside(rounded.astype("int64"), change)


def _taps(change: _Change, output: Any, attributes: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Return the two input indices around an output, and their weights."""
    x = _coordinate(change, output, attributes)
    before = tirx.floor(x)
    index = before.astype("int64")
    return [(_inside(index, change), before + 1.0 - x), (_inside(index + 1, change), x - before)]


def _inside(index: Any, change: _Change) -> Any:
    return tirx.max(tirx.min(index, _expression(change.extent) - 1), tirx.const(0, "int64"))
