"""Widen float16 and bfloat16 arithmetic of a PrimFunc to float32.

TVM's legalization accumulates, and computes exponentials, in 16 bits. Kernels are memory-bound, so float32 arithmetic
is free and leaves only the rounding of the final conversion. Tensors in memory keep their types: loads widen, stores
narrow, and only internal buffers of computed values become float32. Casts of the model itself still round.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir.prim import expr as ex
from tvm.tirx import stmt as st
from tvm.tirx.buffer import is_buffer_var
from tvm_ffi import structural_map

from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import nodes_of
from packager.lower.blocks import blocks, schedule_of
from packager.lower.cuda.fast_math import FUNCTIONS, WIDE, rounded_function
from packager.lower.kernels import ROUNDED

# 16-bit types and the largest finite value of each, the initial value of TVM's min and max reductions.
HALVES = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}
WIDE_LARGEST = 3.4028234663852886e38


_STATEMENTS = (st.For, st.BufferStore, st.SeqStmt, s_tir.SBlock, s_tir.SBlockRealize)


def widen(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a PrimFunc with the same parameters that computes in float32; one with opaque blocks is unchanged."""
    used = (*primfunc.params, *nodes_of(primfunc.body, tirx.Var))
    has_half = any(is_buffer_var(variable) and str(variable.dtype) in HALVES for variable in used)
    if not isinstance(primfunc.body, s_tir.SBlockRealize) or not has_half or not _is_plain(primfunc.body):
        return primfunc
    primfunc = _accumulate_apart(_join_functions(primfunc))
    root = primfunc.body.block
    inner = IdentitySet(b for b in root.alloc_buffers if str(b.dtype) in HALVES)
    chosen = _computed(primfunc.body, inner)
    stored = IdentitySet(store.buffer for store in nodes_of(primfunc.body, st.BufferStore))
    wide = any(parameter in stored and str(parameter.dtype) == "float32" for parameter in primfunc.params)
    widened = _Widener(IdentityMap((b, _as_wide(b)) for b in chosen), rounded=not wide).function(primfunc)
    return widened if wide else widened.with_attr(ROUNDED, True)


def _is_plain(body: Any) -> bool:
    known = all(isinstance(statement, _STATEMENTS) for statement in nodes_of(body, st.Stmt))
    return known and not any(block.match_buffers for block in nodes_of(body, s_tir.SBlock))


