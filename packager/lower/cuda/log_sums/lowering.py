"""Lowers logarithms of sums of exponentials along an axis as one PrimFunc, with what makes their terms.

Exporters write ``log(sum(exp(x - m))) + m``, where m is the largest x, or 0 if that is infinite. What makes x has two
readers then, so that it is computed to memory, and read by a kernel for each reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.ir import Op

from packager.bundle.dtypes import wide_type
from packager.graph.dataflow import Dataflow, extents_of, operator_of, same, scalar_of
from packager.graph.own_operators import register
from packager.graph.rewrite import Bindings, map_bindings
from packager.ir.pattern_kinds import SUMS

LOG_SUM = "relax.packager.log_sum_exp"
# How many elements of a column a thread should have, and at most; how many threads may share one.
EACH, MOST_HELD, MOST_PARTS = 16, 32, 32
# Longer rows are not held, and of longer columns each reduction has thread blocks that share one.
LONGEST_ROW, LONGEST_COLUMN = 8192, MOST_HELD * MOST_PARTS
_VIEWS = ("reshape", "squeeze", "expand_dims")


def fuse_log_sums(module: tvm.IRModule) -> tvm.IRModule:
    """Rewrite those in ``main`` of rows and columns that threads hold as calls of one operator. Leaves dead code."""
    flow = Dataflow(module["main"])

    def rewrite(binding: Any) -> list[Any]:
        found = _log_sum_of(flow, binding.value)
        if found is None:
            return [binding]
        made = Bindings(binding.var, "_log_sum")
        attributes = tvm.ir.make_node("ir.DictAttrs", axis=found[1])
        total = relax.Call(Op.get(LOG_SUM), [found[0]], attributes)
        wide, is_kept = wide_type(str(found[0].ty.dtype)), binding.var.ty.ndim == found[0].ty.ndim
        total = relax.op.expand_dims(made.bind(total), [found[1]]) if is_kept else total
        return made.ended(total if wide == made.dtype else relax.op.astype(made.bind(total), made.dtype))

    return relax.transform.Normalize()(map_bindings(module, rewrite))


def _log_sum_of(flow: Dataflow, value: Any) -> tuple[Any, int] | None:
    """Return the tensor whose exponentials a value sums up, and the axis, from 0 on; None for other values."""
    if operator_of(value) != "add":
        return None
    for logarithm, most in (value.args, reversed(value.args)):
        total = _call(flow, _argument(flow, logarithm, "log"), "sum", *_VIEWS)
        difference = flow.call(_argument(flow, total.args[0], "exp"), "subtract") if total is not None else None
        if difference is None or total.attrs.axis is None or len(total.attrs.axis) != 1:
            continue
        data, shift = (_cast(flow, operand) for operand in difference.args)
        shape = extents_of(data) or ()
        axis = int(total.attrs.axis[0]) % len(shape) if shape else 0
        reduced = [*shape[:axis], *shape[axis + 1 :]], [*shape[:axis], 1, *shape[axis + 1 :]]
        fits = any(same(tuple(each), extents_of(value)) for each in reduced)
        if fits and _is_most(flow, shift, data, axis) and _same_element(flow, most, shift) and _is_held(shape, axis):
            return data, axis
    return None


def _is_held(shape: Sequence[Any], axis: int) -> bool:
    if len(shape) < 2 or not isinstance(shape[axis], tirx.IntImm) or not isinstance(shape[-1], tirx.IntImm):
        return False
    return int(shape[axis]) <= (LONGEST_ROW if axis == len(shape) - 1 else LONGEST_COLUMN)


def _cast(flow: Dataflow, tensor: Any, *views: str) -> Any:
    """Return what a tensor is cast from, or a view of."""
    while (call := flow.call(tensor, "astype", *views)) is not None:
        tensor = call.args[0]
    return tensor


def _call(flow: Dataflow, tensor: Any, operator: str, *views: str) -> Any:
    """Return the call of an operator that makes a tensor, which may be cast and viewed, or None."""
    return flow.call(_cast(flow, tensor, *views), operator)


def _argument(flow: Dataflow, tensor: Any, operator: str) -> Any:
    """Return the cast argument of such a call, or None."""
    call = _call(flow, tensor, operator, *_VIEWS)
    return None if call is None else _cast(flow, call.args[0])


def _is_most(flow: Dataflow, shift: Any, data: Any, axis: int) -> bool:
    """Whether a shift is the largest of the data along an axis, or 0 where that is infinite."""
    chosen = flow.call(shift, "where")
    if chosen is not None:
        infinite = _call(flow, chosen.args[0], "equal")
        if infinite is None or scalar_of(chosen.args[1]) != 0:
            return False
        magnitude, limit = (_cast(flow, operand) for operand in infinite.args)
        shift = _cast(flow, chosen.args[2])
        is_guard = _argument(flow, magnitude, "abs")
        if is_guard is None or not is_guard.same_as(shift) or scalar_of(limit) != float("inf"):
            return False
    most = flow.call(shift, "max")
    if most is None or most.attrs.axis is None or [int(a) % data.ty.ndim for a in most.attrs.axis] != [axis]:
        return False
    return bool(_cast(flow, most.args[0]).same_as(data)) and bool(most.attrs.keepdims)


def _same_element(flow: Dataflow, most: Any, shift: Any) -> bool:
    return bool(_cast(flow, most, *_VIEWS).same_as(_cast(flow, shift, *_VIEWS)))


def legalize_log_sum(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.log_sum_exp``: of rows as two reductions, of columns as two by parts."""
    (data,), axis = call.args, int(call.attrs["axis"])
    compute = partial(_of_rows if axis == data.ty.ndim - 1 else _of_columns, axis)
    return builder.call_te(compute, data, primfunc_name_hint="log_sum_exp", primfunc_attrs={"op_pattern": SUMS})


