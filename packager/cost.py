"""Estimate what a call of a kernel costs: FLOPs, and bytes read and written, at the dims' maxima."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.tirx import stmt as st

from packager import symbolic
from packager.ir import Extent, Kernel
from packager.manifest import Dim

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max)


@dataclass(frozen=True)
class Cost:
    """FLOPs and bytes of one call. Each operand counts once, however often it is loaded."""

    flops: int
    bytes_read: int
    bytes_written: int


def estimate(kernel: Kernel, names: Mapping[int, Extent], dims: Mapping[str, Dim]) -> Cost:
    """Return the cost of a call; ``names`` gives the kernel's shape variables as extents over the dims."""
    read = written = 0
    for parameter, buffer in zip(kernel.parameters, kernel.primfunc.params, strict=True):
        bits = tvm.runtime.DataType(str(buffer.dtype)).bits
        nbytes = math.prod(symbolic.maximum(e, names, dims) for e in buffer.shape) * ((bits + 7) // 8)
        if parameter.written:
            written += nbytes
        else:
            read += nbytes
    return Cost(_flops(kernel.primfunc.body, names, dims), read, written)


def _flops(node: Any, names: Mapping[int, Extent], dims: Mapping[str, Dim]) -> int:
    """Count floating-point operations of all stores, times the extents of the loops around them."""
    match node:
        case st.For():
            return symbolic.maximum(node.extent, names, dims) * _flops(node.body, names, dims)
        case st.SeqStmt():
            return sum(_flops(part, names, dims) for part in node.seq)
        case s_tir.SBlockRealize():
            return _flops(node.block.body, names, dims)
        case st.IfThenElse():
            parts = [node.then_case] + ([node.else_case] if node.else_case is not None else [])
            return max(_flops(part, names, dims) for part in parts)
        case st.BufferStore():
            return _operations(node.value)
    return 0


def _operations(value: Any) -> int:
    """Count the floating-point operations of an expression; a call of a math function counts as one."""
    count = 0
    stack = [value]
    while stack:
        expr = stack.pop()
        if not str(expr.ty).startswith(("float", "bfloat")):
            if isinstance(expr, tirx.Cast | tirx.Select):
                stack.append(expr.value if isinstance(expr, tirx.Cast) else expr.condition)
            continue
        if isinstance(expr, _ARITHMETIC):
            count += 1
            stack += [expr.a, expr.b]
        elif isinstance(expr, tirx.Cast):
            stack.append(expr.value)
        elif isinstance(expr, tirx.Select):
            stack += [expr.true_value, expr.false_value]
        elif isinstance(expr, tvm.ir.Call):
            selects = "if_then_else" in str(getattr(expr.op, "name", ""))
            count += 0 if selects else 1
            stack += list(expr.args[1:] if selects else expr.args)
    return count
