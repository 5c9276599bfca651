"""Legalizes linear recurrences for CPUs: the elements of a step are independent of each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.bundle.dtypes import wide_type
from packager.lower.tir_loops import emit_rows, int64, numbers


def legalize_linear_scan(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.linear_scan``."""
    dtype = str(call.ty.dtype)
    wide = wide_type(dtype)

    def shapes(_decay: Any, update: Any) -> tuple[Any, list[tuple[list[Any], str]]]:
        return int64(math.prod(numbers(update.shape)[1:])), [(list(update.shape), dtype)]

    def body(buffers: Sequence[Any], given: Sequence[Sequence[Any]], row: Any) -> None:
        decay, update, result = buffers
        steps, *extents = numbers(given[1])
        count = int64(math.prod(extents))
        state = T.buffer_proxy(T.alloc_local([1], wide))
        state[0] = tirx.const(0.0, wide)
        with T.serial(0, int64(steps)) as step:
            place = T.bind(step * count + row)
            state[0] = decay[place].astype(wide) * state[0] + update[place].astype(wide)
            result[place] = state[0].astype(dtype)

    return emit_rows(builder, "linear_scan", list(call.args), shapes, body)[0]