def _of_rows(axis: int, x: te.Tensor) -> te.Tensor:
    step, again = (te.reduce_axis((0, x.shape[axis]), name="step") for _ in range(2))
    wide, kept = wide_type(x.dtype), x.shape[:axis]
    most = te.compute(kept, lambda *at: te.max(x(*at, step).astype(wide), axis=step), name="most")
    total = te.compute(
        kept,
        lambda *at: te.sum(tirx.exp(x(*at, again).astype(wide) - _finite(most(*at), wide)), axis=again),
        name="total",
    )
    return te.compute(kept, lambda *at: tirx.log(total(*at)) + _finite(most(*at), wide), name="log_sum")


def _of_columns(axis: int, x: te.Tensor) -> te.Tensor:
    """Threads that share a column hold each every so-manieth element of it."""
    length, wide = int(x.shape[axis]), wide_type(x.dtype)
    parts = min(1 << max(length // EACH, 1).bit_length() - 1, MOST_PARTS)
    steps = -(-length // parts)
    kept = (*x.shape[:axis], *x.shape[axis + 1 :])
    of_parts = (*kept[:axis], parts, *kept[axis:])

    def element(*at: Any) -> Any:
        """Return an element of a part, the last of the column for those behind it."""
        place = tirx.min(at[-1] * parts + at[axis], length - 1)
        return x(*at[:axis], place, *at[axis + 1 : -1]).astype(wide)

    held = te.compute((*of_parts, steps), element, name="held")

    def reduced(reduce: Any, term: Callable[..., Any], neutral: Any, name: str) -> te.Tensor:
        step, part = te.reduce_axis((0, steps), name="step"), te.reduce_axis((0, parts), name="part")

        def of_part(*at: Any) -> Any:
            value = term((*at[:axis], *at[axis + 1 :]), held(*at, step))
            if steps * parts != length:
                value = tirx.Select(step * parts + at[axis] < length, value, neutral)
            return reduce(value, axis=step)

        found = te.compute(of_parts, of_part, name=f"{name}_of_part")
        return te.compute(kept, lambda *at: reduce(found(*at[:axis], part, *at[axis:]), axis=part), name=name)

    most = reduced(te.max, lambda _column, value: value, tirx.min_value(wide), "most")
    zero = tirx.const(0, wide)
    total = reduced(te.sum, lambda column, value: tirx.exp(value - _finite(most(*column), wide)), zero, "total")
    return te.compute(kept, lambda *at: tirx.log(total(*at)) + _finite(most(*at), wide), name="log_sum")


def _finite(most: Any, wide: str) -> Any:
    """Return the largest element, or 0 if it is infinite: differences to that are no numbers."""
    return tirx.Select(tirx.abs(most) == tirx.infinity(wide), tirx.const(0, wide), most)


def _infer(call: Any, _builder: Any) -> Any:
    shape, axis = list(call.args[0].ty.shape.values), int(call.attrs["axis"])
    return relax.TensorType([*shape[:axis], *shape[axis + 1 :]], wide_type(str(call.args[0].ty.dtype)))


register(LOG_SUM, "Logarithm of the sum of exponentials along an axis, in a wide type", ("data",), _infer)
