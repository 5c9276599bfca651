"""Reductions, scans and sorting along axes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from tvm import tirx

from packager.emit.errors import CannotWriteError
from packager.emit.function_writer import FunctionWriter, Rules, dtype_of, extents, rank
from packager.emit.ops.movement import reshaped


def reduce(writer: FunctionWriter, operator: str, value: str, axes: list[int], keepdims: bool = True) -> str:
    """Return a reduction; axes are not negative."""
    if operator == "ReduceSum":
        return str(writer.node(operator, [value, writer.integers(axes)], keepdims=int(keepdims)))
    return str(writer.node(operator, [value], axes=axes, keepdims=int(keepdims)))


def _axes(call: Any) -> list[int]:
    axes, every = call.attrs.axis, rank(call.args[0])
    return list(range(every)) if axes is None else sorted(int(axis) % every for axis in axes)


def _reduce(operator: str, writer: FunctionWriter, call: Any) -> str:
    value, axes, dtype = writer.value(call.args[0]), _axes(call), dtype_of(call)
    if not axes:
        return value
    wide = "int32" if dtype in ("bool", "int16", "uint16") else dtype  # ONNX does not reduce these
    made = reduce(
        writer, operator, value if wide == dtype else writer.cast(value, wide), axes, bool(call.attrs.keepdims)
    )
    return made if wide == dtype else writer.cast(made, dtype)


def variance(writer: FunctionWriter, value: str, axes: list[int], keepdims: bool = True) -> str:
    """Return the mean of the squared distances from the mean."""
    centered = writer.node("Sub", [value, reduce(writer, "ReduceMean", value, axes)])
    return reduce(writer, "ReduceMean", str(writer.node("Mul", [centered, centered])), axes, keepdims)


def _variance(writer: FunctionWriter, call: Any) -> str:
    if getattr(call.attrs, "correction", 0):
        raise CannotWriteError("the variance is that of a sample")
    return variance(writer, writer.value(call.args[0]), _axes(call), bool(call.attrs.keepdims))


def _deviation(writer: FunctionWriter, call: Any) -> str:
    return str(writer.node("Sqrt", [_variance(writer, call)]))


def _arg(operator: str, writer: FunctionWriter, call: Any) -> str:
    (data,) = call.args
    value, axis, keepdims = writer.value(data), call.attrs.axis, bool(call.attrs.keepdims)
    if axis is None:
        flat = writer.node("Reshape", [value, writer.integers([-1])])
        found = writer.node(operator, [flat], axis=0, keepdims=0)
        if keepdims:
            found = writer.reshape(str(found), [1] * rank(data))
    else:
        found = writer.node(operator, [value], axis=int(axis) % rank(data), keepdims=int(keepdims))
    return str(found) if dtype_of(call) == "int64" else writer.cast(str(found), dtype_of(call))


def _cumulative_sum(writer: FunctionWriter, call: Any) -> str:
    (data,) = call.args
    value, axis = writer.value(data), call.attrs.axis
    if dtype_of(call) != dtype_of(data):
        value = writer.cast(value, dtype_of(call))
    if axis is None:
        value, axis = str(writer.node("Reshape", [value, writer.integers([-1])])), 0
    exclusive = int(bool(call.attrs.exclusive))
    return str(writer.node("CumSum", [value, writer.constant(int(axis), "int64")], exclusive=exclusive))


def _top_k(writer: FunctionWriter, call: Any) -> list[str] | str:
    (data,) = call.args
    axis, k = int(call.attrs.axis) % rank(data), int(call.attrs.k)
    count = writer.extent(k if k > 0 else extents(data)[axis])
    values, indices = _best(writer, writer.value(data), count, axis, bool(call.attrs.largest))
    wanted = {"both": [values, indices], "values": [values], "indices": [indices]}[str(call.attrs.ret_type)]
    if str(call.attrs.dtype) != "int64" and indices in wanted:
        wanted[-1] = writer.cast(indices, str(call.attrs.dtype))
    return wanted if len(wanted) > 1 else wanted[0]


def _own_top_k(writer: FunctionWriter, call: Any) -> list[str]:
    data, k = call.args
    return _best(writer, writer.value(data), writer.shape(list(k.values)), 1, bool(int(call.attrs["largest"])))


def _best(writer: FunctionWriter, value: str, count: str, axis: int, largest: bool) -> list[str]:
    return list(writer.node("TopK", [value, count], outputs=2, axis=axis, largest=int(largest)))


def _sort(place: int, writer: FunctionWriter, call: Any) -> str:
    (data,) = call.args
    axis = int(call.attrs.axis) % rank(data)
    count = writer.extent(extents(data)[axis])
    found = _best(writer, writer.value(data), count, axis, bool(call.attrs.descending))[place]
    return writer.cast(found, dtype_of(call)) if place and dtype_of(call) != "int64" else found


def _einsum(writer: FunctionWriter, call: Any) -> str:
    equation = str(call.attrs.subscripts)
    return str(writer.node("Einsum", writer.fields(call.args[0]), equation=equation))


def _matmul(writer: FunctionWriter, call: Any) -> str:
    operands, wide = [writer.value(operand) for operand in call.args], dtype_of(call)
    narrow = dtype_of(call.args[0])
    if narrow in ("int8", "uint8") and wide == "int32":
        return str(writer.node("MatMulInteger", operands))
    if narrow != wide:
        operands = [writer.cast(operand, wide) for operand in operands]
    return str(writer.node("MatMul", operands))


def _attention(writer: FunctionWriter, call: Any) -> str:
    """Write softmax(q k' scale + bias) v; all are [batch, sequence, heads, size], and heads may differ."""
    query, key, value = call.args[:3]
    if call.attrs.causal_mask is not None or call.attrs.window_size is not None:
        raise CannotWriteError("it has a mask of its own")
    if not isinstance(extents(query)[2], int) or extents(query)[2] != extents(key)[2]:
        raise CannotWriteError("queries and keys have different numbers of heads")
    q, k, v = (
        writer.transpose(writer.value(operand), axes)
        for operand, axes in ((query, (0, 2, 1, 3)), (key, (0, 2, 3, 1)), (value, (0, 2, 1, 3)))
    )
    size = extents(query)[3]
    given = call.attrs.scale
    factor = float(size) ** -0.5 if given is None else float(getattr(given, "value", given))
    scaled = writer.node("Mul", [writer.node("MatMul", [q, k]), writer.constant(factor, dtype_of(query))])
    if len(call.args) > 3:
        scaled = writer.node("Add", [scaled, writer.value(call.args[3])])
    weighted = str(writer.node("MatMul", [writer.node("Softmax", [scaled], axis=-1), v]))
    return writer.transpose(weighted, (0, 2, 1, 3))


def _one_hot(writer: FunctionWriter, call: Any) -> str:
    indices, on, off = call.args
    depth, axis = int(call.attrs.depth), int(call.attrs.axis) % rank(call)
    ranks = [1] * rank(call)
    ranks[axis] = depth
    places = writer.constant(np.arange(depth).reshape(ranks), dtype_of(indices))
    apart = writer.node("Unsqueeze", [writer.value(indices), writer.integers([axis])])
    chosen = writer.node("Equal", [apart, places])
    values = [writer.constant(value.value if _is_number(value) else 0, dtype_of(call)) for value in (on, off)]
    return str(writer.node("Where", [chosen, *values]))


def _is_number(value: Any) -> bool:
    return isinstance(value, tirx.IntImm | tirx.FloatImm)


def _outer(writer: FunctionWriter, call: Any) -> str:
    a, b = call.args
    column = reshaped(writer, writer.value(a), extents(a), [*extents(a), 1])
    return str(writer.node("Mul", [column, writer.value(b)]))


RULES: Rules = {
    "argmax": partial(_arg, "ArgMax"),
    "argmin": partial(_arg, "ArgMin"),
    "argsort": partial(_sort, 1),
    "cumsum": _cumulative_sum,
    "einsum": _einsum,
    "matmul": _matmul,
    "max": partial(_reduce, "ReduceMax"),
    "mean": partial(_reduce, "ReduceMean"),
    "min": partial(_reduce, "ReduceMin"),
    "nn.attention": _attention,
    "nn.attention_bias": _attention,
    "one_hot": _one_hot,
    "outer": _outer,
    "packager.top_k": _own_top_k,
    "prod": partial(_reduce, "ReduceProd"),
    "sort": partial(_sort, 0),
    "std": _deviation,
    "sum": partial(_reduce, "ReduceSum"),
    "topk": _top_k,
    "variance": _variance,
}
