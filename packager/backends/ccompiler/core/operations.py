"""Read the Relax function of a partition as a list of operations on tensors, views looked through."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tvm import relax, tirx
from tvm.ir import is_prim_expr

from packager.backends.ccompiler.core.attention_match import find_attentions
from packager.backends.ccompiler.core.expressions import ARITIES
from packager.backends.ccompiler.core.shapes import Shape, equal_shapes
from packager.graph.attention.match import Attention
from packager.graph.dataflow import bindings_of, extents_of
from packager.graph.identity import IdentityMap, IdentitySet

ROW_ANCHORS = frozenset({"nn.softmax", "nn.log_softmax", "nn.layer_norm", "layer_norm", "nn.avg_pool1d"})
MOVES = frozenset({"concat", "permute_dims"})
POOLS = frozenset({"nn.max_pool2d", "nn.avg_pool2d", "nn.adaptive_avg_pool2d", "mean"})
# Operators with a loop nest of their own.
ANCHORS = frozenset({"matmul", "nn.conv2d", "attention"}) | ROW_ANCHORS | POOLS | MOVES
OPERATORS = frozenset({"sum", "stack"}) | ANCHORS | ARITIES.keys()
# Operators that leave every element where it is.
VIEWS = frozenset({"reshape", "expand_dims", "squeeze"})


class CannotRender(Exception):  # noqa: N818  # no error: the partition is given back, with this as the reason
    """A partition has something in it that the patterns cannot see and the templates cannot express."""


@dataclass(frozen=True)
class Tensor:
    """A value of a partition. ``argument`` is its index among the arguments, results included; None if it is inner."""

    index: int
    shape: Shape
    dtype: str
    argument: int | None = None


@dataclass(frozen=True)
class Use:
    """An operand: a tensor, read in row-major order as if it had ``shape``."""

    tensor: Tensor
    shape: Shape


@dataclass(frozen=True)
class Literal:
    """An operand that is a number of the graph."""

    value: float | int
    dtype: str


Operand = Use | Literal


@dataclass(frozen=True)
class Operation:
    """One operator: ``name`` without ``relax.``, tensor operands and numbers, and TVM's attributes."""

    name: str
    operands: tuple[Operand, ...]
    result: Tensor
    attributes: Any = None
    numbers: tuple[float, ...] = ()

    @property
    def uses(self) -> tuple[Use, ...]:
        """The operands that are tensors."""
        return tuple(operand for operand in self.operands if isinstance(operand, Use))


@dataclass(frozen=True)
class Graph:
    """A partition: its arguments in order (inputs, then results), operations in order, and its shape variables."""

    inputs: tuple[Tensor, ...]
    operations: tuple[Operation, ...]
    results: tuple[Tensor, ...]
    variables: tuple[tirx.Var, ...]
    constants: frozenset[int] = field(default_factory=frozenset)


def read_graph(function: relax.Function, constants: frozenset[int], composites: Iterable[str] = ()) -> Graph:
    """Return the operations of a partition's function, made of these composites. Raises CannotRender."""
    return _Reader(function, composites).read(constants)


