"""Rewrites attention to one form, whichever exporter wrote it: softmax(scale * q k^T + mask) v.

The scale is one number after the first matmul: exporters scale queries, keys, both, or scores before or after a mask.
A factor of each row or head, as cosine attention has it (Liu et al. 2022, "Swin Transformer V2"), is one of queries.
All masks are one tensor of [batch or 1, heads or 1, queries or 1, keys] that is added: exporters select with booleans
(``where``), add several (padding, causal, ALiBi, relative positions), and add them to views of the scores. Weights of
rows without a finite score, which are NaN, are replaced by zeros only where a mask may leave such rows.

A score that is replaced by a number has that number added instead: its weight is zero both ways, unless the row has no
other score. ``masks.py`` computes the masks. Sinks stand behind all scores, [batch, heads, queries, 1] in the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import tvm
from tvm import relax

from packager.graph.attention.core import without_nan
from packager.graph.attention.heads import MOVES, scaled_by
from packager.graph.attention.sinks import drops_sinks, scores_and_sinks
from packager.graph.dataflow import Dataflow, axes_of, flow_of, operator_of, same, scalar_of, shape_of
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import Bindings, map_bindings, rebuild_call, tidy
from packager.ir.model import ImportedModel
from packager.transforms.attention.masks import Masks, MaskStep

LONGEST = 16  # operators between the first matmul and the softmax
LEAST = -1e4  # scores below it count as this: a bound that exporters put to them, for masks that may be infinite


def canonical_attention(model: ImportedModel) -> tvm.IRModule:
    """Return the module of ``model`` with all attention in the form above."""
    rewriter = _Rewriter(flow_of(model))
    module = map_bindings(model.module, rewriter.replaced)
    return tidy(module) if rewriter.found else model.module


class _Rewriter:
    """``found`` says whether anything has changed."""

    def __init__(self, flow: Dataflow) -> None:
        self.flow = flow
        self.found = False
        self.masks = Masks(flow)
        self.without_sinks: IdentityMap[Any] = IdentityMap()  # from weights to those with the last column
        self.never_nan: IdentityMap[Any] = IdentityMap()  # from ``where(isnan(weights), 0, weights)`` to the weights

    def replaced(self, binding: Any) -> list[Any]:
        """Return the bindings that replace one."""
        variable, value = binding.var, binding.value
        if variable in self.never_nan:
            return [relax.VarBinding(variable, self.never_nan[variable])]
        if variable in self.without_sinks:
            weights = self.without_sinks[variable]
            return [relax.VarBinding(variable, relax.op.strided_slice(weights, [weights.ty.ndim - 1], [0], [-1]))]
        made = self._attention(variable, value) if operator_of(value) == "nn.softmax" else None
        return made or [binding]

    def _attention(self, variable: Any, softmax: Any) -> list[Any] | None:
        """Return the bindings of scores and weights in the one form; None if they are none of attention."""
        shape = shape_of(variable)
        if not shape or int(softmax.attrs.axis) % len(shape) != len(shape) - 1:
            return None
        sunk = scores_and_sinks(self.flow, softmax.args[0])
        scores, sinks = sunk or (softmax.args[0], None)
        traced = trace_scores(self.flow, scores) if sinks is None or self.flow.is_read_once(scores) else None
        if traced is None:
            return None
        product, steps = traced
        call = self.flow.value(product)
        capped = operator_of(call) == "tanh"
        operands = () if capped else tuple(call.args)
        shapes = [shape_of(product) or (), *(step.shape for step in steps), shape_of(scores) or ()]
        whole = next((found for found in shapes if len(found) == 4 and same(found[2:], shapes[0][-2:])), None)
        if whole is None and not capped and len(shapes[0]) == 3 and (apart := self._batch_and_heads(call)) is not None:
            whole = (*apart, *shapes[0][1:])
        # Of queries that are learned, keys are not; a matrix is no operand with heads.
        if whole is None or any(self.flow.is_constant(operand) and operand.ty.ndim < 3 for operand in operands):
            return None
        made = Bindings(variable, "_scores")
        affine = self.masks.affine(made, steps, shapes[0], whole)
        if affine is None:
            return None
        scale, mask = affine
        rows = [step for step in steps if step.kind == "rows"]
        if capped and rows:
            return None
        scores = product
        if not capped:
            scores, factor = self._unscaled_product(made, product, rows)
            scale *= factor
        if str(product.ty.dtype) != made.dtype:
            scores = made.bind(relax.op.astype(scores, made.dtype))
        if not same(shapes[0], whole):
            scores = made.bind(relax.op.reshape(scores, list(whole)))
        if scale != 1.0:
            scores = made.bind(relax.op.multiply(scores, relax.const(scale, made.dtype)))
        if mask is not None and not mask.is_zero:
            scores = made.bind(relax.op.add(scores, mask.tensor))
        self.found = True
        choice = without_nan(self.flow, variable)
        if choice is not None and (mask is None or mask.leaves_scores):
            self.never_nan[choice[-1]] = variable
        if sinks is not None:
            column = (*whole[:3], 1)
            sinks = sinks if same(shape_of(sinks) or (), column) else made.bind(relax.op.reshape(sinks, list(column)))
            scores, whole = made.bind(relax.op.concat([scores, sinks], axis=-1)), (*whole[:3], whole[3] + 1)
            # A part is a function of tensors, whose shapes may not tell the number of keys that a slice ends at.
            dropped = (reader for reader in self.flow.readers(variable) if drops_sinks(self.flow, reader))
            self.without_sinks.update((reader, variable) for reader in dropped)
        weights = relax.op.nn.softmax(scores, axis=-1)
        if not same(shape, whole):
            weights = relax.op.reshape(made.bind(weights), list(shape))
        return made.ended(weights)

    def _unscaled_product(self, made: Bindings, product: Any, rows: Sequence[MaskStep]) -> tuple[Any, float]:
        """Return the first matmul of operands without their scales, queries times factors of rows, and the scale."""
        call = self.flow.value(product)
        (queries, keys), factors = zip(*(_unscaled(self.flow, made, operand) for operand in call.args), strict=True)
        queries = reduce(partial(_with_factor, made), rows, queries)
        if not (queries.same_as(call.args[0]) and keys.same_as(call.args[1])):
            product = made.bind(rebuild_call(call, queries, keys))
        return product, math.prod(factors)

    def _batch_and_heads(self, product: Any) -> tuple[Any, ...] | None:
        """Return both extents, of which an operand [batch * heads, ..] of a product is made; None if it is not."""
        for operand in product.args:
            variable = operand
            for _ in range(4):
                value, extents = self.flow.value(variable), shape_of(variable) or ()
                factor, name = scaled_by(value), operator_of(value)
                inner = shape_of(value.args[0]) if name == "reshape" else None
                if inner and len(inner) == 4 and same(inner[2:], extents[1:]):
                    return tuple(inner[:2])
                if axes_of(value) == (0, 2, 1):
                    variable = value.args[0]
                elif factor is not None:
                    variable = factor[0]
                else:
                    break
        return None


def _with_factor(made: Bindings, queries: Any, step: MaskStep) -> Any:
    """Return queries times the factor of each row of scores."""
    return made.bind((relax.op.multiply if step.number > 0 else relax.op.divide)(queries, step.tensor))


def trace_scores(flow: Dataflow, variable: Any, left: int = LONGEST) -> tuple[Any, list[MaskStep]] | None:
    """Return the matmul that scores are computed from, and the operators from there on; None if there is none.

    Of scores with a soft cap it is the tanh, whose operand is a scaled matmul.
    """
    value, shape = flow.value(variable), shape_of(variable)
    name = operator_of(value)
    if left == 0 or shape is None:
        return None
    if name == "matmul":
        return variable, []
    if name == "tanh":
        inner = trace_scores(flow, value.args[0], left - 1) if flow.is_read_once(value.args[0]) else None
        plain = inner is not None and all(step.kind in ("view", "scale") for step in inner[1])
        return (variable, []) if plain else None
    found: list[tuple[Any, MaskStep]] = []
    if name in ("astype", "reshape"):
        found = [(value.args[0], MaskStep("view", shape))]
    elif (factor := scaled_by(value)) is not None:
        found = [(factor[0], MaskStep("scale", shape, factor[1]))]
    elif name in ("multiply", "divide"):
        pairs = [value.args, value.args[::-1]] if name == "multiply" else [value.args]
        sign = 1.0 if name == "multiply" else -1.0
        found = [(a, MaskStep("rows", shape, sign, b)) for a, b in pairs if same((shape_of(b) or ())[-1:], (1,))]
    elif name in ("add", "subtract"):
        first, second = value.args
        sign = 1.0 if name == "add" else -1.0
        found = [(first, MaskStep("add", shape, sign, second))]
        found += [(second, MaskStep("add", shape, 1.0, first))] if name == "add" else []
    elif name == "maximum" and (scalar_of(value.args[1]) or 0.0) <= LEAST:
        found = [(value.args[0], MaskStep("view", shape))]
    elif name == "where":
        keep, first, second = value.args
        numbers = [scalar_of(first), scalar_of(second)]
        if numbers[1] is not None:
            found = [(first, MaskStep("keep", shape, numbers[1], keep))]
        elif numbers[0] is not None:
            found = [(second, MaskStep("drop", shape, numbers[0], keep))]
    traced = [
        (deeper[0], [*deeper[1], step])
        for operand, step in found
        # Whatever else reads scores would compute them again.
        if flow.is_read_once(operand) and (deeper := trace_scores(flow, operand, left - 1)) is not None
    ]
    return traced[0] if len(traced) == 1 else None


def _unscaled(flow: Dataflow, made: Bindings, operand: Any) -> tuple[Any, float]:
    """Return an operand of the first matmul without its scale by numbers, through views, and that scale."""
    views: list[Any] = []
    source, passed, scale = operand, 0, 1.0
    variable = operand
    while isinstance(variable, relax.Var):
        value = flow.value(variable)
        factor = scaled_by(value)
        if factor is not None:
            variable, number = factor
            source, passed, scale = variable, len(views), scale * number
        elif operator_of(value) in (*MOVES, "broadcast_to"):
            views.append(value)
            variable = value.args[0]
        else:
            break
    for view in reversed(views[:passed]):
        source = made.bind(relax.Call(view.op, [source, *view.args[1:]], view.attrs, view.ty_args))
    return source, scale
