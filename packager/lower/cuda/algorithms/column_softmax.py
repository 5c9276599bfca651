"""Lowers softmax and its logarithm over other axes than the last for GPUs: dual softmax (Sun et al. 2021, "LoFTR").

Elements of a column lie apart: a thread block for each would load a whole sector of memory for one. The largest and the
sum are reductions of columns, which have schedules, and what is computed of them fuses with what reads it. Of very few
elements a thread computes all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from tvm import relax, te, tirx, topi
from tvm.ir import Op

from packager.bundle.dtypes import HALVES
from packager.graph.dataflow import extents_of, operator_of
from packager.ir.pattern_kinds import INJECTIVE
from packager.lower.cuda.algorithms.short_reductions import MOST
from packager.lower.legalize.accumulate import FULL, legalize_softmax


def legalize_column_softmax(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``softmax`` or ``log_softmax``; half precision is computed in float32."""
    (data,), is_log = call.args, operator_of(call) == "nn.log_softmax"
    extents, dtype = extents_of(data), str(call.ty.dtype)
    axis = int(call.attrs.axis) % len(extents) if extents else -1
    if not extents or axis == len(extents) - 1:
        if is_log:
            return Op.get("relax.nn.log_softmax").get_attr("FLegalize")(builder, call)
        return legalize_softmax(builder, call)
    wide = FULL if dtype in HALVES else dtype

    def finished(value: Any, most: Any, total: Any) -> Any:
        shifted = value.astype(wide) - most.astype(wide)
        return (shifted - tirx.log(total) if is_log else tirx.exp(shifted) / total).astype(dtype)

    def emit(compute: Callable[..., Any], *operands: Any, **options: Any) -> Any:
        return builder.emit(builder.call_te(compute, *operands, primfunc_name_hint="column_softmax", **options))

    length = extents[axis]
    if isinstance(length, tirx.IntImm) and int(length) <= MOST:

        def whole(x: te.Tensor) -> te.Tensor:
            def element(*index: Any) -> Any:
                values = [x(*index[:axis], place, *index[axis + 1 :]) for place in range(int(length))]
                most = reduce(tirx.max, values)
                total = sum(tirx.exp(value.astype(wide) - most.astype(wide)) for value in values)
                return finished(x(*index), most, total)

            return te.compute(x.shape, element, name="column_softmax")

        return emit(whole, data, primfunc_attrs={"op_pattern": INJECTIVE})
    most = emit(lambda x: topi.max(x, axis, keepdims=True), data)
    total = emit(
        lambda x, m: topi.sum(topi.exp(topi.subtract(topi.cast(x, wide), topi.cast(m, wide))), axis, keepdims=True),
        *(data, most),
    )

    def columns(x: te.Tensor, m: te.Tensor, t: te.Tensor) -> te.Tensor:
        def element(*index: Any) -> Any:
            column = (*index[:axis], 0, *index[axis + 1 :])
            return finished(x(*index), m(*column), t(*column))

        return te.compute(x.shape, element, name="column_softmax")

    return emit(columns, data, most, total)
