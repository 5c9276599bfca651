"""Lower argmax and argmin for GPUs to a maximum of integers, which is scheduled as all reductions are.

An integer has the key of an element above 32 bits that are larger the earlier the element is, so that of equal ones the
first is found. NaN is better than all numbers, as in torch and numpy. Of elements of 64 bits the best is found first,
then the first of those that equal it.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx, topi

from packager.graph.dataflow import operator_of
from packager.ir.pattern_kinds import SUMS
from packager.lower.keys import key_of, key_type
from packager.lower.legalize.min_max import kept_indices, legalize_arg, reduced_shape

_LATEST = 0xFFFFFFFF


def legalize_best_index(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``argmax`` or ``argmin``."""
    name, dtype, axis = operator_of(call), str(call.args[0].ty.dtype), call.attrs.axis
    if dtype == "uint64":  # whose keys are no int64
        return legalize_arg(builder, call)
    if axis is None:  # reductions are scheduled along axes
        row = builder.emit(relax.op.reshape(call.args[0], [1, -1]))
        return relax.op.reshape(builder.emit(getattr(relax.op, name)(row, 1)), call.ty.shape)
    keepdims = bool(call.attrs.keepdims)

    def compute(operand: Any) -> Any:
        shape, rank = operand.shape, len(operand.shape)
        along = int(axis) % rank
        result = reduced_shape(shape, [along], keepdims)

        def reduced(combine: Any, value: Any, label: str) -> Any:
            """Reduce what ``value`` makes of a key and of the index of its element; ``of`` returns a result's."""
            loop = te.reduce_axis((0, shape[along]), name="k")

            def element(*at: Any) -> Any:
                place = [*kept_indices(at, [along], keepdims)]
                place.insert(along, loop.var)
                return combine(value(_key(operand(*place), dtype, name == "argmin"), loop.var, at), loop)

            return te.compute(result, element, name=label)

        if key_type(dtype) == "int64":
            best = reduced(te.max, lambda key, _index, _at: key, "best")
            none = tirx.max_value("int64")
            found = reduced(te.min, lambda key, index, at: tirx.Select(key == best(*at), index, none), "first")
            return topi.cast(found, str(call.ty.dtype))
        latest = tirx.const(_LATEST, "int64")
        best = reduced(te.max, lambda key, index, _at: (key << 32) + (latest - index), "best")
        return te.compute(result, lambda *at: (latest - (best(*at) & latest)).astype(str(call.ty.dtype)), name="index")

    fusable = {"op_pattern": SUMS}
    return builder.call_te(compute, call.args[0], primfunc_name_hint=name, primfunc_attrs=fusable)


def _key(value: Any, dtype: str, least: bool) -> Any:
    """Return an integer (int64) that is greater the better an element is."""
    key = key_of(value, dtype).astype("int64")
    if not least:
        return key
    reverse = ~key
    return tirx.Select(tirx.isnan(value), key, reverse) if "float" in dtype else reverse
