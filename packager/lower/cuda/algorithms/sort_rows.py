"""Lower TopK for GPUs: find the few best elements of rows by ranks, or sort rows by keys and gather the first ones."""

from __future__ import annotations

from typing import Any

from tvm import relax

from packager.lower.cuda.algorithms.few_best import few_best, levels_of
from packager.lower.cuda.algorithms.merge_sort import ByKey, merge_sort
from packager.lower.cuda.algorithms.nests import Nests, cast, emit, keep
from packager.lower.keys import key_of, key_type


def sort_rows(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.top_k``."""
    data, dtype, largest = call.args[0], str(call.args[0].ty.dtype), bool(int(call.attrs["largest"]))
    nests = Nests([data.ty], call.ty.fields)
    (x,), (values, indices) = nests.inputs, nests.outputs
    (rows, size), (_, k), _ = nests.extents

    def key(row: Any, index: Any) -> Any:
        return key_of(x[row, index], dtype)

    def write(row: Any, place: Any, index: Any) -> None:
        indices[row, place] = index
        values[row, place] = x[row, index]

    order = ByKey(key_type(dtype), key, largest)
    if (groups := levels_of(rows, size, k, order.dtype)) is not None:
        few_best(nests, rows, int(size), int(k), order, groups, write)
    else:
        found = merge_sort(nests, rows, size, k, int(call.attrs["most"]), order, with_keys=False)
        with nests.grid("gather", rows, found.k) as (row, place):
            write(row, place, keep(cast(found.indices[row * found.k + place], "int64")))
    return relax.Tuple(emit(builder, "top_k", nests.primfunc(), [data], call.ty.fields))