class _Reader:
    def __init__(self, function: relax.Function, composites: Iterable[str]) -> None:
        self.function = function
        attentions = find_attentions(function, composites)
        self.attentions = IdentityMap((attention.result, attention) for attention in attentions)
        self.covered = IdentitySet(variable for found in attentions for variable in found.variables)
        self.values: IdentityMap[Any] = IdentityMap()  # variable -> Use, or a list of operands for a tuple
        self.operations: list[Operation] = []
        self.count = 0

    def read(self, constants: frozenset[int]) -> Graph:
        inputs = []
        for index, parameter in enumerate(self.function.params):
            tensor = self._tensor(parameter.ty, index)
            inputs.append(tensor)
            self.values[parameter] = Use(tensor, tensor.shape)
        for binding in bindings_of(self.function):
            if binding.var in self.attentions:
                self.values[binding.var] = self._attention(self.attentions[binding.var])
            elif binding.var not in self.covered:
                self.values[binding.var] = self._value(binding.value)
        body = self._value(self.function.body.body)
        results = self._results(body if isinstance(body, list) else [body], len(inputs))
        return Graph(
            inputs=tuple(inputs),
            operations=tuple(_contract(_multiplied(self.operations, results), results)),
            results=tuple(results),
            variables=_variables(self.function),
            constants=constants,
        )

    def _tensor(self, ty: Any, argument: int | None = None) -> Tensor:
        extents = extents_of(ty)
        if extents is None:
            raise CannotRender(f"a value of type {ty}")
        self.count += 1
        return Tensor(self.count, Shape(extents), str(ty.dtype), argument)

    def _results(self, uses: list[Any], first: int) -> list[Tensor]:
        """Give what is returned its place among the arguments."""
        results = []
        for number, use in enumerate(uses):
            made = [operation.result.index for operation in self.operations]
            if not isinstance(use, Use) or use.tensor.index not in made:
                raise CannotRender("a result that is an argument")
            if not equal_shapes(use.shape, use.tensor.shape) or use.tensor.argument is not None:
                raise CannotRender("a result that is a view or another result")
            place = replace(use.tensor, argument=first + number)
            self.operations = [_renamed(operation, place) for operation in self.operations]
            results.append(place)
        return results

    def _value(self, expr: Any) -> Any:
        if isinstance(expr, relax.Var):
            return self.values[expr]
        if isinstance(expr, relax.Tuple):
            return [self._value(item) for item in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return self._value(expr.tuple_value)[int(expr.index)]
        if hasattr(expr, "value") and hasattr(expr.value, "numpy"):
            return self._literal(expr)
        if isinstance(expr, relax.Call):
            return self._call(expr)
        raise CannotRender(f"an expression of type {type(expr).__name__}")

    def _attention(self, attention: Attention) -> Use:
        """Append what stands for all bindings of an attention: its tensors are where its operands lie, then masks."""
        sources = [heads.source for heads in (attention.q, attention.k, attention.v)]
        masks = [mask for mask in (attention.mask, attention.keep) if mask is not None]
        operands = [self._value(source) for source in (*sources, *masks)]
        if not all(isinstance(operand, Use) for operand in operands):
            raise CannotRender("an attention of numbers")
        result = self._tensor(attention.result.ty)
        self.operations.append(Operation("attention", tuple(operands), result, attention))
        return Use(result, result.shape)

    def _literal(self, expr: Any) -> Literal:
        array = expr.value.numpy()
        if array.size != 1:
            raise CannotRender(f"a constant of shape {array.shape} in the graph")
        return Literal(array.item(), str(expr.ty.dtype))

    def _call(self, call: relax.Call) -> Use:
        name = str(getattr(call.op, "name", call.op)).removeprefix("relax.")
        same = name == "broadcast_to" and Shape(call.ty.shape.values) == Shape(call.args[0].ty.shape.values)
        if name in VIEWS or same:
            source = self._value(call.args[0])
            if not isinstance(source, Use):
                raise CannotRender("a view of a number")
            return Use(source.tensor, Shape(call.ty.shape.values))
        operands: list[Operand] = []
        numbers = []
        for argument in call.args:
            if isinstance(argument, relax.ShapeExpr):
                continue  # of broadcast_to: the result's type has it
            if is_prim_expr(argument):
                numbers.append(_number(argument))
                continue
            value = self._value(argument)
            operands += value if isinstance(value, list) else [value]
        if name not in OPERATORS:
            raise CannotRender(f"the operator {name}")
        result = self._tensor(call.ty)
        self.operations.append(Operation(name, tuple(operands), result, call.attrs, tuple(numbers)))
        return Use(result, result.shape)


def _number(expr: Any) -> float:
    value = getattr(expr, "value", None)
    if isinstance(value, int | float):
        return float(value)
    raise CannotRender(f"an argument {expr}")


def _renamed(operation: Operation, place: Tensor) -> Operation:
    def rename(operand: Operand) -> Operand:
        same = isinstance(operand, Use) and operand.tensor.index == place.index
        return Use(place, operand.shape) if same and isinstance(operand, Use) else operand

    result = place if operation.result.index == place.index else operation.result
    return replace(operation, operands=tuple(map(rename, operation.operands)), result=result)


def _variables(function: relax.Function) -> tuple[tirx.Var, ...]:
    """Return the shape variables of the parameters, in order of appearance."""
    extents = (extent for parameter in function.params for extent in parameter.ty.shape.values)
    return tuple(IdentitySet(extent for extent in extents if isinstance(extent, tirx.Var)))


def _multiplied(operations: list[Operation], results: list[Tensor]) -> list[Operation]:
    """Replace divisions by a number whose results only ``erf`` reads, as in GELU, by products: it is no more exact."""
    readers: dict[int, set[str]] = {tensor.index: {"result"} for tensor in results}
    for operation in operations:
        for use in operation.uses:
            readers.setdefault(use.tensor.index, set()).add(operation.name)

    def multiplied(operation: Operation) -> Operation:
        number = operation.operands[-1] if operation.operands else None
        read_by_erf = readers.get(operation.result.index) == {"erf"}
        if operation.name != "divide" or not read_by_erf or not isinstance(number, Literal) or not number.value:
            return operation
        return replace(
            operation, name="multiply", operands=(operation.operands[0], replace(number, value=1 / number.value))
        )

    return list(map(multiplied, operations))


def _contract(operations: list[Operation], results: list[Tensor]) -> list[Operation]:
    """Replace the chains that patterns have matched as a whole by one operation each."""
    kept = {tensor.index for tensor in results}
    maker = {operation.result.index: operation for operation in operations}
    dropped: set[int] = set()
    contracted = []
    for operation in operations:
        new = _sum_of_tensors(operation, maker) or _layer_norm(operation, maker)
        contracted.append(new or operation)
        if new:
            wanted = {use.tensor.index for use in new.uses}
            pending = [use.tensor.index for use in operation.uses]
            while pending:
                index = pending.pop()
                if index in maker and index not in wanted and index not in dropped:
                    dropped.add(index)
                    pending += [use.tensor.index for use in maker[index].uses]
    read = {
        use.tensor.index for operation in contracted if operation.result.index not in dropped for use in operation.uses
    }
    return [o for o in contracted if o.result.index not in dropped - read - kept]


def _sum_of_tensors(total: Operation, maker: dict[int, Operation]) -> Operation | None:
    if total.name != "sum":
        return None
    stack = maker.get(total.uses[0].tensor.index)
    if stack is None or stack.name != "stack":
        raise CannotRender("a sum that is not one of stacked tensors")
    return Operation("sum_of_tensors", stack.operands, total.result)


def _layer_norm(division: Operation, maker: dict[int, Operation]) -> Operation | None:
    """Recognize (x - mean(x)) / sqrt(mean((x - mean(x)) ** 2) + epsilon)."""

    def made_by(operand: Operand, name: str) -> Operation | None:
        found = maker.get(operand.tensor.index) if isinstance(operand, Use) else None
        return found if found is not None and found.name == name else None

    if division.name != "divide":
        return None
    centered, root = made_by(division.operands[0], "subtract"), made_by(division.operands[1], "sqrt")
    variance = made_by(root.operands[0], "add") if root else None
    mean = made_by(variance.operands[0], "mean") if variance else None
    square = (made_by(mean.operands[0], "power") or made_by(mean.operands[0], "multiply")) if mean else None
    if not centered or not variance or not square or not isinstance(variance.operands[1], Literal):
        return None
    first = made_by(centered.operands[1], "mean")
    if not first or square.operands[0] != division.operands[0] or first.operands[0] != centered.operands[0]:
        return None
    if square.operands[1] != square.operands[0] and square.operands[1] != Literal(2.0, division.result.dtype):
        return None
    epsilon = float(variance.operands[1].value)
    return Operation("layer_norm", (centered.operands[0],), division.result, numbers=(epsilon, 1.0))
