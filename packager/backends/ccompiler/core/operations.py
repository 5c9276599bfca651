"""Read the Relax function of a partition as a list of operations on tensors, views looked through."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tvm import relax, tirx
from tvm.ir import is_prim_expr

from packager.backends.ccompiler.core.expressions import ARITIES
from packager.backends.ccompiler.core.moves import OPERATORS as MOVING
from packager.backends.ccompiler.core.moves import VIEWS, read_move, tensors_of
from packager.backends.ccompiler.core.problems import LayerNorm, Problem, SumOfTensors
from packager.backends.ccompiler.core.resize_tables import operands_of_resize, read_tables
from packager.backends.ccompiler.core.shapes import Shape, equal_shapes
from packager.graph.attention.match import Attention
from packager.graph.dataflow import bindings_of, extents_of
from packager.graph.identity import IdentityMap, IdentitySet

NORMALIZE = "packager.normalize"
RESIZE, COL2IM = "packager.resize", "packager.col2im"
ROW_ANCHORS = frozenset({NORMALIZE, "nn.softmax", "nn.log_softmax", "nn.layer_norm", "layer_norm", "nn.avg_pool1d"})
MOVES = frozenset(MOVING)
PLANAR_MEAN, PLANAR_CONV = "planar_mean", "planar_conv"  # over planes, and of pixels, of NCHW as it is
ROW_DOTS = "row_dots"  # few rows times a transposed matrix
_MEANS = ("nn.adaptive_avg_pool2d", "mean", PLANAR_MEAN)
POOLS = frozenset({*(f"nn.max_pool{axes}d" for axes in (1, 2, 3)), "nn.avg_pool2d", "nn.avg_pool3d", *_MEANS})
# Operators with a loop nest of their own.
CONVOLUTIONS = frozenset({"nn.conv1d", "nn.conv2d", "nn.conv3d"})
_SINGLE = frozenset(
    {
        "matmul",
        "attention",
        "packager.recurrent",
        "packager.tree_ensemble",
        "packager.block_matmul",
        *(PLANAR_CONV, ROW_DOTS, RESIZE, COL2IM),
    }
)
ANCHORS = _SINGLE | CONVOLUTIONS | ROW_ANCHORS | POOLS | MOVES | {"copy"}
OPERATORS = frozenset({"sum", "stack"}) | ANCHORS | ARITIES.keys()


@dataclass(frozen=True)
class Window:
    """The window of a convolution or pooling along the axes (height, width) or (depth, height, width).

    ``before`` and ``after`` are the padding. A window along lines alone has the height 1.
    """

    size: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def is_padded(self) -> bool:
        """Whether it has padding."""
        return any((*self.before, *self.after))

    @property
    def is_place(self) -> bool:
        """Whether it is one pixel, without strides and padding."""
        return {*self.size, *self.strides} == {1} and not self.is_padded


def window_of(size: Any, attributes: Any, axes: int = 2) -> Window:
    """Return the window of TVM's attributes of a convolution or a pooling, with at least so many axes."""
    missing = axes - len(size)

    def extended(values: Any, first: int) -> tuple[int, ...]:
        return (*[first] * missing, *map(int, values))

    before, after = list(attributes.padding)[: len(size)], list(attributes.padding)[len(size) :]
    steps = extended(attributes.strides, 1), extended(attributes.dilation, 1)
    return Window(extended(size, 1), *steps, extended(before, 0), extended(after, 0))


def spatial(shape: Shape, axes: int = 2) -> Shape:
    """Return a shape of data with channels last and at least so many spatial axes: lines are planes of height 1."""
    return Shape((shape[0], *[1] * (axes + 2 - len(shape)), *shape[1:]))


class CannotRender(Exception):  # noqa: N818  # no error: the partition is given back, with this as the reason
    """The templates do not support something in a partition that patterns cannot see."""


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


def read_graph(function: relax.Function, constants: frozenset[int], problems: Iterable[Problem]) -> Graph:
    """Return the operations of a partition's function, each of ``problems`` as one. Raises CannotRender."""
    return _Reader(function, problems).read(constants)


class _Reader:
    def __init__(self, function: relax.Function, problems: Iterable[Problem]) -> None:
        self.function = function
        self.problems = IdentityMap((problem.variables[-1], problem) for problem in problems)
        self.covered = IdentitySet(variable for problem in self.problems.values() for variable in problem.variables)
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
            if binding.var in self.problems:
                self.values[binding.var] = self._problem(self.problems[binding.var])
            elif binding.var not in self.covered:
                self.values[binding.var] = self._value(binding.value)
        body = self._value(self.function.body.body)
        results = self._results(body if isinstance(body, list) else [body], len(inputs))
        return Graph(
            inputs=tuple(inputs),
            operations=tuple(self.operations),
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
        """Make the returned tensors arguments, after the inputs."""
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

    def _problem(self, problem: Problem) -> Use:
        """Append the operation of a problem."""
        result = self._tensor(problem.variables[-1].ty)
        match problem:
            case LayerNorm():
                operands, numbers = self._tensors(problem.data), (problem.epsilon,)
                operation = Operation("layer_norm", operands, result, numbers=numbers)
            case SumOfTensors():
                operation = Operation("sum_of_tensors", tuple(map(self._value, problem.terms)), result)
            case Attention():  # its tensors are where its operands lie, then masks and sinks
                sources = [heads.source for heads in (problem.q, problem.k, problem.v)]
                masks = [mask for mask in (problem.mask, problem.keep, problem.sinks) if mask is not None]
                operation = Operation("attention", self._tensors(*sources, *masks), result, problem)
        self.operations.append(operation)
        return Use(result, result.shape)

    def _tensors(self, *variables: Any) -> tuple[Use, ...]:
        uses = [self._value(variable) for variable in variables]
        if not all(isinstance(use, Use) for use in uses):
            raise CannotRender("a number where a tensor is expected")
        return tuple(uses)

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
        if name in MOVES:
            return self._move(name, call)
        operands: list[Operand] = []
        numbers = []
        is_resize = name == RESIZE
        for argument in operands_of_resize(call) if is_resize else call.args:
            if isinstance(argument, relax.ShapeExpr):
                continue  # of broadcast_to: the result's type has it
            if is_prim_expr(argument):
                numbers.append(_number(argument))
                continue
            value = self._value(argument)
            operands += value if isinstance(value, list) else [value]
        if name not in OPERATORS:
            raise CannotRender(f"the operator {name}")
        result, attributes = self._tensor(call.ty), read_tables(call) if is_resize else call.attrs
        self.operations.append(Operation(name, tuple(operands), result, attributes, tuple(numbers)))
        return Use(result, result.shape)

    def _move(self, name: str, call: relax.Call) -> Use:
        """Append the operation of data movement."""
        move = read_move(call)
        if move is None:
            raise CannotRender(f"{name} by numbers that are not known")
        result = self._tensor(call.ty)
        self.operations.append(Operation(name, self._tensors(*tensors_of(call)), result, move))
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
