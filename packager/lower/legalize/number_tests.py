"""Tests of numbers, and their negation.

TVM has the tests of other types than bfloat16 only; they are exact in float32. It negates a comparison by the opposite
one, of which a NaN makes neither true.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, topi

from packager.graph.dataflow import operator_of


def legalize_number_test(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``isnan``, ``isinf`` or ``isfinite``."""
    name = operator_of(call)
    test = getattr(topi, name)

    def compute(data: Any) -> Any:
        return test(topi.cast(data, "float32") if data.dtype == "bfloat16" else data)

    return builder.call_te(compute, call.args[0], primfunc_name_hint=name)


def legalize_negation(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``logical_not`` as a comparison with 0, which hides the comparison that it negates."""

    def compute(data: Any) -> Any:
        return te.compute(data.shape, lambda *i: data(*i).astype("uint8") == 0, name="logical_not")

    return builder.call_te(compute, call.args[0], primfunc_name_hint="logical_not")
