"""Converter of Choose, which ``graph.branches`` inserts: the value of the branch that a run takes.

Its extents are those of either branch: ``taken * a + (1 - taken) * b``. Where these are no short expressions an extent
is a run-time extent of its own, or texts would double with each of several Choose in a row. A value has one rank: where
the branches have different ones, as exporters write a squeeze of an axis that may be longer, each run checks that it
takes the branch of the lower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax, tirx
from tvm_ffi import structural_equal

from packager.frontends.onnx.graph.branches import SMALL
from packager.frontends.onnx.ops.operands import Convert, Converter, constant, dtype_of, extents, require
from packager.frontends.onnx.ops.shapes.arithmetic import as_tensor
from packager.graph.control_flow import CHOOSE
from packager.graph.rewrite import nodes_of

# Extents with more variables become run-time extents.
MAX_VARIABLES = 2


def choice(builder: Any, condition: Any, known: Any, found: Any) -> Any:
    """Return a condition as a run-time extent of 1 or 0; as an integer if it is known."""
    if known is not None:
        return int(bool(known.item()))
    return found.read(builder, condition, 1, "if")


def _choose(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    condition, *values = inputs
    found = attributes["tvm_custom"]["extents"]
    first, second = (extents(value) for value in values)
    static = all(isinstance(extent, int) for extent in (*first, *second))
    if attributes.get(SMALL, 0) and static and first == second and constant(condition, attributes) is None:
        return relax.op.where(condition, *values)
    taken = choice(builder, condition, constant(condition, attributes), found)
    if isinstance(taken, int):
        return values[0 if taken else 1]
    if dtype_of(values[0]) != dtype_of(values[1]):
        raise ValueError("the branches have results of different element types")
    if len(first) != len(second):  # Squeeze if the extent is 1, else Identity
        lower = len(first) < len(second)
        require(attributes, taken, "==", int(lower))
        return values[0 if lower else 1]
    shape = [_either(builder, condition, taken, a, b, found) for a, b in zip(first, second, strict=True)]
    operands = relax.Tuple([*values, relax.prim_value(taken)])
    return relax.call_dps_packed(CHOOSE, operands, relax.TensorType(shape, dtype_of(values[0])))


def _read(builder: Any, condition: Any, a: Any, b: Any, found: Any) -> Any:
    """Return a run-time extent that is one of two extents by a condition."""
    a, b = (tirx.IntImm("int64", extent) if isinstance(extent, int) else extent for extent in (a, b))
    first, second = (as_tensor(builder, extent) for extent in (a, b))
    scalar = builder.emit(relax.op.reshape(condition, []))
    value = builder.emit(relax.op.where(scalar, first, second))
    return found.read(builder, value, tirx.max(a, b), "chosen")


def _either(builder: Any, condition: Any, taken: Any, a: Any, b: Any, found: Any) -> Any:
    if (isinstance(a, int) and isinstance(b, int) and a == b) or structural_equal(a, b):
        return a
    if sum(len(nodes_of(extent, tirx.Var)) for extent in (a, b) if not isinstance(extent, int)) > MAX_VARIABLES:
        return _read(builder, condition, a, b, found)
    one = tirx.IntImm("int64", 1)
    return taken * a + (one - taken) * b


CONVERTERS: Mapping[str, Converter] = {"Choose": _choose}
