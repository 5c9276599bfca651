"""Lower TopK for GPUs: sort rows by keys, and gather the first elements.

Of the few best elements of long rows, none is in a group of adjacent elements unless the best of the group is among the
few best of all groups: as many groups are found first, and their elements sorted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.lower.cuda.algorithms.merge_sort import ByKey, merge_sort
from packager.lower.cuda.algorithms.nests import Nests, cast, emit, int64, keep, local
from packager.lower.keys import key_of, key_type

# Groups have so many elements at least, and sorts of groups and of their elements so many fewer than the row.
LEAST_GROUP, FEWER = 4, 3
# Keys that an index fits beside, in 64 bits.
SHORT_KEYS = ("int8", "uint8", "int16", "uint16", "int32")

Index = Callable[[Any, Any], Any]


def sort_rows(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.top_k``."""
    data, dtype, largest = call.args[0], str(call.args[0].ty.dtype), bool(int(call.attrs["largest"]))
    nests = Nests([data.ty], call.ty.fields)
    (x,), (values, indices) = nests.inputs, nests.outputs
    (rows, size), (_, k), _ = nests.extents

    def key(row: Any, index: Any) -> Any:
        return key_of(x[row, index], dtype)

    order = ByKey(key_type(dtype), key, largest)
    if group := _group_size(size, k, order.dtype):
        kept, index_of = k, _best_of_groups(nests, rows, int(size), int(k), order, group)
    else:
        found = merge_sort(nests, rows, size, k, int(call.attrs["most"]), order, with_keys=False)
        kept, index_of = found.k, lambda row, place: cast(found.indices[row * found.k + place], "int64")
    with nests.grid("gather", rows, kept) as (row, place):
        index = keep(index_of(row, place))
        indices[row, place] = index
        values[row, place] = x[row, index]
    return relax.Tuple(emit(builder, "top_k", nests.primfunc(), [data], call.ty.fields))


def _group_size(size: Any, k: Any, kind: str) -> int:
    """Return how many adjacent elements are a group, 0 if there are none: sorts of both sizes are about the same."""
    if kind not in SHORT_KEYS or not all(isinstance(extent, tirx.IntImm) and int(extent) for extent in (size, k)):
        return 0
    group = 1 << round(math.log2(int(size) / int(k)) / 2)
    groups = -(-int(size) // group)
    few = groups >= int(k) and FEWER * (groups + int(k) * group) <= int(size)
    return group if few and group >= LEAST_GROUP else 0


def _best_of_groups(nests: Nests, rows: Any, size: int, k: int, order: ByKey, group: int) -> Index:
    """Write the nests that sort the elements of the ``k`` best groups; return the index of a row's element by place.

    Of equal elements the first ones are the best, in groups and among them.
    """
    groups = -(-size // group)
    bests = nests.workspace([rows * groups], order.dtype)
    with nests.grid("best_of_groups", rows, groups) as (row, which):
        best = local(order.key(row, which * group))
        with T.serial(int64(1), int64(group)) as other:
            key = keep(order.key(row, tirx.min(which * group + other, int64(size - 1))))
            best[0] = tirx.Select(order.precedes(row, key, best[0]), key, best[0])
        bests[row * groups + which] = best[0]
    of_groups = ByKey(order.dtype, lambda row, which: bests[row * groups + which], order.largest_first)
    chosen = merge_sort(nests, rows, groups, k, groups, of_groups, with_keys=False)

    def element(row: Any, at: Any) -> Any:
        which = keep(chosen.indices[row * chosen.k + tirx.truncdiv(at, int64(group))])
        return keep(cast(which, "int64") * group + tirx.truncmod(at, int64(group)))

    def key_and_index(row: Any, at: Any) -> Any:
        """Return both in 64 bits, as which no two are equal; an element behind the last is the last."""
        index = element(row, at)
        key = keep(cast(order.key(row, tirx.min(index, int64(size - 1))), "int64") << int64(32))
        last = tirx.const(-(2**63) if order.largest_first else 2**63 - 1, "int64")
        both = key + (int64(2**31 - 1) - index if order.largest_first else index)
        return tirx.Select(index < size, both, last)

    elements = ByKey("int64", key_and_index, order.largest_first)
    found = merge_sort(nests, rows, k * group, k, k * group, elements, with_keys=False)
    return lambda row, place: element(row, cast(found.indices[row * found.k + place], "int64"))
