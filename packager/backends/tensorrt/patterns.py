"""What the tensorrt backend takes: every operator that can be written as ONNX, in types that TensorRT has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm import relax

from packager.backends.base import Found, Match, Pattern, Search
from packager.emit.errors import CannotWriteError
from packager.emit.function_writer import FunctionWriter
from packager.emit.ops.rules import RULES
from packager.graph.dataflow import Dataflow, operator_of, static_shape_of, variables_of
from packager.graph.identity import IdentityMap

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

TYPES = ("float32", "float16", "bfloat16", "int32", "bool")
"""Of tensors that are computed. Version 8 has no 64-bit integers, and the others few operators of them."""
MAX_RANK = 8
# Split is a pattern; the others are written as ONNX, but TensorRT has none like them.
NOT_SEARCHED = frozenset({"split", "unique", "nonzero", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"})
LOGICAL = frozenset({"logical_and", "logical_or", "logical_xor", "logical_not"})
OF_BOOLS = frozenset(
    ("where", "astype", "reshape", "permute_dims", "expand_dims", "squeeze", "broadcast_to", "concat", "strided_slice")
)
NOT_OF_INTEGERS = frozenset({"matmul", "image.grid_sample"})


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


def make_patterns() -> list[Pattern | Search]:
    """Return what takes each operator: a search, and for the one with several results a pattern."""
    from tvm.relax.dpl import is_op, wildcard

    split = Pattern(
        "tensorrt.split", is_op("relax.split")(wildcard()), check=_is_split, problem=_no_constants, taps=True
    )
    searches = [Search(f"tensorrt.{name}", name, _find) for name in sorted(RULES) if name not in NOT_SEARCHED]
    return [split, *searches]


def _find(flow: Dataflow, variable: Any) -> Iterator[Found]:
    call = flow.value(variable)
    reads = variables_of(call)
    tensors = all(_fits(tensor, is_constant=flow.is_constant(tensor)) for tensor in (variable, *reads))
    tensors = tensors and _takes(operator_of(call), {str(read.ty.dtype) for read in reads})
    is_folded = bool(reads) and all(map(flow.is_constant, reads))
    if tensors and not is_folded and _is_written(call, reads):
        arrays = ((read, flow.array(read)) for read in reads)
        constants = tuple((read, ConstantValue(str(read.name), array)) for read, array in arrays if array is not None)
        yield Found([variable], OperatorProblem(constants))


def _is_split(match: Match) -> bool:
    (call,) = match.calls
    reads = variables_of(call)
    return not any(map(match.is_constant, reads)) and all(map(_fits, reads)) and _is_written(call, reads)


def _no_constants(_match: Match) -> OperatorProblem:
    return OperatorProblem(())


def _takes(operator: str, types: Set[str]) -> bool:
    """Whether TensorRT has an operator for operands of these types."""
    if operator in LOGICAL:
        return types <= {"bool"}
    if "bool" in types and operator not in OF_BOOLS:
        return False
    return "int32" not in types or operator not in NOT_OF_INTEGERS


def _fits(tensor: Any, is_constant: bool = False) -> bool:
    """Whether a tensor is of known shape, and of a type that TensorRT computes in; constants may be indices."""
    if not isinstance(tensor.ty, relax.TensorType):
        return False
    shape, dtype = static_shape_of(tensor), str(tensor.ty.dtype)
    known = shape is not None and len(shape) <= MAX_RANK and 0 not in shape
    return known and (dtype in TYPES or (is_constant and dtype == "int64"))


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
