"""Splits sums of many contiguous elements into partial sums, for vectors and for accuracy.

A sum that one number accumulates takes an addition's latency for each element, and its rounding error grows with their
number. Sums of 16 lanes, of at most ``STEPS`` steps at a time, are the blocked summation of N. J. Higham, "The accuracy
of floating point summation" (1993).
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from packager.graph.dataflow import extents_of, shape_of
from packager.graph.rewrite import with_main

LANES, STEPS = 16, 64
# Shorter sums stay as they are.
MIN_ELEMENTS = 64
SUMS = ("relax.sum", "relax.mean")
DTYPES = ("float32", "float64")


def split_sums(module: tvm.IRModule) -> tvm.IRModule:
    """Split the sums and means of ``main`` over the last axes, which are static, of float32 and float64."""
    return with_main(module, _Splitter(module).visit_expr(module["main"]))


@mutator
class _Splitter(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "")
        if name not in SUMS or str(call.ty.dtype) not in DTYPES:
            return call
        (data,) = call.args
        extents = extents_of(data)
        if extents is None:
            return call
        rank = len(extents)
        axes = sorted(int(axis) % rank for axis in (call.attrs.axis if call.attrs.axis is not None else range(rank)))
        first = rank - len(axes)
        inner = (shape_of(data) or ())[first:]
        if axes != list(range(first, rank)) or not all(isinstance(extent, int) for extent in inner):
            return call
        count = math.prod(inner)
        if count < MIN_ELEMENTS:
            return call
        total = self._sum(data, list(extents[:first]), count)
        if name == "relax.mean":
            total = self.builder_.emit(relax.op.divide(total, relax.const(count, str(call.ty.dtype))))
        return relax.op.reshape(total, list(call.ty.shape.values))

    def _sum(self, data: Any, outer: list[Any], count: int) -> Any:
        """Return the sums of the last ``count`` elements of each row; those after whole blocks are added to theirs."""
        emit, axis = self.builder_.emit, len(outer)
        if count < MIN_ELEMENTS:
            return emit(relax.op.sum(data, axis=[axis]))
        steps = STEPS if count >= LANES * STEPS else count // LANES
        blocks, rest = divmod(count, LANES * steps)
        rows = emit(relax.op.reshape(data, [*outer, count])) if rest else data
        head = emit(_slice(rows, axis, 0, count - rest)) if rest else data
        shape = [*outer, blocks, steps, LANES] if blocks > 1 else [*outer, steps, LANES]
        lanes = emit(relax.op.sum(emit(relax.op.reshape(head, shape)), axis=[len(shape) - 2]))
        if blocks > 1:
            lanes = emit(relax.op.sum(lanes, axis=[axis]))
        total = emit(relax.op.sum(lanes, axis=[axis]))
        if not rest:
            return total
        return emit(relax.op.add(total, self._sum(emit(_slice(rows, axis, count - rest, count)), outer, rest)))


def _slice(rows: Any, axis: int, begin: int, end: int) -> Any:
    return relax.op.strided_slice(rows, axes=[axis], begin=[begin], end=[end])
