"""Writes attention with the four axes [batch, heads, rows, depth], and weights before what they weight.

Models of windows have axes of images, of windows and of heads before those of rows, in any order. The axis of heads is
the one that the result moves behind its rows, or the last of them; all others are one batch. Attention of three axes
has one head, unless they are batch and heads in one. Models with channels before pixels write values times transposed
weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, axes_of, operator_of, same, shape_of
from packager.graph.rewrite import Bindings, map_bindings, rebuild_call
from packager.transforms.attention.canonical import LONGEST

# Operators of scores, which other operands are broadcast to.
_ELEMENTWISE = frozenset(("add", "astype", "divide", "maximum", "minimum", "multiply", "subtract", "where"))


def with_four_axes(module: tvm.IRModule, num_inputs: int) -> tvm.IRModule:
    """Return the module with attention of other axes, and that with transposed weights, rewritten."""
    flow = Dataflow(module["main"], module["main"].params[num_inputs:])

    def replaced(binding: Any) -> list[Any]:
        variable, call = binding.var, binding.value
        found = _find(flow, variable, call) if operator_of(call) == "matmul" else None
        return [binding] if found is None else found.rewritten(variable)

    return map_bindings(module, replaced)


@dataclass(frozen=True)
class _Attention:
    """``chain``: the variables from the matmul of queries and keys to the weights of ``values``.

    ``transposed``: the result is values times transposed weights. ``heads`` is the axis of heads, None of one head.
    """

    flow: Dataflow
    chain: Sequence[Any]
    values: Any
    transposed: bool
    heads: int | None

    def rewritten(self, variable: Any) -> list[Any]:
        """Return the bindings that replace that of the result."""
        made = Bindings(variable, "_scores")
        values = made.bind(_swapped(self.values)) if self.transposed else self.values
        leading = (shape_of(self.chain[-1]) or ())[:-2]
        if len(leading) == 2:
            result = relax.op.matmul(self.chain[-1], values)
        else:
            axes = _Axes(made, leading, self.heads) if self.heads is not None else _OneHead(made, self.flow)
            product, *steps = self.chain
            call = self.flow.value(product)
            scores = made.bind(rebuild_call(call, *(axes.folded(operand) for operand in call.args)))
            for before, step in zip(self.chain, steps, strict=False):
                call = self.flow.value(step)
                operands = [scores if a.same_as(before) else axes.broadcast(a) for a in call.args]
                again = relax.Call(call.op, operands, call.attrs, call.ty_args)
                if operator_of(call) == "nn.softmax":  # along the last axis, whose number may have changed
                    again = relax.op.nn.softmax(scores, axis=-1)
                scores = made.bind(again)
            result = axes.unfolded(made.bind(relax.op.matmul(scores, axes.folded(values))))
        if self.transposed:
            result = _swapped(made.bind(result))
        return made.ended(result)


def _find(flow: Dataflow, variable: Any, call: Any) -> _Attention | None:
    """Return the attention whose result a matmul is, if it is to be rewritten."""
    weights, values = call.args
    swap = flow.call(values, "permute_dims")
    found = _chain(flow, weights)
    transposed = found is None and swap is not None and _swaps_last(swap) and flow.is_read_once(values)
    if transposed:
        found, values = _chain(flow, swap.args[0]), weights
    if found is None:
        return None
    shape = shape_of(found[-1]) or ()
    fits = same((shape_of(values) or ())[:-2], shape[:-2])
    if not fits or len(shape) < 3 or (len(shape) == 4 and not transposed):
        return None
    if len(shape) == 3 and any(_joins_heads(flow, operand) for operand in (*flow.value(found[0]).args, values)):
        return None
    heads = None if len(shape) == 3 else _heads(flow, variable, len(shape), transposed)
    return _Attention(flow, found, values, transposed, heads)


def _joins_heads(flow: Dataflow, operand: Any) -> bool:
    """Whether a reshape of a product or of an input has made the first axis of an operand, or might have."""
    place = 0
    while (call := flow.call(operand, "permute_dims", "reshape", "astype", "multiply", "divide")) is not None:
        axes, before, after = axes_of(call), shape_of(call.args[0]) or (), shape_of(call) or ()
        kept = len(before) == len(after)
        if operator_of(call) == "reshape":
            kept = place == 0 and same(before[:1], after[:1])
        if not kept:
            return True
        place = place if axes is None else axes[place]
        operand = call.args[0]
    return False


def _chain(flow: Dataflow, weights: Any) -> list[Any] | None:
    """Return the variables from the matmul of queries and keys to the weights; None if they are no such chain."""
    found, softmax, shape = [weights], False, shape_of(weights) or ()
    while len(found) < LONGEST:
        variable = found[0]
        call = flow.value(variable)
        name = operator_of(call)
        if not flow.is_read_once(variable) or not same(shape_of(variable) or (), shape):
            return None
        if name == "matmul":
            fits = all(same((shape_of(operand) or ())[:-2], shape[:-2]) for operand in call.args)
            return found if softmax and fits and not any(flow.is_constant(operand) for operand in call.args) else None
        if name == "nn.softmax" and not softmax and int(call.attrs.axis) % len(shape) == len(shape) - 1:
            softmax = True
        elif name not in _ELEMENTWISE:
            return None
        scores = [a for a in call.args if isinstance(a, relax.Var) and same(shape_of(a) or (), shape)]
        if len(scores) > 1:  # one is a mask of all scores
            scores = [a for a in scores if flow.value(a) is not None and flow.is_read_once(a)]
        if len(scores) != 1:
            return None
        found.insert(0, scores[0])
    return None


def _heads(flow: Dataflow, result: Any, rank: int, transposed: bool) -> int:
    """Return which of the leading axes is that of heads."""
    order = list(range(rank))
    while len(readers := flow.readers(result)) == 1 and (axes := axes_of(flow.value(readers[0]))) is not None:
        (result,) = readers
        order = [order[axis] for axis in axes]
    rows = order.index(rank - 1 if transposed else rank - 2)
    behind = [axis for axis in range(rank - 2) if order.index(axis) > rows]
    if len(behind) == 1:
        return behind[0]
    return rank - 3


class _Axes:
    """Folds all of the ``leading`` axes but that of ``heads`` into one; new bindings are ``made``."""

    def __init__(self, made: Bindings, leading: tuple[Any, ...], heads: int) -> None:
        self.made = made
        self.leading = leading
        self.order = [axis for axis in range(len(leading)) if axis != heads] + [heads]

    def folded(self, tensor: Any) -> Any:
        """Return a tensor [*leading, rows, columns] as [batch, heads, rows, columns]."""
        rank = len(self.leading)
        moved = tensor
        if self.order != list(range(rank)):
            moved = self.made.bind(relax.op.permute_dims(tensor, [*self.order, rank, rank + 1]))
        *others, heads, rows, columns = shape_of(moved) or ()
        return self.made.bind(relax.op.reshape(moved, [math.prod(others), heads, rows, columns]))

    def unfolded(self, tensor: Any) -> Any:
        """Return the inverse of ``folded``."""
        rank = len(self.leading)
        extents = [self.leading[axis] for axis in self.order]
        apart = relax.op.reshape(tensor, [*extents, *(shape_of(tensor) or ())[2:]])
        if self.order == list(range(rank)):
            return apart
        back = [self.order.index(axis) for axis in range(rank)]
        return relax.op.permute_dims(self.made.bind(apart), [*back, rank, rank + 1])

    def broadcast(self, operand: Any) -> Any:
        """Return what is broadcast to [*leading, rows, columns] in a shape that is to [batch, heads, rows, columns]."""
        shape = shape_of(operand)
        if not shape or len(shape) <= 2:
            return operand
        rank = len(self.leading)
        whole = (*(1,) * (rank + 2 - len(shape)), *shape)
        tensor = operand if len(shape) == len(whole) else self.made.bind(relax.op.reshape(operand, list(whole)))
        if any(whole[axis] != 1 for axis in self.order[:-1]):
            full = [whole[axis] if axis == self.order[-1] else self.leading[axis] for axis in range(rank)]
            tensor = self.made.bind(relax.op.broadcast_to(tensor, [*full, *whole[rank:]]))
        return self.folded(tensor)


class _OneHead:
    """Gives [batch, rows, columns] an axis of one head; new bindings are ``made``."""

    def __init__(self, made: Bindings, flow: Dataflow) -> None:
        self.made = made
        self.flow = flow

    def folded(self, tensor: Any) -> Any:
        """Return [batch, 1, rows, columns]; a transpose stays the last of the views, where attention looks for it."""
        call = self.flow.call(tensor, "permute_dims")
        if call is not None and _swaps_last(call):
            return self.made.bind(_swapped(self.folded(call.args[0])))
        batch, rows, columns = shape_of(tensor) or ()
        return self.made.bind(relax.op.reshape(tensor, [batch, 1, rows, columns]))

    def unfolded(self, tensor: Any) -> Any:
        """Return the inverse of ``folded``."""
        batch, _, rows, columns = shape_of(tensor) or ()
        return relax.op.reshape(tensor, [batch, rows, columns])

    def broadcast(self, operand: Any) -> Any:
        """Return what is broadcast to [batch, rows, columns] in a shape that is to [batch, 1, rows, columns]."""
        shape = shape_of(operand)
        if not shape or len(shape) <= 2:
            return operand
        return self.made.bind(relax.op.reshape(operand, [shape[0], 1, *shape[1:]]))


def _swapped(tensor: Any) -> Any:
    rank = len(shape_of(tensor) or ())
    return relax.op.permute_dims(tensor, [*range(rank - 2), rank - 1, rank - 2])


def _swaps_last(call: Any) -> bool:
    rank = len(shape_of(call.args[0]) or ())
    return axes_of(call) == (*range(rank - 2), rank - 1, rank - 2)
