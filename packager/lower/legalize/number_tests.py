"""Tests of bfloat16 numbers, which TVM has for other types only; they are exact in float32."""

from __future__ import annotations

from typing import Any

from tvm import relax, topi

from packager.graph.dataflow import operator_of


def legalize_number_test(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``isnan``, ``isinf`` or ``isfinite``."""
    name = operator_of(call)
    test = getattr(topi, name)

    def compute(data: Any) -> Any:
        return test(topi.cast(data, "float32") if data.dtype == "bfloat16" else data)

    return builder.call_te(compute, call.args[0], primfunc_name_hint=name)
