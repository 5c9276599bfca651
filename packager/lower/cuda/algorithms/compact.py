"""Lower positions of elements that are set, for GPUs: each knows its place by a prefix sum."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.lower.cuda.algorithms.nests import Nests, emit
from packager.lower.cuda.algorithms.prefix_sum import prefix_sums
from packager.lower.legalize.selection.positions import is_set


def compact(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.positions``."""
    data, dtype = call.args[0], str(call.args[0].ty.dtype)
    nests = Nests([data.ty], call.ty.fields)
    (x,), (indices, count) = nests.inputs, nests.outputs
    (size,), *_ = nests.extents
    zero, one = tirx.const(0, "int64"), tirx.const(1, "int64")

    def element(index: Any) -> Any:
        return tirx.Select(is_set(x[index], dtype), one, zero)

    sums = prefix_sums(nests, size, int(call.attrs["most"]), element)
    with nests.grid("scatter", size) as (index,), T.If(is_set(x[index], dtype)), T.Then():
        indices[sums.before(index)[0]] = index
    with nests.grid("count", 1) as (only,):
        count[only] = sums.total()[0]
    return relax.Tuple(emit(builder, "positions", nests.primfunc(), [data], call.ty.fields))
