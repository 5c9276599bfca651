"""What the tensorrt backend takes: every operator that can be written as ONNX, in types that TensorRT has."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tvm import relax, tirx
from tvm.ir import is_prim_expr

from packager.backends.base import Found, Match, Pattern, Search
from packager.emit.errors import CannotWriteError
from packager.emit.function_writer import FunctionWriter
from packager.emit.ops.rules import RULES
from packager.errors import UsageError, valid_names
from packager.graph.dataflow import Dataflow, extents_of, operator_of, shape_of, static_shape_of, variables_of
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import nodes_of

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

TYPES = ("float32", "float16", "bfloat16", "int32", "bool")
"""Of tensors that are computed; and ``int64`` where that is asked for, which version 8 does not have."""
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
    """The variable that an operator's result is bound to, and the constants that it reads, with their values."""

    result: Any
    constants: tuple[tuple[Any, ConstantValue], ...] = ()


def make_patterns(leave: Collection[str] = (), *, int64: bool = False) -> list[Pattern | Search]:
    """Return what takes each operator but those to ``leave``: a search, and for the one with several results a pattern.

    ``int64``: of 64-bit integers too. Raises UsageError for an operator to leave that is none of them.
    """
    known = sorted(RULES.keys() - NOT_SEARCHED | {"split"})
    if unknown := [name for name in leave if name not in known]:
        hint = valid_names(unknown[0], known, "operators")
        raise UsageError(f"Target 'tensorrt': leave: there is no operator {unknown[0]!r}", hint=hint)
    from tvm.relax.dpl import is_op, wildcard

    types = (*TYPES, "int64") if int64 else TYPES
    split = Pattern(
        "tensorrt.split",
        is_op("relax.split")(wildcard()),
        check=partial(_is_split, types),
        problem=_no_constants,
        taps=True,
    )
    searches = [
        Search(f"tensorrt.{name}", name, partial(_find, types), merged=True) for name in known if name != "split"
    ]
    both: list[Pattern | Search] = [split, *searches]
    return [one for one in both if one.name.removeprefix("tensorrt.") not in leave]


def _find(types: Collection[str], flow: Dataflow, variable: Any) -> Iterator[Found]:
    call = flow.value(variable)
    reads = variables_of(call)
    tensors = all(_fits(types, tensor, is_constant=flow.is_constant(tensor)) for tensor in (variable, *reads))
    tensors = tensors and _takes(operator_of(call), {str(read.ty.dtype) for read in reads})
    is_folded = bool(reads) and all(map(flow.is_constant, reads)) and static_shape_of(variable) is not None
    if tensors and not is_folded and _is_written(call, reads):
        arrays = ((read, flow.array(read)) for read in reads)
        constants = tuple((read, ConstantValue(str(read.name), array)) for read, array in arrays if array is not None)
        yield Found([variable], OperatorProblem(variable, constants))


def _is_split(types: Collection[str], match: Match) -> bool:
    (call,) = match.calls
    reads = variables_of(call)
    tensors = all(_fits(types, tensor) for tensor in reads)
    return tensors and not any(map(match.is_constant, reads)) and _is_written(call, reads)


def _no_constants(match: Match) -> OperatorProblem:
    return OperatorProblem(match.variables[0])


def _takes(operator: str, types: Set[str]) -> bool:
    """Whether TensorRT has an operator for operands of these types."""
    if operator in LOGICAL:
        return types <= {"bool"}
    if "bool" in types and operator not in OF_BOOLS:
        return False
    return types.isdisjoint(("int32", "int64")) or operator not in NOT_OF_INTEGERS


def _fits(types: Collection[str], tensor: Any, is_constant: bool = False) -> bool:
    """Whether a tensor is of known rank, and of a type that TensorRT computes in; constants may be indices."""
    if not isinstance(tensor.ty, relax.TensorType):
        return False
    shape, dtype = shape_of(tensor), str(tensor.ty.dtype)
    known = (
        shape is not None
        and len(shape) <= MAX_RANK
        and not any(extent == 0 for extent in shape if isinstance(extent, int))
    )
    return known and (dtype in types or (is_constant and dtype == "int64"))


def _is_written(call: Any, reads: Sequence[Any]) -> bool:
    extents = [extent for tensor in (call, *reads) for extent in extents_of(tensor) or ()]
    extents += [extent for shape in nodes_of(call, relax.ShapeExpr) for extent in shape.values]
    extents += [argument for argument in call.args if is_prim_expr(argument)]
    # The partition's arguments say these; where from matters to the whole alone.
    places = ((variable, ("v0", 0)) for extent in extents for variable in nodes_of(extent, tirx.Var))
    writer = FunctionWriter([f"v{index}" for index in range(len(reads))], IdentityMap(places))
    for index, read in enumerate(reads):
        writer.values[read] = f"v{index}"
    operator = str(call.op.name).removeprefix("relax.")
    try:
        RULES[operator](writer, call)
    except CannotWriteError:
        return False
    # TensorRT has no scatters that add, multiply or compare.
    return not any(attribute.name == "reduction" for node in writer.nodes for attribute in node.attribute)
