"""Operators that move, repeat or make elements, and shapes as values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from tvm import tirx

from packager.emit.errors import CannotWriteError
from packager.emit.function_writer import FunctionWriter, Rules, dtype_of, extents, rank, static_extents
from packager.graph.dataflow import axes_of, same

_LOWEST = -(2**63)  # the end of a slice that goes backward to the first element


def reshaped(writer: FunctionWriter, value: str, old: Sequence[Any], new: Sequence[Any]) -> str:
    """Return a value in another shape, which is a constant if at most one of its symbolic extents moves."""
    coded = [
        0 if not isinstance(extent, int) and place < len(old) and same(extent, old[place]) else extent
        for place, extent in enumerate(new)
    ]
    symbolic = [place for place, extent in enumerate(coded) if not isinstance(extent, int)]
    if 0 in new or 0 in old or len(symbolic) > 1:
        return writer.reshape(value, new)
    for place in symbolic:
        coded[place] = -1
    return str(writer.node("Reshape", [value, writer.integers(coded)]))


def _reshape(writer: FunctionWriter, call: Any) -> str:
    return reshaped(writer, writer.value(call.args[0]), extents(call.args[0]), extents(call))


def _permute(writer: FunctionWriter, call: Any) -> str:
    return str(writer.node("Transpose", [writer.value(call.args[0])], perm=list(axes_of(call) or ())))


def _broadcast(writer: FunctionWriter, call: Any) -> str:
    return str(writer.node("Expand", [writer.value(call.args[0]), writer.shape(extents(call))]))


def _unsqueeze(writer: FunctionWriter, call: Any) -> str:
    axes = sorted(int(axis) % rank(call) for axis in call.attrs.axis)
    return str(writer.node("Unsqueeze", [writer.value(call.args[0]), writer.integers(axes)]))


def _squeeze(writer: FunctionWriter, call: Any) -> str:
    shape = extents(call.args[0])
    given = call.attrs.axis
    axes = [axis for axis, e in enumerate(shape) if e == 1] if given is None else [int(a) % len(shape) for a in given]
    if not axes:
        return writer.value(call.args[0])
    return str(writer.node("Squeeze", [writer.value(call.args[0]), writer.integers(sorted(axes))]))


def _concat(writer: FunctionWriter, call: Any) -> str:
    if call.attrs.axis is None:
        raise CannotWriteError("it flattens what it joins")
    return str(writer.node("Concat", writer.fields(call.args[0]), axis=int(call.attrs.axis)))


def _stack(writer: FunctionWriter, call: Any) -> str:
    axis = int(call.attrs.axis or 0) % rank(call)
    parts = [writer.node("Unsqueeze", [part, writer.integers([axis])]) for part in writer.fields(call.args[0])]
    return str(writer.node("Concat", parts, axis=axis))


def _split(writer: FunctionWriter, call: Any) -> list[str]:
    axis = int(call.attrs.axis) % rank(call.args[0])
    sizes = writer.shape([extents(field)[axis] for field in call.ty.fields])
    made = writer.node("Split", [writer.value(call.args[0]), sizes], outputs=len(call.ty.fields), axis=axis)
    return [made] if isinstance(made, str) else list(made)


def _slice(writer: FunctionWriter, call: Any) -> str:
    data, axes, begin, end, *strides = call.args
    every = [int(axis.value) % rank(data) for axis in axes.fields]
    steps = [int(step.value) for step in strides[0].fields] if strides else [1] * len(every)
    vectors = [writer.shape(list(begin.fields)), writer.shape(list(end.fields))]
    return str(writer.node("Slice", [writer.value(data), *vectors, writer.integers(every), writer.integers(steps)]))


def _flip(writer: FunctionWriter, call: Any) -> str:
    axis = int(call.attrs.axis) % rank(call)
    bounds = [writer.integers([number]) for number in (-1, _LOWEST, axis, -1)]
    return str(writer.node("Slice", [writer.value(call.args[0]), *bounds]))


def _tile(writer: FunctionWriter, call: Any) -> str:
    (data,) = call.args
    repeats = [int(count) for count in call.attrs.repeats]
    repeats = [1] * (rank(data) - len(repeats)) + repeats
    value = writer.value(data)
    if len(repeats) > rank(data):
        value = writer.reshape(value, [*[1] * (len(repeats) - rank(data)), *extents(data)])
    return str(writer.node("Tile", [value, writer.integers(repeats)]))


def _repeat(writer: FunctionWriter, call: Any) -> str:
    (data,) = call.args
    if call.attrs.axis is None:
        raise CannotWriteError("it flattens what it repeats")
    axis, shape = int(call.attrs.axis) % rank(data), list(extents(data))
    apart = writer.node("Unsqueeze", [writer.value(data), writer.integers([axis + 1])])
    counts = [1] * (len(shape) + 1)
    counts[axis + 1] = int(call.attrs.repeats)
    tiled = writer.node("Tile", [apart, writer.integers(counts)])
    joined = [*shape[: axis + 1], counts[axis + 1], *shape[axis + 1 :]]
    return reshaped(writer, str(tiled), joined, extents(call))


def _pad(writer: FunctionWriter, call: Any) -> str:
    widths = [int(width) for width in call.attrs.pad_width]
    mode = str(call.attrs.pad_mode)
    if mode not in ("constant", "reflect", "edge"):
        raise CannotWriteError(f"ONNX has no padding of mode {mode!r}")
    inputs = [writer.value(call.args[0]), writer.integers([*widths[::2], *widths[1::2]])]
    if mode == "constant":
        inputs.append(writer.constant(float(call.attrs.pad_value), dtype_of(call)))
    return str(writer.node("Pad", inputs, mode=mode))


def _flatten(writer: FunctionWriter, call: Any) -> str:
    return reshaped(writer, writer.value(call.args[0]), extents(call.args[0]), extents(call))


def filled(writer: FunctionWriter, value: str, shape: Sequence[Any]) -> str:
    """Return a tensor all elements of which are this scalar."""
    return str(writer.node("Expand", [value, writer.shape(shape)])) if shape else value


def _full(writer: FunctionWriter, call: Any) -> str:
    fill = writer.value(call.args[1])
    if dtype_of(call.args[1]) != dtype_of(call):
        fill = writer.cast(fill, dtype_of(call))
    return filled(writer, fill, extents(call))


def _constant(number: int, writer: FunctionWriter, call: Any) -> str:
    return filled(writer, writer.constant(number, dtype_of(call)), extents(call))


def _arange(writer: FunctionWriter, call: Any) -> str:
    dtype, bounds = dtype_of(call), list(call.args)
    if all(isinstance(bound, tirx.IntImm | tirx.FloatImm) for bound in bounds):
        (count,) = static_extents(call)
        values = bounds[0].value + np.arange(count) * bounds[2].value
        return writer.constant(values, dtype)
    if any(isinstance(bound, tirx.FloatImm) for bound in bounds):
        raise CannotWriteError("a range of floats has symbolic bounds")
    numbers = writer.node("Range", [writer.scalar(bound) for bound in bounds])
    return str(numbers) if dtype == "int64" else writer.cast(str(numbers), dtype)


def _triangle(upper: int, writer: FunctionWriter, call: Any) -> str:
    return str(writer.node("Trilu", [writer.value(call.args[0]), writer.scalar(call.args[1])], upper=upper))


def _diagonal(writer: FunctionWriter, call: Any) -> str:
    """Write eye of known extents: ones on diagonal k."""
    rows, columns = static_extents(call)
    given = [argument for argument in call.args if isinstance(argument, tirx.IntImm)]
    return writer.constant(np.eye(rows, columns, int(given[-1].value)), dtype_of(call))


def _meshgrid(writer: FunctionWriter, call: Any) -> list[str]:
    if str(call.attrs.indexing) != "ij":
        raise CannotWriteError(f"its order is {call.attrs.indexing!r}")
    values, count = writer.fields(call.args[0]), len(call.ty.fields)
    shape = writer.shape(extents(call.ty.fields[0]))
    spread = []
    for place, value in enumerate(values):
        others = [axis for axis in range(count) if axis != place]
        apart = writer.node("Unsqueeze", [value, writer.integers(others)]) if others else value
        spread.append(str(writer.node("Expand", [apart, shape])))
    return spread


def _reverse_sequence(writer: FunctionWriter, call: Any) -> str:
    data, lengths = (writer.value(operand) for operand in call.args)
    if dtype_of(call.args[1]) != "int64":
        lengths = writer.cast(lengths, "int64")
    axes = {"batch_axis": int(call.attrs.batch_axis), "time_axis": int(call.attrs.seq_axis)}
    if sorted(axes.values()) != [0, 1]:
        raise CannotWriteError(f"it reverses along axis {axes['time_axis']}, by axis {axes['batch_axis']}")
    return str(writer.node("ReverseSequence", [data, lengths], **axes))


def _shape_of(_writer: FunctionWriter, call: Any) -> Any:
    return call.args[0].ty.shape


def _as_tensor(writer: FunctionWriter, call: Any) -> str:
    return writer.value(call.args[0])


def _pixel_shuffle(writer: FunctionWriter, call: Any) -> str:
    if rank(call) != 4:
        raise CannotWriteError("ONNX has DepthToSpace for tensors of rank 4 only")
    factor = int(call.attrs.upscale_factor)
    return str(writer.node("DepthToSpace", [writer.value(call.args[0])], blocksize=factor, mode="CRD"))


RULES: Rules = {
    "arange": _arange,
    "broadcast_to": _broadcast,
    "concat": _concat,
    "expand_dims": _unsqueeze,
    "eye": _diagonal,
    "eye_like": _diagonal,
    "flatten": _flatten,
    "flip": _flip,
    "full": _full,
    "full_like": _full,
    "meshgrid": _meshgrid,
    "nn.batch_flatten": _flatten,
    "nn.pad": _pad,
    "nn.pixel_shuffle": _pixel_shuffle,
    "ones": partial(_constant, 1),
    "ones_like": partial(_constant, 1),
    "permute_dims": _permute,
    "repeat": _repeat,
    "reshape": _reshape,
    "reverse_sequence": _reverse_sequence,
    "shape_of": _shape_of,
    "shape_to_tensor": _as_tensor,
    "split": _split,
    "squeeze": _squeeze,
    "stack": _stack,
    "strided_slice": _slice,
    "tile": _tile,
    "tril": partial(_triangle, 0),
    "triu": partial(_triangle, 1),
    "zeros": partial(_constant, 0),
    "zeros_like": partial(_constant, 0),
}
