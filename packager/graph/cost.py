"""Estimates the cost of a kernel or partition: FLOPs, and bytes read and written, with the dims at their maxima."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax, s_tir, tirx
from tvm.tirx import stmt as st

from packager.bundle.manifest import Dim
from packager.graph import block_weights, symbolic, tree_ensemble
from packager.graph.dataflow import bindings_of
from packager.graph.products import grouped
from packager.graph.recurrences import recurrent
from packager.graph.rewrite import nodes_of
from packager.ir.primitives import Cost, Kernel
from packager.ir.shapes import Extent

_FLOATING = ("float", "bfloat")
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max)


def estimate(kernel: Kernel, names: Mapping[Any, Extent], dims: Mapping[str, Dim]) -> Cost:
    """Return the cost of a call; ``names`` maps the kernel's shape variables to extents over the dims."""
    read = written = 0
    for parameter, buffer in zip(kernel.parameters, kernel.primfunc.params, strict=True):
        bits = tvm.runtime.DataType(str(buffer.dtype)).bits
        nbytes = math.prod(symbolic.maximum(e, names, dims) for e in buffer.shape) * ((bits + 7) // 8)
        if parameter.written:
            written += nbytes
        else:
            read += nbytes
    return Cost(_flops(kernel.primfunc.body, names, dims), read, written)


def estimate_function(function: Any, names: Mapping[Any, Extent], dims: Mapping[str, Dim]) -> Cost:
    """Return the cost of a Relax function of operators; ``names`` maps its shape variables to extents.

    Products count two operations per multiply-add, of any type; other floating-point operators count
    one per element read or written, whichever is more.
    """

    def elements(ty: Any) -> int:
        types = list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]
        shapes = [t.shape.values for t in types if isinstance(getattr(t, "shape", None), relax.ShapeExpr)]
        return sum(math.prod(symbolic.maximum(e, names, dims) for e in shape) for shape in shapes)

    def nbytes(ty: Any) -> int:
        types = list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]
        return sum(elements(t) * ((tvm.runtime.DataType(str(t.dtype)).bits + 7) // 8) for t in types)

    flops = 0
    for binding in bindings_of(function):
        call = binding.value
        if not isinstance(call, relax.Call):
            continue
        written = elements(binding.var.ty)
        products = written * _multiplications(call, names, dims) or _scattered(call, elements, names, dims)
        if getattr(call.op, "name", "") == tree_ensemble.NAME:
            products = written * tree_ensemble.comparisons(call)
        if not products and str(getattr(binding.var.ty, "dtype", "")).startswith(_FLOATING):
            products = max([written, *(elements(a.ty) for a in call.args if isinstance(a.ty, relax.TensorType))])
        flops += products
    read = sum(nbytes(parameter.ty) for parameter in function.params)
    return Cost(flops, read, nbytes(function.ret_ty))


def _multiplications(call: Any, names: Mapping[Any, Extent], dims: Mapping[str, Dim]) -> int:
    """Return the operations of products per output element: a matmul's, a convolution's, a recurrent layer's; or 0."""
    name = getattr(call.op, "name", "")
    if name in ("relax.matmul", block_weights.MATMUL):
        return 2 * symbolic.maximum(call.args[0].ty.shape.values[-1], names, dims)
    if name == grouped.NAME:
        return 2 * int(call.args[1].ty.shape.values[1])
    if name == recurrent.NAME:  # with the rows of all gates of a direction
        return 2 * int(call.args[1].ty.shape.values[1])
    if name.startswith("relax.nn.conv") and not name.endswith("transpose"):
        layout = str(call.attrs.kernel_layout)
        weight = call.args[1].ty.shape.values
        return 2 * math.prod(
            symbolic.maximum(e, names, dims) for e, axis in zip(weight, layout, strict=True) if axis != "O"
        )
    return 0


def _scattered(call: Any, elements: Callable[[Any], int], names: Mapping[Any, Extent], dims: Mapping[str, Dim]) -> int:
    """Return the operations of a transposed convolution, each input of which is multiplied with its filters; or 0."""
    name = getattr(call.op, "name", "")
    if not (name.startswith("relax.nn.conv") and name.endswith("transpose")):
        return 0
    layout, weight = str(call.attrs.kernel_layout), call.args[1].ty.shape.values
    kept = (e for e, axis in zip(weight, layout, strict=True) if axis != "I")
    return 2 * elements(call.args[0].ty) * math.prod(symbolic.maximum(e, names, dims) for e in kept)


def _flops(node: Any, names: Mapping[Any, Extent], dims: Mapping[str, Dim]) -> int:
    """Count the floating-point operations of all stores, times the extents of their loops; one that data give is 1."""
    match node:
        case st.For() if nodes_of(node.extent, tvm.ir.TensorLoad):
            return _flops(node.body, names, dims)
        case st.For():
            times = symbolic.maximum(node.extent, names, dims)
            return times * _flops(node.body, *_with_variable(node.loop_var, times, names, dims))
        case st.SeqStmt():
            return sum(_flops(part, names, dims) for part in node.seq)
        case s_tir.SBlockRealize():
            # Extents of loops may depend on variables around them, such as those of tiles with a rest.
            for variable in node.block.iter_vars:
                times = symbolic.maximum(variable.dom.extent, names, dims)
                names, dims = _with_variable(variable.var, times, names, dims)
            return _flops(node.block.body, names, dims)
        case st.IfThenElse():
            parts = [node.then_case] + ([node.else_case] if node.else_case is not None else [])
            return max(_flops(part, names, dims) for part in parts)
        case st.BufferStore():
            return _operations(node.value)
    return 0


def _with_variable(
    variable: Any, times: int, names: Mapping[Any, Extent], dims: Mapping[str, Dim]
) -> tuple[Mapping[Any, Extent], Mapping[str, Dim]]:
    """Return names and dims along with a variable from 0 on."""
    name = f"variable_{len(names)}"
    return {**names, variable: name}, {**dims, name: Dim(name, 0, max(0, times - 1))}


def _operations(value: Any) -> int:
    """Count the floating-point operations of an expression; a math function call counts as one."""
    count = 0
    stack = [value]
    while stack:
        expr = stack.pop()
        if not str(expr.ty).startswith(_FLOATING):
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
