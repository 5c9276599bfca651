"""Has scatters of many slices read an order of their indices, which is sorted once for all that have the same indices.

Nets over graphs add by the same indices in each layer. Of equal updates it is enough to know how many a place has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import Op

from packager.bundle.dtypes import HALVES
from packager.graph.dataflow import Dataflow, extents_of, operator_of, same, scalar_of, shape_of
from packager.graph.equal_elements import equal_elements
from packager.graph.rewrite import Bindings, as_type, map_bindings
from packager.lower.cuda.algorithms.nests import int64
from packager.lower.cuda.algorithms.scatters.sorted_scatter import SCATTER_SORTED, SORT_INDICES
from packager.lower.legalize.accumulate import FULL

# Of fewer slices each thread reads all indices.
MANY = 256
# Where a place has so many slices on average, and threads would not fill a GPU, parts of them are added up apart.
CROWDED, PART, MOST_PARTS, FULL_GPU = 64, 16, 64, 1 << 16


@dataclass(frozen=True)
class _Scatter:
    """Slices for data ``[*outer, *places, *columns]``, whose indices are of ``places``; ``number`` for each of outer.

    ``counts`` are the axes of the updates between outer and columns.
    """

    outer: tuple[Any, ...]
    places: tuple[Any, ...]
    columns: tuple[Any, ...]
    counts: tuple[Any, ...]
    reduction: str

    @property
    def number(self) -> Any:
        """The slices of one of outer."""
        return _product(self.counts)

    @property
    def parts(self) -> int:
        """How many sums of its slices a place has at a time."""
        extents = [self.number, *map(_product, (self.outer, self.places, self.columns))]
        if self.reduction != "add" or not all(isinstance(extent, tirx.IntImm) for extent in extents):
            return 1
        number, outer, places, columns = map(int, extents)
        if not places or number < CROWDED * places or outer * places * columns >= FULL_GPU or number >= 1 << 24:
            return 1
        return min(MOST_PARTS, 1 << (number // places // PART).bit_length() - 1)

    def joined(self, made: Bindings, tensor: Any, between: tuple[Any, ...]) -> Any:
        """Return a tensor with one axis ``between`` outer and columns."""
        if len(between) == 1:
            return tensor
        return made.bind(relax.op.reshape(tensor, [*self.outer, _product(between), *self.columns]))


def sort_scatters(module: tvm.IRModule) -> tvm.IRModule:
    """Rewrite scatters of ``main`` with more than ``MANY`` slices: an order of the indices, and what reads it."""
    flow = Dataflow(module["main"])
    orders: list[tuple[Any, _Scatter, list[Any]]] = []
    sources: list[tuple[Any, Any, Any, Any]] = []  # of indices of so many rows and an order, the rows in that

    def rewritten(binding: Any) -> list[Any]:
        scatter = _scatter_of(binding.value)
        if scatter is None:
            return [binding]
        made = Bindings(binding.var)
        data, indices, updates = binding.value.args
        while (view := flow.call(indices, "reshape", "expand_dims", "squeeze")) is not None:
            indices = view.args[0]
        known = (order for own, other, order in orders if own.same_as(indices) and _same_order(scatter, other))
        order = next(known, None)
        if order is None:
            flat = made.bind(relax.op.reshape(indices, [_product(scatter.outer), scatter.number, len(scatter.places)]))
            pair = made.bind(relax.Call(Op.get(SORT_INDICES), [flat, relax.ShapeExpr([*scatter.places])]))
            order = [made.bind(relax.TupleGetItem(pair, field)) for field in range(2)]
            orders.append((indices, scatter, order))
        start = equal_elements(flow, data)
        if start is not None and scalar_of(start) == 0:  # no constant of them, which would be read
            data = made.bind(relax.op.zeros(extents_of(data), made.dtype))
        whole, parts = scatter.joined(made, data, scatter.places), scatter.joined(made, updates, scatter.counts)
        update = equal_elements(flow, updates) if scatter.reduction == "add" else None
        gathered = None if scatter.outer else _gathered(flow, updates)
        if update is None and gathered is not None:
            table, index = gathered
            rows = (shape_of(table) or (0,))[0]
            own = (s for i, n, o, s in sources if i.same_as(index) and n == rows and o.same_as(order[0]))
            source = next(own, None)
            if source is None:
                source = _in_order(made, rows, index, order[0])
                sources.append((index, rows, order[0], source))
            parts = as_type(made.bind, table, str(updates.ty.dtype))
            found = _scattered(made, scatter, whole, [source, order[1]], parts)
        elif update is None:
            found = _scattered(made, scatter, whole, order, parts)
        else:
            found = _counted(made, scatter, whole, order[1], update)
        if whole is not data:
            found = relax.op.reshape(made.bind(found), extents_of(data))
        return made.ended(found)

    return relax.transform.Normalize()(map_bindings(module, rewritten))


def _gathered(flow: Dataflow, updates: Any) -> tuple[Any, Any] | None:
    """Return of which tensor updates are slices, by an index each, and these; None if they are not.

    The tensor is not cast if it has more slices than there are updates.
    """
    dtype = str(updates.ty.dtype)
    while (cast := flow.call(updates, "astype")) is not None and flow.is_read_once(updates):
        updates = cast.args[0]
    lookup = flow.call(updates, "take")
    if lookup is None or lookup.attrs.axis is None or lookup.attrs.mode not in ("fast", "wrap"):
        return None
    table, index = lookup.args
    rows, *_ = shape_of(table) or (None,)
    if not isinstance(rows, int) or rows >= 1 << 31 or index.ty.ndim != 1 or int(lookup.attrs.axis) % table.ty.ndim:
        return None
    (number,) = shape_of(index) or (0,)
    is_small = str(table.ty.dtype) == dtype or (isinstance(number, int) and rows <= number)
    return (table, index) if is_small else None


def _in_order(made: Bindings, rows: int, index: Any, order: Any) -> Any:
    """Return which of so many rows indices name, in an order: scatters of each layer would look up both."""
    dtype = str(index.ty.dtype)
    behind = made.bind(relax.op.add(index, relax.const(rows, dtype)))
    from_end = made.bind(relax.op.less(index, relax.const(0, dtype)))
    places = made.bind(relax.op.astype(made.bind(relax.op.where(from_end, behind, index)), "int32"))
    return made.bind(relax.op.take(places, order, axis=0, mode="fast"))


def _scattered(made: Bindings, scatter: _Scatter, data: Any, order: Sequence[Any], updates: Any) -> Any:
    """Return data with updates by an order of theirs and where each place begins in it."""
    axis = len(scatter.outer)

    def call(into: Any, starts: Any) -> Any:
        attributes = tvm.ir.make_node("ir.DictAttrs", axis=axis, reduction=scatter.reduction)
        return relax.Call(Op.get(SCATTER_SORTED), [into, order[0], starts, updates], attributes)

    count = scatter.parts
    if count == 1:
        return call(data, order[1])
    dtype = str(data.ty.dtype)
    places, outer = _product(scatter.places), _product(scatter.outer)
    starts, first, last = _bounds(made, scatter, order[1])
    numbers = relax.const(np.arange(count, dtype="int32").reshape(1, 1, count))
    ahead = made.bind(relax.op.multiply(made.bind(relax.op.subtract(last, first)), numbers))
    offsets = made.bind(relax.op.floor_divide(ahead, relax.const(count, "int32")))
    begins = made.bind(relax.op.reshape(made.bind(relax.op.add(first, offsets)), [outer, places * count, 1]))
    ends = made.bind(relax.op.strided_slice(starts, [1], [places], [places + 1]))
    begins = made.bind(relax.op.reshape(made.bind(relax.op.concat([begins, ends], 1)), [-1]))
    wide = FULL if dtype in HALVES else dtype
    sums = made.bind(call(made.bind(relax.op.zeros([*scatter.outer, places * count, *scatter.columns], wide)), begins))
    apart = made.bind(relax.op.reshape(sums, [*scatter.outer, places, count, *scatter.columns]))
    total = made.bind(relax.op.sum(apart, axis + 1))
    return relax.op.astype(made.bind(relax.op.add(made.bind(relax.op.astype(data, wide)), total)), dtype)


def _counted(made: Bindings, scatter: _Scatter, data: Any, starts: Any, update: Any) -> Any:
    """Return data with an update added for each slice of a place: how many these are is where the next begins."""
    _, first, last = _bounds(made, scatter, starts)
    shape = [*scatter.outer, _product(scatter.places), *[1] * len(scatter.columns)]
    count = made.bind(relax.op.reshape(made.bind(relax.op.subtract(last, first)), shape))
    wide = FULL if made.dtype in HALVES else made.dtype
    total = made.bind(relax.op.multiply(as_type(made.bind, count, wide), as_type(made.bind, update, wide)))
    sum_ = made.bind(relax.op.add(as_type(made.bind, data, wide), total))
    return relax.op.astype(sum_, made.dtype) if wide != made.dtype else sum_


def _bounds(made: Bindings, scatter: _Scatter, starts: Any) -> tuple[Any, Any, Any]:
    """Return starts as [outer, places + 1, 1], and of each place where it begins and where the next does."""
    places = _product(scatter.places)
    rows = made.bind(relax.op.reshape(starts, [_product(scatter.outer), places + 1, 1]))
    first, last = (made.bind(relax.op.strided_slice(rows, [1], [at], [places + at])) for at in (0, 1))
    return rows, first, last


def _same_order(a: _Scatter, b: _Scatter) -> bool:
    return same(a.outer, b.outer) and same(a.places, b.places) and same(a.number, b.number)


def _product(extents: Sequence[Any]) -> Any:
    return math.prod(extents, start=int64(1))


def _scatter_of(call: Any) -> _Scatter | None:
    """Return a scatter of many slices, or None."""
    operator = operator_of(call)
    if operator not in ("packager.scatter_slices", "scatter_elements", "scatter_nd"):
        return None
    attributes, (shape, counts) = call.attrs, [extents_of(tensor) or () for tensor in call.args[:2]]
    is_own = operator == "packager.scatter_slices"
    reduction = str(attributes["reduction"] if is_own else attributes.reduction)
    if reduction == "update" and not is_own:
        return None  # as TVM does, which may be in place
    if operator == "scatter_nd":
        depth = counts[-1] if counts else None
        if not isinstance(depth, tirx.IntImm):
            return None
        at, end, between = 0, int(depth), counts[:-1]
    else:
        at = int(attributes["axis"] if is_own else attributes.axis) % len(shape)
        end, between = at + 1, counts[at : at + 1]
        if not all(same(extent, 1) for extent in counts[at + 1 :]):
            return None
    number = _product(between)
    if not isinstance(number, tirx.IntImm) or int(number) <= MANY:
        return None
    return _Scatter(tuple(shape[:at]), tuple(shape[at:end]), tuple(shape[end:]), tuple(between), reduction)
