"""Emits PrimFuncs of loop nests that TE has no form for: with carried dependencies, or with extents that data give."""

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
    return _emitted(builder, call, name, len(operands), tirx.const(1, "int64"), None)


def emit_rows(
    builder: Any,
    name: str,
    operands: Sequence[Any],
    shapes: Callable[..., tuple[Any, Sequence[tuple[Sequence[Any], str]]]],
    body: Callable[[Sequence[Any], Sequence[Any], Any], None],
) -> list[Any]:
    """Emit a call of a PrimFunc that computes rows independently of each other, in parallel; return its results.

    ``shapes`` gets the operands as TE tensors, and returns the number of rows, and shapes and element types of the
    results. ``body`` gets operands and results as flat buffers, the operands' shapes, and the number of a row.
    """
    row, found = tirx.Var("row", "int64"), list[Any]()

    def compute(*tensors: Any) -> Any:
        count, results = shapes(*tensors)
        found.append(count)
        given = [tensor.shape for tensor in tensors]
        return sequential(name, tensors, results, lambda *buffers: body(buffers, given, row))

    call = builder.call_te(compute, *operands, primfunc_name_hint=name)
    return _emitted(builder, call, name, len(operands), found[-1], row)


def _emitted(builder: Any, call: Any, name: str, inputs: int, rows: Any, row: Any | None) -> list[Any]:
    function = call.args[0]
    primfunc = builder.get()[function]
    builder.update_func(function, _in_a_loop(primfunc, name, inputs, rows, row))
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


def whole_region(buffer: Any) -> Any:
    """Return all of a buffer, as what a block declares to read or write."""
    zero = tirx.const(0, "int64")
    return tirx.BufferRegion(buffer, [ir.Range.from_min_extent(zero, extent) for extent in buffer.shape])


def _in_a_loop(primfunc: tirx.PrimFunc, name: str, inputs: int, rows: Any, row: Any | None) -> tirx.PrimFunc:
    """Wrap the statements of a function in a block under a loop over rows, and one of one iteration, as schedules
    require: they vectorize the innermost loop."""
    statement = primfunc.body.block.body
    while isinstance(statement, tirx.AttrStmt):
        statement = statement.body
    buffers = [parameter for parameter in primfunc.params if tirx.buffer.is_buffer_var(parameter)]
    one, zero = tirx.const(1, "int64"), tirx.const(0, "int64")
    regions = [whole_region(buffer) for buffer in buffers]
    step = tirx.Var("v_step", "int64")
    nest = [(tirx.Var("step", "int64"), one, step)]
    if row is not None:
        nest.insert(0, (tirx.Var("row_loop", "int64"), rows, row))
    variables = [tirx.IterVar(ir.Range.from_min_extent(zero, extent), inner, 0) for _, extent, inner in nest]
    block = s_tir.SBlock(variables, regions[:inputs], regions[inputs:], name, statement)
    loops: Any = s_tir.SBlockRealize([loop for loop, _, _ in nest], tirx.const(1, "bool"), block)
    for loop, extent, _ in reversed(nest):
        loops = tirx.For(loop, zero, extent, tirx.ForKind.SERIAL, loops)
    root = s_tir.SBlock([], [], [], "root", loops)
    return primfunc.with_body(s_tir.SBlockRealize([], tirx.const(1, "bool"), root))


def numbers(shape: Sequence[Any]) -> list[Any]:
    """Return the extents of a shape, static ones as Python's integers."""
    return [int(extent) if isinstance(extent, tirx.IntImm) else extent for extent in shape]


def int64(extent: Any) -> Any:
    """Return an extent as an expression."""
    return tirx.const(extent, "int64") if isinstance(extent, int) else extent
