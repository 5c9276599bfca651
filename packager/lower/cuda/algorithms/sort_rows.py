"""Lower TopK for GPUs: sort rows by keys, and gather the first elements."""

from __future__ import annotations

from typing import Any

from tvm import relax

from packager.lower.cuda.algorithms.merge_sort import ByKey, merge_sort
from packager.lower.cuda.algorithms.nests import Nests, cast, emit
from packager.lower.keys import key_of, key_type


def sort_rows(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.top_k``."""
    data, dtype = call.args[0], str(call.args[0].ty.dtype)
    nests = Nests([data.ty], call.ty.fields)
    (x,), (values, indices) = nests.inputs, nests.outputs
    (rows, size), (_, k), _ = nests.extents

    def key(row: Any, index: Any) -> Any:
        return key_of(x[row, index], dtype)

    order = ByKey(key_type(dtype), key, bool(int(call.attrs["largest"])))
    found = merge_sort(nests, rows, size, k, int(call.attrs["most"]), order, with_keys=False)
    with nests.grid("gather", rows, found.k) as (row, place):
        index = cast(found.indices[row * found.k + place], "int64")
        indices[row, place] = index
        values[row, place] = x[row, index]
    return relax.Tuple(emit(builder, "top_k", nests.primfunc(), [data], call.ty.fields))
