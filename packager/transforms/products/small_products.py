"""Writes products of tiny matrices as sums: those of linear attention (arXiv:1812.01243) with small heads, and of rows
that a few heads are (talking heads, arXiv:2003.02436).

A tile of a GEMM would be mostly padding, and its operands copies; a reduction reads them where they lie, and fuses with
what comes before and after. A softmax along tokens, by which keys are weighed, becomes reductions of columns likewise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, axes_of, same, shape_of, static_shape_of, variables_of
from packager.graph.identity import IdentitySet
from packager.graph.rewrite import Bindings, map_bindings, tidy
from packager.transforms.layout.slice_views import slice_before_transposes
from packager.transforms.simplify.splits import slice_splits

# The most rows and columns of a result, or columns and steps of its sums; and the fewest matrices.
MOST, FEWEST = 16, 8
# Likewise where one matrix is multiplied by many rows: the most columns and steps, and the fewest rows.
TINY, MANY_ROWS = 8, 1024
# The shortest axis of a softmax that becomes reductions.
LONG = 64
_VIEWS = ("reshape", "permute_dims", "squeeze", "expand_dims", "astype", "strided_slice")
# What may stand between the product of scores and their softmax, and how many of these.
_BETWEEN, _STEPS = (*_VIEWS, "multiply", "divide", "add", "where", "concat"), 12


def sum_small_products(module: tvm.IRModule, num_inputs: int) -> tvm.IRModule:
    """Rewrite such products in ``main``, but for those of attention with scores; its other parameters are constants."""
    flow = Dataflow(module["main"], module["main"].params[num_inputs:])
    products = IdentitySet(variable for variable in flow.variables if _is_small(flow, variable))
    softmaxes = IdentitySet(variable for variable in flow.variables if _runs_along_tokens(flow, variable))
    if not len(products) and not len(softmaxes):
        return module

    def rewrite(binding: Any) -> list[Any]:
        if binding.var in products:
            turned = _turned_rows(flow, binding.value)
            return _replaced(binding, _as_sum if turned is None else partial(_written_out, *turned))
        return _replaced(binding, _as_reductions) if binding.var in softmaxes else [binding]

    module = slice_splits(tidy(map_bindings(module, rewrite)))
    return slice_before_transposes(module)


def _replaced(binding: Any, rewrite: Callable[[Callable[[Any], Any], Any], Any]) -> list[Any]:
    """Return the bindings of what a call is rewritten to, the last of the same variable."""
    made = Bindings(binding.var, "_part")
    return made.ended(rewrite(made.bind, binding.value))


def _as_sum(emit: Callable[[Any], Any], call: Any) -> Any:
    """Return a product as the sum of its steps: along rows of both operands, or along columns of few steps.

    A product with a vector is a sum along rows of the matrix.
    """
    left, right = call.args
    rank, shape = left.ty.ndim, shape_of(right) or ()
    if same(shape[-1], 1):
        vector = emit(relax.op.reshape(right, [*shape[:-2], 1, shape[-2]] if len(shape) > 2 else [shape[0]]))
        return relax.op.sum(emit(relax.op.multiply(left, vector)), axis=-1, keepdims=True)
    along_rows = right.ty.ndim > 2 and int(left.ty.shape.values[-2]) <= MOST
    if along_rows:
        swapped = emit(relax.op.permute_dims(left, [*range(rank - 2), rank - 1, rank - 2]))
        factors = emit(relax.op.expand_dims(swapped, [rank])), emit(relax.op.expand_dims(right, [rank - 1]))
    else:
        factors = emit(relax.op.expand_dims(left, [rank])), emit(relax.op.expand_dims(right, [right.ty.ndim - 2]))
    return relax.op.sum(emit(relax.op.multiply(*factors)), axis=-3 if along_rows else -2)


def _written_out(source: Any, axes: tuple[int, ...], emit: Callable[[Any], Any], call: Any) -> Any:
    """Return the product of a transposed tensor and a matrix as a sum of slices, computed where their elements lie."""
    matrix, axis = call.args[1], axes[-1]
    steps, columns = map(int, matrix.ty.shape.values)
    terms = []
    for step in range(steps):
        part = emit(relax.op.strided_slice(source, [axis], [step], [step + 1]))
        weights = emit(relax.op.strided_slice(matrix, [0], [step], [step + 1]))
        factor = emit(relax.op.reshape(weights, [columns] + [1] * (len(axes) - 1 - axis)))
        terms.append(emit(relax.op.multiply(part, factor)))
    return relax.op.permute_dims(reduce(lambda total, term: emit(relax.op.add(total, term)), terms), axes)


def _as_reductions(emit: Callable[[Any], Any], call: Any) -> Any:
    """Return a softmax by its definition."""
    (data,), axis = call.args, int(call.attrs.axis)
    powers = emit(relax.op.exp(emit(relax.op.subtract(data, emit(relax.op.max(data, axis=axis, keepdims=True))))))
    return relax.op.divide(powers, emit(relax.op.sum(powers, axis=axis, keepdims=True)))


def _is_small(flow: Dataflow, variable: Any) -> bool:
    """Whether it is a product of many matrices with few rows and columns, or columns and steps, and no scores.

    Or of many rows with one matrix of few columns and steps.
    """
    call = flow.call(variable, "matmul")
    if call is not None and _has_vectors(call):
        return not _is_of_attention(flow, variable, call)
    shapes = [static_shape_of(operand) for operand in call.args] if call is not None else []
    if len(shapes) != 2 or not all(shapes):
        return False
    left, right = shapes
    assert left is not None
    assert right is not None
    if len(right) == 2:
        return len(left) > 1 and max(right) <= TINY and math.prod(left[:-1]) >= MANY_ROWS
    if len(left) < 3 or left[:-2] != right[:-2] or math.prod(left[:-2]) < FEWEST:
        return False
    rows, steps, columns = left[-2], left[-1], right[-1]
    if columns > MOST or (rows > MOST) == (steps > MOST):
        return False
    return not _is_of_attention(flow, variable, call)


def _is_of_attention(flow: Dataflow, product: Any, call: Any) -> bool:
    """Whether a product is one of scores, or of their softmax."""
    return _are_scores(flow, product) or any(_is_of_scores(flow, operand) for operand in call.args)


def _has_vectors(call: Any) -> bool:
    """Whether each of several matrices of any number is multiplied by a vector of few elements of its own."""
    left, right = (shape_of(operand) or () for operand in call.args)
    if len(left) < 3 or len(left) != len(right) or not same(left[:-2], right[:-2]) or not same(right[-1], 1):
        return False
    return isinstance(left[-1], int) and left[-1] <= MOST and any(not isinstance(extent, int) for extent in left[:-2])


def _turned_rows(flow: Dataflow, product: Any) -> tuple[Any, tuple[int, ...]] | None:
    """Return the tensor whose transpose one matrix multiplies, and the order of its axes, if its last is not last."""
    data, matrix = product.args
    axes = axes_of(flow.value(data)) if matrix.ty.ndim == 2 else None
    return None if axes is None or axes[-1] == len(axes) - 1 else (flow.value(data).args[0], axes)


def _are_scores(flow: Dataflow, product: Any) -> bool:
    """Whether a softmax reads a product, scaled and masked: that of queries and keys."""
    reached = [product]
    for _ in range(_STEPS):
        readers = [reader for each in reached for reader in flow.readers(each)]
        if any(flow.call(reader, "nn.softmax") is not None for reader in readers):
            return True
        reached = [reader for reader in readers if flow.call(reader, *_BETWEEN) is not None]
    return False


def _behind_views(flow: Dataflow, variable: Any) -> Any:
    """Return what a variable is a view of."""
    while flow.call(variable, *_VIEWS) is not None:
        variable = flow.value(variable).args[0]
    return variable


def _is_of_scores(flow: Dataflow, operand: Any) -> bool:
    """Whether an operand is a softmax of a product of two tensors: that of attention."""
    softmax = flow.call(_behind_views(flow, operand), "nn.softmax")
    reached = [] if softmax is None else [softmax.args[0]]
    for _ in range(_STEPS):
        products = [call for each in reached if (call := flow.call(each, "matmul")) is not None]
        if any(not any(flow.is_constant(_behind_views(flow, o)) for o in call.args) for call in products):
            return True
        calls = [call for each in reached if (call := flow.call(each, *_BETWEEN)) is not None]
        reached = [part for call in calls for part in variables_of(call)]
    return False


def _runs_along_tokens(flow: Dataflow, variable: Any) -> bool:
    """Whether it is a softmax along a long axis that is not the last, and not of scores."""
    call = flow.call(variable, "nn.softmax")
    shape = static_shape_of(variable) if call is not None else None
    if not shape or _is_of_scores(flow, variable):
        return False
    axis = int(call.attrs.axis) % len(shape)
    return axis < len(shape) - 1 and shape[axis] >= LONG
