"""Lower positions of elements that are set, for CPUs: one pass."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.lower.tir_loops import emit_sequential


def is_set(value: Any, dtype: str) -> Any:
    """Tell whether a value is nonzero or NaN, for which LLVM's ordered comparison is false."""
    if dtype == "bool":
        return value
    different = value != tirx.const(0, dtype)
    return tirx.any(different, tirx.isnan(value)) if dtype.startswith(("float", "bfloat")) else different


def legalize_positions(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.positions``."""
    data = call.args[0]
    number, dtype = data.ty.shape.values[0], str(data.ty.dtype)

    def body(x: Any, indices: Any, count: Any) -> None:
        count[0] = tirx.const(0, "int64")
        with T.serial(0, number) as i, T.If(is_set(x[i], dtype)), T.Then():
            indices[count[0]] = i
            count[0] = count[0] + tirx.const(1, "int64")

    results = [((number,), "int64"), ((1,), "int64")]
    return relax.Tuple(emit_sequential(builder, "positions", [data], results, body))
