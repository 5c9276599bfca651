"""Emits PrimFuncs of one sequential loop nest, for loops with carried dependencies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, relax, s_tir, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)


def emit_sequential(
    builder: Any,
    name: str,
    operands: Sequence[Any],
    results: Sequence[tuple[Sequence[int], str]],
    body: Callable[..., None],
) -> list[Any]:
    """Emit a call of a PrimFunc that ``body`` writes with TVM's IR builder; return its results.

    ``results`` holds shapes and element types. ``body`` gets operands and results as flat buffers.
    """

    call = builder.call_te(lambda *x: sequential(name, x, results, body), *operands, primfunc_name_hint=name)
    function = call.args[0]
    primfunc = builder.get()[function]
    builder.update_func(function, _in_a_loop(primfunc, name, len(operands)))
    result = builder.emit(call)
    if not isinstance(result.ty, relax.TupleType):
        return [result]
    return [builder.emit(relax.TupleGetItem(result, number)) for number in range(len(result.ty.fields))]


def sequential(
    name: str, tensors: Sequence[Any], results: Sequence[tuple[Sequence[Any], str]], body: Callable[..., None]
) -> Any:
    """Return the results of an extern operation that ``body`` writes with TVM's IR builder, from flat buffers."""

    def generate(ins: Any, outs: Any) -> Any:
        with IRBuilder() as ib:
            with T.seq_scope():
                body(*(T.buffer_proxy(buffer) for buffer in (*ins, *outs)))
            return ib.get()

    shapes, dtypes = [tuple(shape) for shape, _ in results], [dtype for _, dtype in results]
    buffers = [
        tirx.decl_buffer(shape, dtype, f"{name}_{number}", layout=None)
        for number, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    return te.extern(shapes, list(tensors), generate, dtype=dtypes, out_buffers=buffers, name=name)


def _in_a_loop(primfunc: tirx.PrimFunc, name: str, inputs: int) -> tirx.PrimFunc:
    """Wrap the statements of a function in a block under a loop of one iteration, as schedules require."""
    statement = primfunc.body.block.body
    while isinstance(statement, tirx.AttrStmt):
        statement = statement.body
    buffers = [parameter for parameter in primfunc.params if tirx.buffer.is_buffer_var(parameter)]
    loop, one = tirx.Var("step", "int64"), tirx.const(1, "int64")
    variable = tirx.IterVar(ir.Range.from_min_extent(tirx.const(0, "int64"), one), tirx.Var("v_step", "int64"), 0)
    regions = [
        tirx.BufferRegion(buffer, [ir.Range.from_min_extent(tirx.const(0, "int64"), extent) for extent in buffer.shape])
        for buffer in buffers
    ]
    block = s_tir.SBlock([variable], regions[:inputs], regions[inputs:], name, statement)
    realized = s_tir.SBlockRealize([loop], tirx.const(1, "bool"), block)
    nest = tirx.For(loop, tirx.const(0, "int64"), one, tirx.ForKind.SERIAL, realized)
    root = s_tir.SBlock([], [], [], "root", nest)
    return primfunc.with_body(s_tir.SBlockRealize([], tirx.const(1, "bool"), root))
