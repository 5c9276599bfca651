"""Kernels of scatters in an order: indices are sorted by their places, then each place takes what is its.

The order is stable, so that an element gets its updates in the order of the indices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.bundle.dtypes import HALVES
from packager.graph.own_operators import register
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
from packager.lower.cuda.algorithms.scatters.place_sort import MOST_INDICES, Places, sort_by_place
from packager.lower.legalize.accumulate import FULL
from packager.lower.legalize.scatter import REDUCTIONS, inside

# Slices that a thread loads at a time.
AT_ONCE = 8
# Elements of vectors that are added up in float32.
WIDTHS = (4, 2, 1)

SORT_INDICES = "relax.packager.sort_indices"
SCATTER_SORTED = "relax.packager.scatter_sorted"


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
    ends = math.prod(call.args[1].values, start=int64(1)) + 1
    return relax.TupleType([relax.TensorType([outer * extent], "int32") for extent in (number, ends)])


register(SORT_INDICES, "The order of indices, and where each place begins", ("indices", "shape"), _infer_order)
register(
    SCATTER_SORTED,
    "Scatter of slices in an order",
    ("data", "order", "starts", "updates"),
    lambda call, _builder: call.args[0].ty,
)
