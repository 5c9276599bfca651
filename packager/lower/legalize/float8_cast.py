"""Cast from and to float8_e4m3fn with integer arithmetic that vectorizes; TVM's casts do not."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx, topi
from tvm.ir import GenericConst

from packager.graph.narrow_types import NATIVE, decode, encode


def legalize_astype(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``astype``; values outside the range of float8_e4m3fn saturate."""
    source, target = str(call.args[0].ty.dtype), str(call.ty.dtype)

    def narrow(value: Any) -> Any:
        wide, dtype = (value, source) if source in ("float32", "float64") else (value.astype("float32"), "float32")
        return tirx.reinterpret(NATIVE, encode(NATIVE, wide, dtype, saturate=True))

    def widen(element: Any) -> Any:
        return decode(NATIVE, tirx.reinterpret("uint8", element)).astype(target)

    if isinstance(call.args[0], GenericConst) and call.args[0].ty.ndim == 0:
        return relax.const(call.args[0].value.numpy().item(), target)

    def compute(x: Any) -> Any:
        if NATIVE not in (source, target) or source == target:
            return topi.cast(x, target)
        element = widen if source == NATIVE else narrow
        return te.compute(x.shape, lambda *index: element(x(*index)), name="compute")

    return builder.call_te(compute, call.args[0], primfunc_name_hint="cast")
