"""Scatters of many slices on GPUs: indices are sorted once for all that have them, then each place takes what is its.

The order is stable, so that an element gets its updates in the order of the indices. Nets over graphs add by the same
indices in each layer.
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
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.bundle.dtypes import HALVES
from packager.graph.dataflow import Dataflow, extents_of, operator_of, same
from packager.graph.own_operators import register
from packager.graph.rewrite import Bindings, map_bindings
from packager.ir.pattern_kinds import SUMS
from packager.lower.cuda.algorithms.merge_sort import ByKey, merge_sort
from packager.lower.cuda.algorithms.nests import (
    Nests,
    cast,
    emit,
    int32,
    int64,
    keep,
    local,
    locals_of,
    simplified,
    vector,
)
from packager.lower.cuda.algorithms.place_sort import MOST_INDICES, Places, sort_by_place
from packager.lower.legalize.accumulate import FULL
from packager.lower.legalize.scatter import REDUCTIONS, inside

# Of fewer slices each thread reads all indices.
MANY = 256
# Slices that a thread loads at a time.
AT_ONCE = 8
# Where a place has so many slices on average, and threads would not fill a GPU, parts of them are added up apart.
CROWDED, PART, MOST_PARTS, FULL_GPU = 64, 16, 64, 1 << 16
# Elements of vectors that are added up in float32.
WIDTHS = (4, 2, 1)

SORT_INDICES = "relax.packager.sort_indices"
SCATTER_SORTED = "relax.packager.scatter_sorted"


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
        whole, parts = scatter.joined(made, data, scatter.places), scatter.joined(made, updates, scatter.counts)
        found = _scattered(made, scatter, whole, order, parts)
        if whole is not data:
            found = relax.op.reshape(made.bind(found), extents_of(data))
        return made.ended(found)

    return relax.transform.Normalize()(map_bindings(module, rewritten))


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
    starts = made.bind(relax.op.reshape(order[1], [outer, places + 1, 1]))
    first, last = (made.bind(relax.op.strided_slice(starts, [1], [at], [places + at])) for at in (0, 1))
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


def sort_indices(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.sort_indices``."""
    indices, extents = call.args[0], call.args[1].values
    nests = Nests([indices.ty], call.ty.fields)
    (found,), (order, starts) = nests.inputs, nests.outputs
    (outer, number, _), _, (total,) = nests.extents
    ends = simplified(tirx.floordiv(int64(total), int64(outer)))  # one place more than there are
    own = [ends - 1] if len(extents) == 1 else [int64(extent) for extent in extents]

    few = isinstance(outer, tirx.IntImm) and isinstance(ends, tirx.IntImm) and int(number) <= MOST_INDICES
    kind = "int32" if few else "int64"  # of places, which are fewer than 2^31

    def key(which: Any, source: Any) -> Any:
        at = tirx.const(0, kind)
        for axis, extent in enumerate(own):
            index = keep(cast(found[which, source, axis], kind))
            at = at * cast(extent, kind) + inside(index, extent, kind)
        return cast(at, "int32")

    if few:
        sort_by_place(nests, Places(int(outer), int(number), int(ends) - 1, key), order, starts)
        return relax.Tuple(emit(builder, "sort_indices", nests.primfunc(), [indices], call.ty.fields))
    by_key = ByKey("int32", key, largest_first=False)
    result = merge_sort(nests, outer, number, number, int(number), by_key, into=order)
    with nests.grid("find_starts", outer, ends) as (which, place):
        low, high = local(int64(0)), local(int64(number))
        with T.While(low[0] < high[0]):
            middle = keep((low[0] + high[0]) >> int64(1))
            with T.If(result.keys[which * number + middle] < cast(place, "int32")):
                with T.Then():
                    low[0] = middle + 1
                with T.Else():
                    high[0] = middle
        starts[which * ends + place] = cast(low[0], "int32")
    return relax.Tuple(emit(builder, "sort_indices", nests.primfunc(), [indices], call.ty.fields))


def scatter_sorted(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.scatter_sorted`` by a block that has an axis for each of the result's, with a loop in it."""
    axis, (data, order, starts, updates) = int(call.attrs["axis"]), [operand.ty for operand in call.args]
    combine, dtype = REDUCTIONS[str(call.attrs["reduction"])], str(data.dtype)
    wide = FULL if dtype in HALVES else dtype
    nests = Nests([data, order, starts, updates], [call.ty])
    (old, order, starts, new), (into,) = nests.inputs, nests.outputs
    shape = nests.extents[0]
    width = _vector_width(shape[axis + 1 :])
    with nests.elements("scatter_sorted", shape, [old, order, starts, new], into, width) as at:
        outer, place, columns = at[:axis], at[axis], at[axis + 1 :]
        which = int64(0)
        for index, extent in zip(outer, shape, strict=False):
            which = which * extent + index
        held = locals_of(width, wide)

        def element(index: tuple[Any, ...], lane: Any) -> tuple[Any, ...]:
            return (*index[:-1], index[-1] + lane) if width > 1 else index

        with vector(width) as lane:
            held[lane] = cast(old[element(at, lane)], wide)
        begin = keep(which * (shape[axis] + 1) + place)
        first = keep(starts[begin])
        last = keep(starts[begin + 1])
        following = locals_of(AT_ONCE, "int32")  # what is read while the slices before are added up

        def follow(place: Any) -> None:
            for number in range(AT_ONCE):
                at_most = cast(tirx.max(tirx.min(place + number, last - 1), 0), "int64")
                following[number] = order[which * nests.extents[3][axis] + at_most]

        follow(first)
        with T.serial(int32(0), (last - first + (AT_ONCE - 1)) // AT_ONCE) as step:
            # Several at a time, so that a thread waits for all of their loads together.
            sources = [keep(following[number]) for number in range(AT_ONCE)]
            place_of = keep(first + step * AT_ONCE)
            follow(place_of + AT_ONCE)
            found = [locals_of(width, dtype) for _ in sources]
            for source, taken in zip(sources, found, strict=True):
                with vector(width) as lane:
                    taken[lane] = new[element((*outer, cast(source, "int64"), *columns), lane)]
            for number, taken in enumerate(found):
                with T.If(place_of + number < last), T.Then(), vector(width) as lane:
                    held[lane] = combine(held[lane], cast(taken[lane], wide))
        with vector(width) as lane:
            into[element(at, lane)] = cast(held[lane], dtype)
    function = nests.primfunc().with_attr("op_pattern", SUMS)
    return emit(builder, "scatter", function, [*call.args], [call.ty])[0]


def _vector_width(columns: Sequence[Any]) -> int:
    """Return how many elements of a row a thread adds up."""
    last = columns[-1] if columns else None
    return next(width for width in WIDTHS if width == 1 or (isinstance(last, tirx.IntImm) and int(last) % width == 0))


def _infer_order(call: Any, _builder: Any) -> Any:
    outer, number, _ = call.args[0].ty.shape.values
    ends = _product(call.args[1].values) + 1
    return relax.TupleType([relax.TensorType([outer * extent], "int32") for extent in (number, ends)])


register(SORT_INDICES, "The order of indices, and where each place begins", ("indices", "shape"), _infer_order)
register(
    SCATTER_SORTED,
    "Scatter of slices in an order",
    ("data", "order", "starts", "updates"),
    lambda call, _builder: call.args[0].ty,
)
