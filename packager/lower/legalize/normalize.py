"""Writes ``packager.normalize`` out with TVM's operators, where no backend took it."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from packager.graph.dataflow import bindings_of, extents_of, operator_of
from packager.graph.normalize import NAME, attributes_of_call
from packager.graph.rewrite import with_main


def expand_norms(module: tvm.IRModule) -> tvm.IRModule:
    """Replace the calls in ``main``: means in two passes, never the mean of squares minus the square of the mean."""
    name = NAME.removeprefix("relax.")
    if not any(operator_of(binding.value) == name for binding in bindings_of(module["main"])):
        return module
    return with_main(module, _Expander(module).visit_expr(module["main"]))


@mutator
class _Expander(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        return _expand(self.builder_, call) if getattr(call.op, "name", "") == NAME else call


def _expand(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    attributes, (data,) = attributes_of_call(call.attrs), call.args
    shape, axes, source = list(extents_of(data) or ()), set(attributes.axes), data
    channel = attributes.channel_axis
    if channel is not None:
        groups = attributes.groups
        split = [*shape[:channel], groups, shape[channel] // groups, *shape[channel + 1 :]]
        data = builder.emit(relax.op.reshape(data, split))
        axes = {axis + (axis > channel) for axis in axes} | {channel + 1}
    dtype, reduced = str(data.ty.dtype), sorted(axes)
    if attributes.centered:
        data = builder.emit(relax.op.subtract(data, builder.emit(relax.op.mean(data, reduced, keepdims=True))))
    squares = builder.emit(relax.op.multiply(data, data))
    variance = builder.emit(relax.op.mean(squares, reduced, keepdims=True))
    shifted = builder.emit(relax.op.add(variance, relax.const(attributes.epsilon, dtype)))
    result = relax.op.divide(data, builder.emit(relax.op.sqrt(shifted)))
    return result if channel is None else relax.op.reshape(builder.emit(result), extents_of(source))
