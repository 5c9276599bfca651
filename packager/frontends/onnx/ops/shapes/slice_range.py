"""Converters of Slice and Range with symbolic bounds, and of Expand and Tile to symbolic extents.

TVM's importer does not clamp symbolic slice bounds, computes ranges at run time, expands symbolic extents only to a
symbolic shape of at least their rank, and does not repeat by symbolic numbers. ONNX operators Slice (versions 1 to 13),
Range (11), Expand (13) and Tile (13).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax, tirx
from tvm_ffi import structural_equal

from packager.frontends.onnx.ops.operands import Convert, Converter, constant, extents, optional
from packager.frontends.onnx.ops.shapes import quotients
from packager.frontends.onnx.ops.shapes.arithmetic import as_tensor, is_symbolic, known
from packager.frontends.onnx.ops.shapes.quotients import Quotient


def _slice(_builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Slice-13. Raises ValueError for bounds of which data give some only, and for steps that are not positive."""
    data, shape = inputs[0], extents(inputs[0])
    before = "starts" in attributes  # before version 10
    static = all(isinstance(extent, int) for extent in shape)
    if before and static:
        starts, ends = attributes["starts"], attributes["ends"]
        along = [int(axis) % len(shape) for axis in attributes.get("axes", range(len(starts)))]
        bounds = [slice(*b).indices(shape[axis]) for *b, axis in zip(starts, ends, along, strict=True)]
        low, high = [begin for begin, _, _ in bounds], [max(begin, stop) for begin, stop, _ in bounds]
        return relax.op.strided_slice(data, along, low, high, [1] * len(along))
    if not any(is_symbolic(value) for value in inputs[1:]) and (before or static or not _forward(inputs, attributes)):
        return convert("Slice", list(inputs), attributes)
    values = [None if value is None else known(value, attributes) for value in inputs[1:]]
    starts, stops, given, steps = (optional(values, index) for index in range(4))
    unknown = [value is not None and found is None for value, found in zip(inputs[1:], values, strict=True)]
    if any(unknown) or starts is None or stops is None:
        raise ValueError("some bounds are symbolic, others are computed from data")
    axes = [int(axis) % len(shape) for axis in (range(len(starts)) if given is None else given)]
    if steps is not None and any(not isinstance(step, int) or step < 1 for step in steps):
        raise ValueError("steps are not positive numbers, and bounds are symbolic")
    analyzer = attributes["tvm_custom"]["analyzer"]
    begins = [_within(analyzer, bound, shape[axis]) for bound, axis in zip(starts, axes, strict=True)]
    ends = [_within(analyzer, bound, shape[axis]) for bound, axis in zip(stops, axes, strict=True)]
    begins = [_min(analyzer, begin, end) for begin, end in zip(begins, ends, strict=True)]
    return relax.op.strided_slice(data, axes, begins, ends, None if steps is None else list(steps), assume_inbound=True)


def _within(analyzer: Any, bound: Any, extent: Any) -> Any:
    """Clamp a bound to [0, extent]; negative ones are relative to the end."""
    limits = (bound, bound)
    if not isinstance(bound, int):
        found = analyzer.const_int_bound(bound)
        limits = (found.min_value, found.max_value)
    if limits[0] < 0:
        # Whether it is negative, as an integer: shapes have no conditions.
        negative = 1 if limits[1] < 0 else tirx.min(tirx.max(0 - bound, 0), 1)
        bound = extent * negative + bound
        bound = max(bound, 0) if isinstance(bound, int) else analyzer.simplify(tirx.max(bound, 0))
    # The upper bounds of dims are known, so a larger bound simplifies to the extent.
    return _min(analyzer, bound, extent)


def _forward(inputs: Sequence[Any], attributes: dict[str, Any]) -> bool:
    """Whether all bounds are known, and all steps positive."""
    values = [None if value is None else known(value, attributes) for value in inputs[1:]]
    unknown = any(found is None and value is not None for found, value in zip(values, inputs[1:], strict=True))
    steps = optional(values, 3)
    return not unknown and (steps is None or all(step > 0 for step in steps))


