"""Reads operands that say a shape, and are computed by the run, as run-time extents.

Each operator normalizes its operand by tensor arithmetic first: counts from the end, clamping, -1 for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax, tirx

from packager.frontends.onnx.ops.operands import constant, dtype_of, extents, optional
from packager.frontends.onnx.ops.shapes.arithmetic import as_tensor, is_symbolic

_R = relax.op


def read_shapes(builder: Any, operator: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> list[Any]:
    """Return the inputs of a node with shapes that the run computes as shapes over run-time extents."""
    read = _READERS.get(operator)
    shapes = [value for value in inputs[1:] if value is not None and not is_symbolic(value)]
    if read is None or all(constant(value, attributes) is not None for value in shapes):
        return list(inputs)
    return read(builder, list(inputs), attributes)


def _int64(builder: Any, value: Any) -> Any:
    """Return a shape, an extent or a tensor of integers as an int64 tensor."""
    if is_symbolic(value):
        return as_tensor(builder, value)
    return value if dtype_of(value) == "int64" else builder.emit(_R.astype(value, "int64"))


def _shape(builder: Any, values: Sequence[Any]) -> Any:
    return as_tensor(builder, relax.ShapeExpr([tirx.IntImm("int64", v) if isinstance(v, int) else v for v in values]))


def _zero() -> Any:
    return relax.const(0, "int64")


def _reshape(builder: Any, inputs: list[Any], attributes: Mapping[str, Any]) -> list[Any]:
    """-1 is what the other extents leave, 0 the extent of the data on the axis."""
    shape, asked = extents(inputs[0]), _int64(builder, inputs[1])
    (rank,) = extents(asked)
    total = math.prod(shape)
    if not attributes.get("allowzero", 0):
        kept = _shape(builder, [*shape, *[1] * rank][:rank])
        asked = builder.emit(_R.where(builder.emit(_R.equal(asked, _zero())), kept, asked))
    open_ = builder.emit(_R.less(asked, _zero()))
    others = builder.emit(_R.prod(builder.emit(_R.where(open_, relax.const(1, "int64"), asked)), axis=[0]))
    others = builder.emit(_R.maximum(others, relax.const(1, "int64")))
    rest = builder.emit(_R.floor_divide(_shape(builder, [total]), others))
    asked = builder.emit(_R.where(open_, rest, asked))
    inputs[1] = relax.ShapeExpr(_extents(attributes).as_shape(builder, asked, [total] * rank, "reshape"))
    return inputs


def _extents(attributes: Mapping[str, Any]) -> Any:
    return attributes["tvm_custom"]["extents"]


def _slice(builder: Any, inputs: list[Any], attributes: Mapping[str, Any]) -> list[Any]:
    """Slice-10: count negative bounds from the end, and clamp."""
    shape = extents(inputs[0])
    number = extents(_int64(builder, inputs[1]))[0]
    given = [optional(inputs, place) for place in (3, 4)]
    axes, steps = (None if value is None else constant(value, attributes) for value in given)
    if any(value is not None and array is None for value, array in zip(given, (axes, steps), strict=True)):
        raise ValueError("axes or steps are computed by the run")
    if steps is not None and (steps < 1).any():
        raise ValueError("steps are not positive, and bounds are computed by the run")
    sizes = [shape[int(axis) % len(shape)] for axis in (range(number) if axes is None else axes)]
    size = _shape(builder, sizes)

    def within(value: Any) -> Any:
        tensor = _int64(builder, value)
        from_end = builder.emit(_R.add(tensor, size))
        bound = builder.emit(_R.where(builder.emit(_R.less(tensor, _zero())), from_end, tensor))
        return builder.emit(_R.minimum(builder.emit(_R.maximum(bound, _zero())), size))

    starts, ends = within(inputs[1]), within(inputs[2])
    read = _extents(attributes).as_shape
    if _is_computed(inputs[1], attributes):
        # The length is one extent, rather than the difference of two, so that equal lengths are the same extent.
        length = builder.emit(_R.maximum(builder.emit(_R.subtract(ends, starts)), _zero()))
        lengths = read(builder, length, sizes, "slice")
        begins = read(builder, starts, sizes, "start")
        inputs[1] = relax.ShapeExpr(begins)
        inputs[2] = relax.ShapeExpr([begin + size for begin, size in zip(begins, lengths, strict=True)])
    else:
        inputs[2] = relax.ShapeExpr(read(builder, ends, sizes, "slice"))
    return inputs


def _is_computed(value: Any, attributes: Mapping[str, Any]) -> bool:
    return not is_symbolic(value) and constant(value, attributes) is None


def _top_k(builder: Any, inputs: list[Any], attributes: Mapping[str, Any]) -> list[Any]:
    shape = extents(inputs[0])
    bound = shape[attributes.get("axis", -1) % len(shape)]
    inputs[1] = relax.ShapeExpr(_extents(attributes).as_shape(builder, _int64(builder, inputs[1]), [bound], "topk"))
    return inputs


def _split(builder: Any, inputs: list[Any], attributes: Mapping[str, Any]) -> list[Any]:
    shape = extents(inputs[0])
    asked = _int64(builder, inputs[1])
    bound = shape[attributes.get("axis", 0) % len(shape)]
    (count,) = extents(asked)
    if not isinstance(count, int):
        raise ValueError("the run decides how many parts there are")
    inputs[1] = relax.ShapeExpr(_extents(attributes).as_shape(builder, asked, [bound] * count, "split"))
    return inputs


_READERS: Mapping[str, Callable[[Any, list[Any], Mapping[str, Any]], list[Any]]] = {
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "TopK": _top_k,
}
