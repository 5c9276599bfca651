"""Legalizes forward substitutions: matrices are independent of each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import relax
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.bundle.dtypes import wide_type
from packager.lower.tir_loops import emit_rows, int64, numbers


def substitute_in_rows(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.forward_substitution``, in float32 what is of half precision."""
    matrices, dtype = call.args[0], str(call.ty.dtype)
    wide = wide_type(dtype)
    if wide != dtype:
        matrices = builder.emit(relax.op.astype(matrices, wide))

    def shapes(given: Any) -> tuple[Any, list[tuple[list[Any], str]]]:
        return int64(math.prod(numbers(given.shape)[:-2])), [(list(given.shape), wide)]

    def body(buffers: Sequence[Any], given: Sequence[Sequence[Any]], row: Any) -> None:
        source, result = buffers
        size = int64(numbers(given[0])[-1])
        first = T.bind(row * size * size)
        with T.serial(0, size) as i:
            with T.serial(0, size) as j:
                result[first + i * size + j] = source[first + i * size + j]
            with T.serial(0, i) as k, T.serial(0, i) as j:
                product = source[first + i * size + k] * result[first + k * size + j]
                result[first + i * size + j] = result[first + i * size + j] + product

    found = emit_rows(builder, "forward_substitution", [matrices], shapes, body)[0]
    return builder.emit(relax.op.astype(found, dtype)) if wide != dtype else found