def _min(analyzer: Any, bound: Any, other: Any) -> Any:
    """Return the minimum of two extents, simplified if one is provably smaller."""
    if isinstance(bound, int) and isinstance(other, int):
        return min(bound, other)
    if analyzer.can_prove(bound >= other):
        return other
    return bound if analyzer.can_prove(bound <= other) else tirx.min(bound, other)


def _range(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Range-11. Raises ValueError for a step that is not a positive number, if a bound is symbolic."""
    if all(constant(value, attributes) is not None for value in inputs):
        return convert("Range", list(inputs), attributes)
    dtype = attributes["tvm_custom"]["types"][0]
    found = [known(value, attributes, floats=True) for value in inputs]
    numbers = [value.item() for value in found if value is not None]
    if len(numbers) < len(inputs):
        tensors = [as_tensor(builder, value, dtype) if is_symbolic(value) else value for value in inputs]
        return _computed_range(builder, tensors, dtype, attributes)
    start, limit, step = numbers
    analyzer = attributes["tvm_custom"]["analyzer"]
    if any(isinstance(number, Quotient) for number in numbers):
        count = quotients.steps(start, limit, step, analyzer)
        counted = builder.emit(relax.op.astype(builder.emit(relax.op.arange(0, count, 1, "int64")), dtype))
        first, each = (relax.const(float(quotients.number(value)), dtype) for value in (start, step))
        return relax.op.add(builder.emit(relax.op.multiply(counted, each)), first)
    if not isinstance(step, int) or step < 1:
        raise ValueError("the step of Range is not a positive number, and a bound is symbolic")
    whole = relax.op.arange(_min(analyzer, start, limit), limit, step, "int64")
    return whole if dtype == "int64" else relax.op.astype(builder.emit(whole), dtype)


def _computed_range(builder: Any, operands: Sequence[Any], dtype: str, attributes: Mapping[str, Any]) -> Any:
    """Return a range of bounds that the run computes: its length is a run-time extent."""
    emit, op = builder.emit, relax.op
    start, limit, step = (emit(op.reshape(operand, [])) for operand in operands)
    first, last, each = (emit(op.astype(operand, "float64")) for operand in (start, limit, step))
    ratio = emit(op.ceil(emit(op.divide(emit(op.subtract(last, first)), each))))
    count = emit(op.astype(emit(op.maximum(ratio, relax.const(0.0, "float64"))), "int64"))
    length = attributes["tvm_custom"]["extents"].read(builder, count, None, "range")
    counted = emit(op.astype(emit(op.arange(0, length, 1, "int64")), dtype))
    return op.add(emit(op.multiply(counted, step)), start)


def _expand(_builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Expand-13: the data and the shape broadcast to each other, so the data keep their extent where the shape has 1.

    A symbolic extent is assumed equal to the other one, never broadcast; each run checks it (``graph.conditions``).
    """
    data, given = inputs[0], known(inputs[1], attributes)
    have = extents(data)
    if given is None or all(isinstance(extent, int) for extent in (*have, *given)):
        return convert("Expand", list(inputs), attributes)
    kept = [1] * max(len(given) - len(have), 0) + have
    asked = [1] * max(len(have) - len(given), 0) + list(given)
    wanted = [old if isinstance(new, int) and new in (1, -1) else new for old, new in zip(kept, asked, strict=True)]
    shape = relax.ShapeExpr(wanted)
    return data if structural_equal(shape, data.ty.shape) else relax.op.broadcast_to(data, shape)


def _tile(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Tile-13: broadcast a new axis before each axis and merge both."""
    repeats = known(inputs[1], attributes) if len(inputs) > 1 else None
    if repeats is None or len(repeats) != len(extents(inputs[0])):
        return convert("Tile", list(inputs), attributes)
    pairs = list(zip(repeats, extents(inputs[0]), strict=True))
    apart = builder.emit(relax.op.reshape(inputs[0], [part for _, extent in pairs for part in (1, extent)]))
    repeated = builder.emit(relax.op.broadcast_to(apart, [part for pair in pairs for part in pair]))
    return relax.op.reshape(repeated, [times * extent for times, extent in pairs])


CONVERTERS: Mapping[str, Converter] = {"Slice": _slice, "Range": _range, "Expand": _expand, "Tile": _tile}
