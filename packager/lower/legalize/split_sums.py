"""Splits sums of many contiguous elements into sums of blocks, which are then added up.

The rounding error of a sum grows with the number of its steps. Sums of blocks are the blocked summation of N. J.
Higham, "The accuracy of floating point summation" (1993). The schedule computes each block in vectors of partial sums
(``lower/cpu/row_reduction.py``), which is why blocks are whole vectors.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from packager.graph.dataflow import extents_of, shape_of
from packager.graph.rewrite import with_main
from packager.lower.cpu.row_reduction import PARTIALS, partials_of

# Elements of a block: as many steps of each partial sum as there are partial sums, which are added up one by one.
LANES = PARTIALS[0]
BLOCK = LANES * LANES
# Shorter sums stay as they are.
MIN_ELEMENTS = 2 * LANES
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
        block = _block(count)
        blocks, rest = divmod(count, block)
        split = [*outer, *([blocks] if blocks > 1 else []), block]
        rows = emit(relax.op.reshape(data, [*outer, count])) if rest else data
        head = emit(_slice(rows, axis, 0, count - rest)) if rest else data
        parts = emit(relax.op.sum(emit(relax.op.reshape(head, split)), axis=[len(split) - 1]))
        total = self._sum(parts, outer, blocks) if blocks > 1 else parts
        if not rest:
            return total
        return emit(relax.op.add(total, self._sum(emit(_slice(rows, axis, count - rest, count)), outer, rest)))


def _block(count: int) -> int:
    """Return the elements of a block: of what divides ``count``, the largest one of the best vectors.

    Where nothing does, elements are left after whole blocks, and copied to be added up.
    """
    sizes = [size for size in range(LANES, min(BLOCK, count) + 1) if count % size == 0 and partials_of(size)]
    if not sizes:
        return min(BLOCK, count - count % LANES)
    return min(sizes, key=lambda size: (PARTIALS.index(partials_of(size)), -size))


def _slice(rows: Any, axis: int, begin: int, end: int) -> Any:
    return relax.op.strided_slice(rows, axes=[axis], begin=[begin], end=[end])
