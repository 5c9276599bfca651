"""Tables of Resize with symbolic extents: per axis the input indices of each output and their weights, computed by each
run, and the weighted sums along one axis after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from packager.frontends.onnx.ops.operands import dtype_of, extents, text
from packager.ir.pattern_kinds import OPAQUE

WORK = "float64"


@dataclass(frozen=True)
class Axis:
    """A resized axis: its extents before and after (integers or expressions), and its least scale if that is known.

    ``operands`` are tensors that its coordinates depend on; ``scale`` returns the scale from these if a run gives it.
    """

    axis: int
    extent: Any
    size: Any
    least_scale: float | None
    operands: tuple[Any, ...] = ()
    scale: Callable[..., Any] | None = None


# Returns the input coordinate of an output, from the extents before and after and the operands, as a PrimFunc has them.
Coordinate = Callable[..., Any]


def resize_by_tables(
    builder: Any, data: Any, axes: Sequence[Axis], coordinates: Sequence[Coordinate], attributes: Mapping[str, Any]
) -> Any:
    """Return the resized data. Raises ValueError for an antialiased axis that shrinks by an unknown amount."""
    dtype, emit = dtype_of(data), builder.emit
    nearest = text(attributes, "mode", "nearest") == "nearest"
    work = "float64" if dtype in ("float64", "int64", "int32") else "float32"
    crops = text(attributes, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    inside = None
    if not nearest and dtype != work:
        data = emit(relax.op.astype(data, work))
    for axis, coordinate in zip(axes, coordinates, strict=True):
        positions, weights = _tables(builder, axis, coordinate, attributes, nearest)
        data = _gathered(builder, data, axis, positions, None if nearest else weights, work)
        if crops:
            here = _inside(builder, axis, coordinate, len(extents(data)))
            inside = here if inside is None else emit(relax.op.logical_and(inside, here))
    if not nearest and dtype != work:
        data = emit(relax.op.astype(_clipped(builder, data, dtype, work), dtype))
    if inside is not None:
        outside = relax.const(float(attributes.get("extrapolation_value", 0.0)), "float32")
        data = emit(relax.op.where(inside, data, emit(relax.op.astype(outside, dtype))))
    return data


def _clipped(builder: Any, data: Any, dtype: str, work: str) -> Any:
    """Saturate what becomes an integer."""
    if not dtype.startswith(("int", "uint")):
        return data
    limits = np.iinfo(dtype)
    low = builder.emit(relax.op.maximum(data, relax.const(float(limits.min), work)))
    return builder.emit(relax.op.minimum(low, relax.const(float(limits.max), work)))


def _number(value: float) -> Any:
    return tirx.const(value, WORK)


def _emit(builder: Any, axis: Axis, compute: Callable[..., Any], name: str) -> Any:
    """Emit a kernel of ``compute``, which gets the extents before and after, and the operands."""
    symbolic = [part for part in (axis.extent, axis.size) if not isinstance(part, int)]
    count = len(axis.operands)

    def bound(*given: Any) -> Any:
        rest = iter(given[count:])
        old, new = (
            tirx.const(part, "int64") if isinstance(part, int) else next(rest) for part in (axis.extent, axis.size)
        )
        return compute(old, new, *given[:count])

    operands = [*axis.operands, *symbolic]
    # A consumer would compute the tables for each element.
    call = builder.call_te(bound, *operands, primfunc_name_hint=name, primfunc_attrs={"op_pattern": OPAQUE})
    return builder.emit(call)


def _tables(
    builder: Any, axis: Axis, coordinate: Coordinate, attributes: Mapping[str, Any], nearest: bool
) -> tuple[Any, Any]:
    """Return positions and weights, [size, taps] each."""
    antialias = bool(attributes.get("antialias", 0)) and not nearest
    if antialias and axis.least_scale is None:
        raise ValueError("Resize with antialias to symbolic sizes: fix the dims with --dim")
    shrink = min(axis.least_scale or 1.0, 1.0) if antialias else 1.0
    cubic = text(attributes, "mode", "nearest") == "cubic"
    reach = 2 if cubic else 1
    first = math.floor(-reach / shrink) + 1
    taps = 1 if nearest else (2 - first if antialias else reach + 1) - first
    excludes = bool(attributes.get("exclude_outside", 0))

    def position(i: Any, tap: Any, *given: Any) -> Any:
        x = coordinate(i, *given)
        if nearest:
            return _ROUNDED[text(attributes, "nearest_mode", "round_prefer_floor")](x).astype("int64")
        # The element before a coordinate; an integer coordinate belongs to the left interval.
        return tirx.ceil(x).astype("int64") - 1 + tap.astype("int64") + first

    def positions(old: Any, new: Any, *given: Any) -> Any:
        def element(i: Any, tap: Any) -> Any:
            return tirx.max(tirx.min(position(i, tap, old, new, *given), old - 1), tirx.const(0, "int64"))

        return te.compute((new, taps), element, name="positions")

    def weights(old: Any, new: Any, *given: Any) -> Any:
        narrowed = _number(shrink)
        if antialias and axis.scale is not None:
            narrowed = tirx.min(axis.scale(*given), _number(1.0))

        def element(i: Any, tap: Any) -> Any:
            at = position(i, tap, old, new, *given)
            distance = tirx.abs(at.astype(WORK) - coordinate(i, old, new, *given)) * narrowed
            if cubic:
                weight = _cubic(distance, float(attributes.get("cubic_coeff_a", -0.75)))
            else:
                weight = tirx.max(_number(1.0) - distance, _number(0.0))
            if not excludes:
                return weight
            return tirx.Select(tirx.any(at < 0, at >= old), _number(0.0), weight)

        return te.compute((new, taps), element, name="weights")

    places = _emit(builder, axis, positions, "resize_positions")
    if nearest:
        return places, None
    factors = _emit(builder, axis, weights, "resize_weights")
    if excludes or antialias:
        total = builder.emit(relax.op.sum(factors, axis=1, keepdims=True))
        empty = builder.emit(relax.op.equal(total, relax.const(0.0, WORK)))
        total = builder.emit(relax.op.where(empty, relax.const(1.0, WORK), total))
        factors = builder.emit(relax.op.divide(factors, total))
    return places, factors


_ROUNDED: dict[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda x: tirx.ceil(x - _number(0.5)),
    "round_prefer_ceil": lambda x: tirx.floor(x + _number(0.5)),
    "floor": tirx.floor,
    "ceil": tirx.ceil,
}


def _cubic(x: Any, a: float) -> Any:
    """Source: Keys 1981, "Cubic convolution interpolation for digital image processing", equation 4."""
    near = (_number(a + 2) * x - _number(a + 3)) * x * x + _number(1.0)
    far = ((x - _number(5.0)) * x + _number(8.0)) * _number(a) * x - _number(4 * a)
    return tirx.Select(x <= _number(1.0), near, tirx.Select(x < _number(2.0), far, _number(0.0)))


def _inside(builder: Any, axis: Axis, coordinate: Coordinate, rank: int) -> Any:
    """Return whether each output of an axis is inside of the input, as a tensor of the data's rank."""

    def compute(old: Any, new: Any, *given: Any) -> Any:
        def element(i: Any) -> Any:
            x = coordinate(i, old, new, *given)
            return tirx.all(x >= _number(0.0), x <= old.astype(WORK) - _number(1.0))

        return te.compute((new,), element, name="inside")

    made = _emit(builder, axis, compute, "resize_inside")
    return builder.emit(relax.op.reshape(made, [axis.size if i == axis.axis else 1 for i in range(rank)]))


def _gathered(builder: Any, data: Any, axis: Axis, positions: Any, weights: Any, work: str) -> Any:
    """Return the weighted sums of the positions along an axis."""
    place = axis.axis

    def compute(x: Any, at: Any, *given: Any) -> Any:
        shape = [*x.shape]
        shape[place] = at.shape[0]

        def element(*index: Any) -> Any:
            total = None
            for tap in range(int(at.shape[1])):
                source = [*index[:place], at(index[place], tap), *index[place + 1 :]]
                term = x(*source) * given[0](index[place], tap).astype(work) if given else x(*source)
                total = term if total is None else total + term
            return total

        return te.compute(shape, element, name="resize")

    operands = [data, positions, *([] if weights is None else [weights])]
    return builder.emit(builder.call_te(compute, *operands, primfunc_name_hint="resize"))
