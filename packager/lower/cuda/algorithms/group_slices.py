"""Lower distinct slices for GPUs: sort them, and number the groups of equal ones by a prefix sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.lower.cuda.algorithms.merge_sort import ByKey, Order, merge_sort
from packager.lower.cuda.algorithms.nests import Nests, cast, emit, int64, local
from packager.lower.cuda.algorithms.prefix_sum import prefix_sums
from packager.lower.keys import key_of, key_type


@dataclass(frozen=True)
class _BySlices:
    """Slices [outer, n, inner] in lexicographic order; what is sorted are their indices."""

    data: Any
    outer: Any
    inner: Any
    dtype: str = "int32"

    def key(self, _row: Any, index: Any) -> Any:
        """Return the index."""
        return cast(index, "int32")

    def precedes(self, _row: Any, a: Any, b: Any) -> Any:
        """Write the comparison of two slices up to the first elements that differ."""
        a, b, kind = local(cast(a, "int64")), local(cast(b, "int64")), str(self.data.dtype)
        at, result = local(int64(0)), local(tirx.const(0, "int32"))
        with T.While(tirx.all(result[0] == 0, at[0] < self.outer * self.inner)):
            row, column = tirx.truncdiv(at[0], self.inner), tirx.truncmod(at[0], self.inner)
            left, right = (local(key_of(self.data[row, i[0], column], kind)) for i in (a, b))
            with T.If(left[0] < right[0]), T.Then():
                result[0] = tirx.const(-1, "int32")
            with T.If(left[0] > right[0]), T.Then():
                result[0] = tirx.const(1, "int32")
            at[0] = at[0] + 1
        return result[0] < 0


def group_slices(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.unique``."""
    data, most, in_order = call.args[0], int(call.attrs["most"]), bool(int(call.attrs["in_order"]))
    nests = Nests([data.ty], call.ty.fields)
    (x,), (values, firsts, inverse, counts, count) = nests.inputs, nests.outputs
    (outer, size, inner), *_ = nests.extents
    kind, one, zero = str(data.ty.dtype), tirx.const(1, "int64"), tirx.const(0, "int64")
    single = all(isinstance(extent, tirx.IntImm) and int(extent) == 1 for extent in (outer, inner))
    by_key = ByKey(key_type(kind), lambda _row, index: key_of(x[zero, index, zero], kind), largest_first=False)
    order: Order = by_key if single else _BySlices(x, outer, inner)
    found = merge_sort(nests, one, size, size, most, order)
    # The first of a group in the order of the sort has the least index, too: the sort is stable.
    begins = nests.workspace([size], "uint8")
    with nests.grid("begin_groups", size) as (place,):
        begins[place] = tirx.const(1, "uint8")
        with T.If(place > zero), T.Then():
            differs = order.precedes(zero, found.keys[place - 1], found.keys[place])
            begins[place] = tirx.Select(differs, tirx.const(1, "uint8"), tirx.const(0, "uint8"))
    groups = prefix_sums(nests, size, most, lambda place: cast(begins[place], "int64"))
    # By group: where it begins in the order of the sort, and the index of its first slice.
    starts, first = nests.workspace([size], "int64"), nests.workspace([size], "int64")
    group_of = nests.workspace([size], "int64")
    appears = None if in_order else nests.workspace([size], "uint8")
    with nests.grid("number_groups", size) as (place,):
        group = local(groups.before(place)[0] + cast(begins[place], "int64") - 1)
        index = local(cast(found.indices[place], "int64"))
        group_of[index[0]] = group[0]
        if appears is not None:
            appears[index[0]] = begins[place]
        with T.If(begins[place] != tirx.const(0, "uint8")), T.Then():
            starts[group[0]] = place
            first[group[0]] = index[0]
    with nests.grid("count", 1) as (only,):
        count[only] = groups.total()[0]
    number = group_of
    if appears is not None:
        # Groups are numbered anew, in the order of their first slices.
        ranks = prefix_sums(nests, size, most, lambda index: cast(appears[index], "int64"))
        number = nests.workspace([size], "int64")
        with nests.grid("rank_groups", size) as (group,), T.If(group < count[0]), T.Then():
            number[group] = ranks.before(first[group])[0]
    with nests.grid("gather", size) as (place,):
        inverse[place] = group_of[place] if in_order else number[group_of[place]]
        with T.If(place < count[0]), T.Then():
            target = local(place if in_order else number[place])
            end = local(size)
            with T.If(place + 1 < count[0]), T.Then():
                end[0] = starts[place + 1]
            firsts[target[0]] = first[place]
            counts[target[0]] = end[0] - starts[place]
    with nests.grid("gather_slices", outer, size, inner) as (row, place, column), T.If(place < count[0]), T.Then():
        values[row, place, column] = x[row, firsts[place], column]
    return relax.Tuple(emit(builder, "unique", nests.primfunc(), [data], call.ty.fields))
