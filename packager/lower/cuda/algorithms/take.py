"""Lower gathers for GPUs by functions that fuse with what makes their indices and with what reads their slices."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from packager.ir.pattern_kinds import INJECTIVE
from packager.transforms.clamp_indices import legalize_take


def legalize_fused_take(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``take`` with numpy's semantics of negative indices; what is beyond the extent is clamped later."""
    if call.attrs.axis is None or call.attrs.mode not in ("fast", "wrap"):
        return legalize_take(builder, call)

    def gather(data: Any, indices: Any) -> Any:
        axis, rank = int(call.attrs.axis) % len(data.shape), len(indices.shape)

        def element(*at: Any) -> Any:
            index = indices(*at[axis : axis + rank])
            if str(index.ty).startswith("int"):
                index = tirx.if_then_else(index < 0, index + tirx.Cast(index.ty, data.shape[axis]), index)
            return data(*at[:axis], index, *at[axis + rank :])

        return te.compute((*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]), element, name="take")

    attributes = {"op_pattern": INJECTIVE}  # TVM does not see it: where an element is read from is data
    return builder.call_te(gather, *call.args, primfunc_name_hint="take", primfunc_attrs=attributes)
