"""Attention of dims that are no vectors: the same results, of products with zeros in their weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import relax
from tvm_machine import compute

from packager.graph.dataflow import bindings_of, operator_of, shape_of
from packager.transforms.attention.head_dims import pad_heads

_R = relax.op
RANDOM = np.random.default_rng(5)
ROWS, WIDTH, HEADS = 7, 24, 4
FLOAT = "float32"


def extents(value: Any) -> tuple[Any, ...]:
    return shape_of(value) or ()


def attention(queries: Any, keys: Any, values: Any, emit: Callable[[Any], Any]) -> Any:
    """Return the weighted values of [1, heads, rows, dims]."""
    depth = extents(queries)[-1]
    scores = emit(_R.matmul(queries, emit(_R.permute_dims(keys, [0, 1, 3, 2]))))
    scores = emit(_R.multiply(scores, relax.const(1 / math.sqrt(depth), FLOAT)))
    return emit(_R.matmul(emit(_R.nn.softmax(scores, -1)), values))


def heads_of(rows: Any, dims: int, emit: Callable[[Any], Any]) -> Any:
    return emit(_R.permute_dims(emit(_R.reshape(rows, [1, ROWS, HEADS, dims])), [0, 2, 1, 3]))


def attended(dims: int, emit: Callable[[Any], Any], x: Any, w: Any, b: Any) -> Any:
    """Return rows of heads by one product of queries, keys and values, sliced by columns."""
    whole = emit(_R.add(emit(_R.matmul(x, w)), b))
    size = HEADS * dims
    parts = [emit(_R.strided_slice(whole, [2], [size * i], [size * (i + 1)])) for i in range(3)]
    found = attention(*(heads_of(part, dims, emit) for part in parts), emit)
    return emit(_R.reshape(emit(_R.permute_dims(found, [0, 2, 1, 3])), [1, ROWS, size]))


def apart(dims: int, emit: Callable[[Any], Any], x: Any, w: Any, b: Any, last: Any) -> Any:
    """Return a layer of these."""
    return emit(_R.matmul(attended(dims, emit, x, w, b), last))


def with_a_late_matrix(dims: int, emit: Callable[[Any], Any], x: Any, w: Any, b: Any, last: Any) -> Any:
    """Return the same, whose last matrix is computed where it is read, as torch.export writes it."""
    rows = attended(dims, emit, x, w, b)
    return emit(_R.matmul(rows, emit(_R.permute_dims(emit(_R.permute_dims(last))))))


def of_other_values(dims: int, emit: Callable[[Any], Any], x: Any, w: Any, b: Any, last: Any) -> Any:
    """Return a layer whose values have half the dims that fill the product, queries and keys a quarter."""
    whole = emit(_R.add(emit(_R.matmul(x, w)), b))
    parts, begin = [], 0
    for size in (dims // 2, dims // 2, 2 * dims):
        end = begin + HEADS * size
        parts.append(heads_of(emit(_R.strided_slice(whole, [2], [begin], [end])), size, emit))
        begin = end
    found = emit(_R.reshape(emit(_R.permute_dims(attention(*parts, emit), [0, 2, 1, 3])), [1, ROWS, begin // 3 * 2]))
    return emit(_R.matmul(emit(_R.strided_slice(found, [2], [0], [HEADS * dims])), last))


def together(dims: int, emit: Callable[[Any], Any], x: Any, w: Any, b: Any, last: Any) -> Any:
    """Return the same with an axis of queries, keys and values."""
    whole = emit(_R.reshape(emit(_R.add(emit(_R.matmul(x, w)), b)), [1, ROWS, 3, HEADS, dims]))
    moved = emit(_R.permute_dims(whole, [2, 0, 3, 1, 4]))
    parts = [emit(_R.squeeze(emit(_R.strided_slice(moved, [0], [i], [i + 1])), [0])) for i in range(3)]
    found = attention(*parts, emit)
    return emit(_R.matmul(emit(_R.reshape(emit(_R.permute_dims(found, [0, 2, 1, 3])), [1, ROWS, HEADS * dims])), last))


def rotated(dims: int, emit: Callable[[Any], Any], x: Any, w: Any, b: Any, last: Any) -> Any:
    """Return the same, but with heads that are not products, and a result that is read as it is."""
    whole = emit(_R.reshape(emit(_R.add(emit(_R.matmul(x, w)), b)), [1, ROWS, 3, HEADS, dims]))
    moved = emit(_R.permute_dims(whole, [2, 0, 3, 1, 4]))
    parts = [emit(_R.squeeze(emit(_R.strided_slice(moved, [0], [i], [i + 1])), [0])) for i in range(3)]
    parts = [emit(_R.sin(part)) for part in parts]
    found = emit(_R.reshape(emit(_R.tanh(attention(*parts, emit))), [1, ROWS, HEADS * dims]))
    return emit(_R.matmul(found, last))


def module(layer: Callable[..., Any], dims: int) -> Any:
    builder = relax.BlockBuilder()
    shapes = [(1, ROWS, WIDTH), (WIDTH, 3 * HEADS * dims), (3 * HEADS * dims,), (HEADS * dims, WIDTH)]
    parameters = [relax.Var(f"p{number}", relax.TensorType(shape, FLOAT)) for number, shape in enumerate(shapes)]
    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(layer(dims, builder.emit, *parameters))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize("dims", [6, 10, 36])
@pytest.mark.parametrize("layer", [apart, with_a_late_matrix, together, rotated])
def test_results_stay_and_dims_are_vectors(layer: Callable[..., Any], dims: int) -> None:
    before = module(layer, dims)
    after = pad_heads(before, 1)
    arrays = [RANDOM.standard_normal([int(e) for e in p.ty.shape.values]).astype("f4") for p in before["main"].params]
    np.testing.assert_allclose(compute(after, arrays)[0], compute(before, arrays)[0], rtol=2e-5, atol=2e-5)
    values = [binding.value for binding in bindings_of(after["main"])]
    products = [value for value in values if operator_of(value) == "matmul" and len(extents(value)) == 4]
    assert extents(products[0].args[0])[-1] % 8 == 0
    assert extents(products[-1])[-1] % 8 == 0
    padded = [value for value in values if operator_of(value) == "nn.pad"]
    of_weights = [value for value in padded if len(extents(value)) <= 3]
    assert len(padded) == 3
    assert len(of_weights) == (0 if layer is rotated else 3)
    assert any(operator_of(v) == "strided_slice" and extents(v)[-1:] == (dims,) for v in values) == (layer is rotated)


@pytest.mark.parametrize("dims", [10, 22])
def test_parts_of_a_product_may_have_other_dims(dims: int) -> None:
    before = module(of_other_values, dims)
    after = pad_heads(before, 1)
    arrays = [RANDOM.standard_normal([int(e) for e in p.ty.shape.values]).astype("f4") for p in before["main"].params]
    np.testing.assert_allclose(compute(after, arrays)[0], compute(before, arrays)[0], rtol=2e-5, atol=2e-5)
    assert after is not before


@pytest.mark.parametrize("dims", [2, 8, 64])
def test_other_dims_stay(dims: int) -> None:
    before = module(apart, dims)
    assert pad_heads(before, 1) is before
