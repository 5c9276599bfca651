"""What the tensorrt backend takes: every operator that can be written as ONNX, in types that TensorRT has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm import relax

from packager.backends.base import Found, Search
from packager.emit.errors import CannotWriteError
from packager.emit.function_writer import FunctionWriter
from packager.emit.ops.rules import RULES
from packager.graph.dataflow import Dataflow, static_shape_of, variables_of
from packager.graph.identity import IdentityMap

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

TYPES = ("float32", "float16", "bfloat16", "int32", "bool")
"""Of tensors that are computed. Version 8 has no 64-bit integers, and the others few operators of them."""
MAX_RANK = 8
# Written as ONNX, but TensorRT has no such operator, or another one: found by having its parser read each.
NOT_IN_TENSORRT = frozenset({"unique", "nonzero", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"})


class ConstantValue:
    """The value of a constant. Equal are those of the same variable of a model, so that a partition has one engine."""

    def __init__(self, name: str, array: Array) -> None:
        self.name = name
        self.array = array

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstantValue) and self.name == other.name and self.array is other.array

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True)
class OperatorProblem:
    """The constants that an operator reads, with their values."""

    constants: tuple[tuple[Any, ConstantValue], ...]


def make_searches() -> list[Search]:
    """Return a search for each operator."""
    return [Search(f"tensorrt.{name}", name, _find) for name in sorted(RULES) if name not in NOT_IN_TENSORRT]


def _find(flow: Dataflow, variable: Any) -> Iterator[Found]:
    call = flow.value(variable)
    reads = variables_of(call)
    if _fits(flow, variable, reads) and _is_written(call, reads):
        arrays = ((read, flow.array(read)) for read in reads)
        constants = tuple((read, ConstantValue(str(read.name), array)) for read, array in arrays if array is not None)
        yield Found([variable], OperatorProblem(constants))


def _fits(flow: Dataflow, variable: Any, reads: Sequence[Any]) -> bool:
    """Whether all tensors are of known shape, and of types that TensorRT computes in."""
    if not isinstance(variable.ty, relax.TensorType):
        return False
    for tensor in (variable, *reads):
        shape = static_shape_of(tensor)
        if shape is None or len(shape) > MAX_RANK or 0 in shape:
            return False
        is_index = tensor in flow.constants and str(tensor.ty.dtype) == "int64"
        if str(tensor.ty.dtype) not in TYPES and not is_index:
            return False
    return any(not flow.is_constant(read) for read in reads) or not reads


def _is_written(call: Any, reads: Sequence[Any]) -> bool:
    writer = FunctionWriter([f"v{index}" for index in range(len(reads))], IdentityMap())
    for index, read in enumerate(reads):
        writer.values[read] = f"v{index}"
    operator = str(call.op.name).removeprefix("relax.")
    try:
        RULES[operator](writer, call)
    except CannotWriteError:
        return False
    return True
