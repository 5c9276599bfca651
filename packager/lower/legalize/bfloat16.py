"""Lowers what LLVM has no vectors of bfloat16 for in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from packager.lower.legalize.float8_cast import legalize_astype

_Legalize = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]
BFLOAT16 = "bfloat16"


def in_float32(legalize: _Legalize) -> _Legalize:
    """Return what legalizes a call whose operands and result are tensors of one type, of bfloat16 by casts."""

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if str(call.ty.dtype) != BFLOAT16:
            return legalize(builder, call)
        operands = [_cast(builder, operand, "float32") for operand in call.args]
        wide = builder.normalize(relax.Call(call.op, operands, call.attrs))
        return _cast(builder, builder.emit(legalize(builder, wide)), BFLOAT16)

    return legalized


def _cast(builder: relax.BlockBuilder, data: Any, dtype: str) -> relax.Expr:
    return builder.emit(legalize_astype(builder, builder.normalize(relax.op.astype(data, dtype))))