def _join_functions(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Inline the blocks that TVM splits a math function into: widen, compute, round."""
    sch = schedule_of(primfunc)
    for block in blocks(sch):
        value: Any = getattr(sch.get(block).body, "value", None)
        consumers = [getattr(sch.get(consumer).body, "value", None) for consumer in sch.get_consumers(block)]
        widens = isinstance(value, tirx.Cast) and _is_half(value.value) and all(map(_is_function, consumers))
        rounds = isinstance(value, tvm.ir.Call) and all(isinstance(c, tirx.Cast) and _is_half(c) for c in consumers)
        if consumers and (widens or rounds):
            with contextlib.suppress(s_tir.ScheduleError):  # it is an output of the PrimFunc too
                sch.compute_inline(block)
    return sch.mod["main"]


def _is_function(value: Any) -> bool:
    return isinstance(value, tvm.ir.Call) and _name(value) in FUNCTIONS


def _accumulate_apart(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let reductions that write a 16-bit parameter accumulate in a separate buffer that is copied out."""
    sch = schedule_of(primfunc)
    parameters = IdentitySet(primfunc.params)
    for block in blocks(sch):
        stored = sch.get(block).writes
        if sch.get(block).init is None or len(stored) != 1 or str(stored[0].source.dtype) not in HALVES:
            continue
        if stored[0].source in parameters:
            sch.cache_write(block, 0, "global")
    return sch.mod["main"]


def _computed(body: Any, inner: IdentitySet) -> IdentitySet:
    """Return the buffers of computed values that 16 bits may not represent exactly."""
    stores = nodes_of(body, st.BufferStore)
    chosen = IdentitySet()
    while True:
        more = IdentitySet(s.buffer for s in stores if s.buffer in inner and not _is_exact(s.value, chosen))
        if more <= chosen:
            return chosen
        chosen |= more


def _is_exact(value: Any, widened: Container[Any]) -> bool:
    """Tell whether a 16-bit value is a constant or loaded unchanged from memory."""
    if isinstance(value, tvm.ir.TensorLoad):
        return value.source not in widened
    if isinstance(value, tirx.Select):
        return _is_exact(value.true_value, widened) and _is_exact(value.false_value, widened)
    if isinstance(value, tvm.ir.Call) and _name(value) == "if_then_else":
        return all(_is_exact(branch, widened) for branch in value.args[1:])
    return isinstance(value, (tirx.FloatImm, tirx.Var))


def _name(call: Any) -> str:
    return str(getattr(call.op, "name", "")).rpartition(".")[2]


def _as_wide(buffer: Any) -> Any:
    return tirx.decl_buffer(buffer.shape, "float32", buffer.name, scope=buffer.scope())


def _is_half(expr: Any) -> bool:
    return str(expr.ty) in HALVES


def _is_legalized(expr: Any) -> bool:
    """Tell whether a float32 expression is TVM's expansion of a function without a 16-bit form, such as ``erf``."""
    return (
        _is_function(expr)
        and _name(expr) != "if_then_else"
        and all(isinstance(a, tirx.Cast) and _is_half(a.value) for a in expr.args)
    )


def _narrow(value: Any, ty: Any) -> Any:
    """Convert a float32 value to 16 bits; a widening cast is dropped instead."""
    if isinstance(value, tirx.Cast) and str(value.value.ty) == str(ty):
        return value.value
    return tirx.Cast(ty, value)


class _Widener:
    """Rewrites the statements of one PrimFunc.

    ``buffers`` maps those that become float32, by handle. ``rounded``: all results are finally rounded to 16 bits,
    including those of float32 arithmetic, such as TVM's softmax.
    """

    def __init__(self, buffers: IdentityMap[Any], *, rounded: bool) -> None:
        self.buffers = buffers
        self.rounded = rounded
        self.parameters = IdentitySet()

    def _may_round(self, expr: Any) -> bool:
        return _is_half(expr) or (self.rounded and str(expr.ty) == "float32")

    def function(self, primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
        self.parameters = IdentitySet(primfunc.params)

        def replace(var: Any, *_kind: Any) -> Any:
            return self.buffers.get(var, var)

        callbacks = [(st.BufferStore, self._store), (s_tir.SBlock, self._block), (tirx.Var, replace)]
        return primfunc.with_body(structural_map(primfunc.body, callbacks, order="pre"))

    def _store(self, store: Any) -> Any:
        buffer = self.buffers.get(store.buffer, store.buffer)
        exact = str(buffer.dtype) in HALVES and _is_exact(store.value, self.buffers)
        value = store.value if exact else self._wide(store.value)
        largest = HALVES.get(str(store.buffer.dtype))
        if buffer is not store.buffer and isinstance(value, tirx.FloatImm) and abs(value.value) == largest:
            # TVM recognizes a reduction by its initial value.
            value = tirx.FloatImm(WIDE, WIDE_LARGEST if value.value > 0 else -WIDE_LARGEST)
        if str(buffer.dtype) in HALVES and not exact:
            value = _narrow(value, store.value.ty)
        return st.BufferStore(buffer, value, [self._wide(i) for i in store.indices])

    def _block(self, block: Any) -> Any:
        if not any(b in self.buffers for b in block.alloc_buffers):
            return block
        return s_tir.SBlock(
            block.iter_vars,
            block.reads,
            block.writes,
            block.name_hint,
            block.body,
            block.init,
            [self.buffers.get(b, b) for b in block.alloc_buffers],
            block.match_buffers,
            block.annotations,
        )

    def _wide(self, expr: Any) -> Any:
        """Return ``expr`` with its 16-bit parts in float32: a 16-bit ``expr`` becomes a float32 one."""
        match expr:
            case tvm.ir.TensorLoad():
                return self._load(expr)
            case tirx.FloatImm() if _is_half(expr):
                return tirx.FloatImm(WIDE, expr.value)
            case tirx.Cast():
                return self._cast(expr)
            case ex.BinaryOpExpr() | ex.CmpExpr() | ex.And() | ex.Or():
                return self._binary(expr)
            case tirx.Not():
                return tirx.Not(self._wide(expr.a))
            case tirx.Select():
                return tirx.Select(*map(self._wide, (expr.condition, expr.true_value, expr.false_value)))
            case tvm.ir.Call():
                return self._call(expr)
        return tirx.Cast(WIDE, expr) if _is_half(expr) else expr

    def _load(self, expr: Any) -> Any:
        buffer = self.buffers.get(expr.source, expr.source)
        load = tirx.BufferLoad(buffer, [self._wide(i) for i in expr.indices])
        return tirx.Cast(WIDE, load) if _is_half(load) else load

    def _cast(self, expr: Any) -> Any:
        if _is_half(expr) and _is_legalized(expr.value):
            return self._function(expr.value)
        value = self._wide(expr.value)
        if _is_half(expr):
            return tirx.Cast(WIDE, expr if value is expr.value else tirx.Cast(expr.ty, value))
        return value if str(value.ty) == str(expr.ty) else tirx.Cast(expr.ty, value)

    def _binary(self, expr: Any) -> Any:
        if isinstance(expr, ex.Div) and self._may_round(expr) and self._is_computed(expr.b):
            # Softmax divides by one value per row: its reciprocal saves a division (ten instructions) per element.
            return tirx.Mul(self._wide(expr.a), tirx.Div(tirx.FloatImm(WIDE, 1.0), self._wide(expr.b)))
        return type(expr)(self._wide(expr.a), self._wide(expr.b))

    def _is_computed(self, expr: Any) -> bool:
        return isinstance(expr, tvm.ir.TensorLoad) and expr.source not in self.parameters

    def _call(self, expr: Any) -> Any:
        if self._may_round(expr) and _is_function(expr):
            return self._function(expr)
        wide = [self._wide(a) if isinstance(a, tvm.ir.Expr) else a for a in expr.args]
        if _name(expr) in FUNCTIONS:
            return self._rebuilt(expr, wide, expr.ty)
        arguments = [
            _narrow(w, a.ty) if str(getattr(a, "ty", "")) in HALVES else w for a, w in zip(expr.args, wide, strict=True)
        ]
        call = self._rebuilt(expr, arguments, expr.ty)
        return tirx.Cast(WIDE, call) if _is_half(expr) else call

    def _function(self, call: Any) -> Any:
        """Return the float32 value of a call whose result is rounded to 16 bits."""
        arguments = [self._wide(a) if isinstance(a, tvm.ir.Expr) else a for a in call.args]
        found = rounded_function(_name(call), arguments)
        return self._rebuilt(call, arguments, WIDE) if found is None else found

    @staticmethod
    def _rebuilt(call: Any, args: list[Any], ty: Any) -> Any:
        return tvm.ir.Call(call.op, args, call.attrs, call.ty_args, call.span, ty)
