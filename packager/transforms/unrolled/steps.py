"""Makes one operator of those that the steps of a loop have, with a first axis of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax
from tvm_ffi import structural_equal

from packager.graph.dataflow import Dataflow, axes_of, operator_of, same, shape_of, strided_slice_of
from packager.graph.rewrite import rebuild_call

_UNARY = frozenset(
    (
        *("abs", "ceil", "cos", "erf", "exp", "floor", "log", "negative", "round", "rsqrt", "sigmoid", "sin", "sqrt"),
        *("square", "tanh", "nn.relu", "nn.silu", "nn.gelu", "nn.gelu_tanh", "logical_not", "astype"),
    )
)
_BINARY = frozenset(
    (
        *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "greater", "greater_equal", "less"),
        *("less_equal", "equal", "not_equal", "logical_and", "logical_or", "where"),
    )
)
_REDUCTIONS = {"sum": relax.op.sum, "mean": relax.op.mean, "max": relax.op.max, "min": relax.op.min}
_SOFTMAXES = {"nn.softmax": relax.op.nn.softmax, "nn.log_softmax": relax.op.nn.log_softmax}
_MOVES = frozenset(("expand_dims", "squeeze", "reshape", "permute_dims"))


class Steps:
    """Rolls up what each step of a loop computes, by ``bind``.

    What steps compute from slices of one tensor, one after the other along an axis, is computed from all of that
    tensor; what is the same for all steps stays as it is.
    """

    def __init__(self, flow: Dataflow, bind: Callable[[Any], Any]) -> None:
        self.flow, self.bind = flow, bind

    def roll(self, steps: Sequence[Any]) -> Any | None:
        """Return [steps, ...] of what the steps have; None if they compute different things.

        Nothing but the loop reads what is computed in it.
        """
        values = [self.flow.value(step) for step in steps]
        names = {operator_of(value) for value in values}
        shape = shape_of(steps[0])
        if len(names) != 1 or shape is None or any(not structural_equal(s.ty, steps[0].ty) for s in steps):
            return None
        (name,) = names
        if name == "strided_slice":
            return self._slices(steps, values)
        if name in _MOVES:
            return self._view(values, shape)
        if not all(map(self.flow.is_read_once, steps)):
            return None
        if name in _UNARY and all(structural_equal(value.attrs, values[0].attrs) for value in values):
            rolled = self.roll([value.args[0] for value in values])
            return None if rolled is None else self.bind(_with_operands(values[0], rolled))
        if name in _BINARY:
            return self._elementwise(values, len(shape))
        if name == "matmul":
            return self._product(values)
        if name in _SOFTMAXES:
            return self._softmax(name, values, len(shape))
        return self._reduction(name, values) if name in _REDUCTIONS else None

    def operand(self, operands: Sequence[Any]) -> tuple[Any, bool] | None:
        """Return what stands for an operand of all steps, and whether it has an axis of steps."""
        first = operands[0]
        if all(operand.same_as(first) or structural_equal(operand, first) for operand in operands):
            return first, False
        if not all(isinstance(operand, relax.Var) for operand in operands):
            return None
        rolled = self.roll(operands)
        return None if rolled is None else (rolled, True)

    def _slices(self, steps: Sequence[Any], values: Sequence[Any]) -> Any | None:
        """Return slices one after the other of a tensor as that tensor; equal slices of what is rolled up as one."""
        slices = [strided_slice_of(value) for value in values]
        sources = [value.args[0] for value in values]
        if any(each is None for each in slices):
            return None
        parts: list[tuple[slice, ...]] = [each for each in slices if each is not None]
        if not all(source.same_as(sources[0]) for source in sources):
            if any(part != parts[0] for part in parts) or not all(map(self.flow.is_read_once, steps)):
                return None
            return self._equal_slices(sources, parts[0])
        moving = [axis for axis in range(len(parts[0])) if any(part[axis] != parts[0][axis] for part in parts)]
        extents = shape_of(sources[0])
        if len(moving) != 1 or extents is None:
            return None
        (axis,) = moving
        begins = [_begin(part[axis]) for part in parts]
        whole = all(_is_whole(parts[0][other], extents[other]) for other in range(len(extents)) if other != axis)
        one_each = all(same((shape_of(step) or ())[axis], 1) for step in steps)
        in_order = isinstance(extents[axis], int) and begins == [*range(begins[0], begins[0] + len(steps))]
        if not whole or not one_each or not in_order:
            return None
        source = sources[0]
        if len(steps) < extents[axis]:
            source = self.bind(relax.op.strided_slice(source, [axis], [begins[0]], [begins[0] + len(steps)]))
        order = [axis, *(other for other in range(len(extents)) if other != axis)]
        first = self.bind(relax.op.permute_dims(source, order)) if axis else source
        return self.bind(relax.op.expand_dims(first, [axis + 1]))

    def _equal_slices(self, sources: Sequence[Any], parts: tuple[slice, ...]) -> Any | None:
        rolled, extents = self.roll(sources), shape_of(sources[0])
        if rolled is None or extents is None or any(part.step not in (None, 1) for part in parts):
            return None
        taken = [axis for axis, part in enumerate(parts) if not _is_whole(part, extents[axis])]
        if not all(isinstance(extents[axis], int) for axis in taken):
            return None
        if not taken:
            return rolled
        begins, ends = zip(*(parts[axis].indices(extents[axis])[:2] for axis in taken), strict=True)
        return self.bind(relax.op.strided_slice(rolled, [axis + 1 for axis in taken], begins, ends))

    def _elementwise(self, values: Sequence[Any], rank: int) -> Any | None:
        found = [self.operand(operands) for operands in zip(*(value.args for value in values), strict=True)]
        operands = [each for each in found if each is not None]
        if len(operands) != len(found) or not any(rolled for _, rolled in operands):
            return None
        return self.bind(
            _with_operands(values[0], *(self._of_rank(x, rank) if rolled else x for x, rolled in operands))
        )

    def _of_rank(self, rolled: Any, rank: int) -> Any:
        """Return a tensor with an axis of steps whose other axes are broadcast to a rank."""
        missing = rank + 1 - rolled.ty.ndim
        return self.bind(relax.op.expand_dims(rolled, list(range(1, missing + 1)))) if missing else rolled

    def _product(self, values: Sequence[Any]) -> Any | None:
        """Return a product of stacks of matrices; one that is the same for all steps is broadcast."""
        found = [self.operand([value.args[side] for value in values]) for side in (0, 1)]
        operands = [each for each in found if each is not None]
        rank = max(operand.ty.ndim for operand in values[0].args)
        if len(operands) != 2 or min(operand.ty.ndim for operand in values[0].args) < 2:
            return None
        both = [self._of_rank(x, rank) if rolled else x for x, rolled in operands]
        return self.bind(rebuild_call(values[0], *both))

    def _reduction(self, name: str, values: Sequence[Any]) -> Any | None:
        attrs = values[0].attrs
        if attrs.axis is None or any(not structural_equal(value.attrs, attrs) for value in values):
            return None
        rank = values[0].args[0].ty.ndim
        rolled = self.roll([value.args[0] for value in values])
        if rolled is None:
            return None
        axes = [int(axis) % rank + 1 for axis in attrs.axis]
        return self.bind(_REDUCTIONS[name](rolled, axis=axes, keepdims=bool(attrs.keepdims)))

    def _softmax(self, name: str, values: Sequence[Any], rank: int) -> Any | None:
        axes = {int(value.attrs.axis) % rank for value in values}
        rolled = self.roll([value.args[0] for value in values]) if len(axes) == 1 else None
        return None if rolled is None else self.bind(_SOFTMAXES[name](rolled, axis=min(axes) + 1))

    def _view(self, values: Sequence[Any], shape: tuple[Any, ...]) -> Any | None:
        """Return a view of all steps: they have the shapes of the first."""
        orders = [axes_of(value) for value in values]
        rolled = self.roll([value.args[0] for value in values]) if all(order == orders[0] for order in orders) else None
        if rolled is None:
            return None
        count = int(rolled.ty.shape.values[0])
        if orders[0] is not None:
            return self.bind(relax.op.permute_dims(rolled, [0, *(axis + 1 for axis in orders[0])]))
        return self.bind(relax.op.reshape(rolled, [count, *shape]))


def _with_operands(call: Any, *operands: Any) -> Any:
    """Return a call of elementwise operators with others."""
    return relax.Call(call.op, operands, call.attrs, call.ty_args)


def _begin(part: slice) -> int:
    return int(part.start or 0)


def _is_whole(part: slice, extent: Any) -> bool:
    return part == slice(None) or (isinstance(extent, int) and part.indices(extent) == (0, extent, 1))
