"""Products of the same rows become one; transposes of heads of one row become reshapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.dataflow import bindings_of, operator_of
from packager.transforms.products.merge_products import merge_products
from packager.transforms.simplify.unit_axes import reshape_unit_axes
from tests.unit.transforms.products.test_modulated_convs import function, inputs
from tests.unit.tvm_machine import assert_same_results, compute

R = relax.op
WIDTHS = (16, 8, 24)


def made(rows: int, *, transposed: bool = False, dtype: str = "float32", widths: tuple[int, ...] = WIDTHS) -> Any:
    """Return a module of a product with each matrix of ``widths`` columns; constants begin after the first input."""
    shapes = [(width, 32) if transposed else (32, width) for width in widths]
    x = relax.Var("x", relax.TensorType((1, rows, 32), "float32"))
    matrices = [relax.Var(f"w{i}", relax.TensorType(shape, dtype)) for i, shape in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", [x, *matrices], attrs={"num_input": 1}):
        with builder.dataflow():
            results = []
            for matrix in matrices:
                wide = builder.emit(R.permute_dims(matrix)) if transposed else matrix
                results.append(builder.emit(R.nn.relu(builder.emit(R.matmul(x, wide)))))
            result = builder.emit_output(R.concat(results, axis=-1))
        builder.emit_func_output(result)
    return builder.get()


def products(module: Any) -> int:
    return sum(operator_of(binding.value) == "matmul" for binding in bindings_of(module["main"]))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rows", [1, 8])
def test_products_of_the_same_rows_are_one(rows: int, transposed: bool) -> None:
    module = made(rows, transposed=transposed)
    merged = merge_products(module, 1)
    assert (products(module), products(merged)) == (3, 1)
    assert_same_results(merged, module, rtol=1e-5, atol=1e-5)


def test_what_stays_apart() -> None:
    assert products(merge_products(made(9), 1)) == 3
    assert products(merge_products(made(1, widths=(16,)), 1)) == 1
    assert products(merge_products(made(1, widths=(12, 20)), 1)) == 2  # of no whole vectors
    assert products(merge_products(made(1), 4)) == 3  # the matrices are inputs


def of_many_rows(make: Any) -> Any:
    """Return a module of two products of 40 rows, [32, 16] each, and what ``make`` computes of them."""

    def whole(emit: Any, x: Any, w0: Any, w1: Any, other: Any) -> Any:
        return make(emit, emit(R.matmul(x, w0)), emit(R.matmul(x, w1)), other)

    return function(inputs((40, 32), (32, 16), (32, 16), (16,)), whole)


def gated(emit: Any, gate: Any, up: Any, _other: Any) -> Any:
    return emit(R.multiply(emit(R.nn.silu(gate)), up))


def rotated(emit: Any, q: Any, k: Any, other: Any) -> Any:
    """Both are scaled by a row, q behind a transpose of heads."""
    heads = emit(R.permute_dims(emit(R.reshape(q, (40, 2, 8))), [1, 0, 2]))
    scores = emit(R.matmul(heads, emit(R.permute_dims(heads, [0, 2, 1]))))
    return emit(R.add(emit(R.sum(scores)), emit(R.multiply(k, other))))


def biased(emit: Any, a: Any, b: Any, other: Any) -> Any:
    return emit(R.multiply(emit(R.add(a, other)), emit(R.add(b, other))))


def activated(emit: Any, a: Any, b: Any, _other: Any) -> Any:
    """Neither is the gate of the other."""
    return emit(R.concat([emit(R.nn.relu(a)), emit(R.nn.relu(b))], axis=1))


def read_by_a_product(emit: Any, a: Any, b: Any, _other: Any) -> Any:
    return emit(R.add(emit(R.matmul(a, emit(R.permute_dims(a)))), emit(R.matmul(b, emit(R.permute_dims(b))))))


def read_by_a_convolution(emit: Any, a: Any, b: Any, other: Any) -> Any:
    images = [emit(R.reshape(emit(R.permute_dims(emit(R.add(each, other)))), (1, 16, 8, 5))) for each in (a, b)]
    kernel = emit(R.reshape(images[1], (16, 1, 8, 5)))
    return R.nn.conv2d(emit(R.nn.conv2d(images[0], kernel, groups=16)), kernel, groups=16, padding=[4, 2])


def heads_of(emit: Any, rows: Any, bias: Any) -> Any:
    return emit(R.reshape(emit(R.add(rows, bias)), (40, 2, 8)))


def rotated_with_biases(emit: Any, q: Any, k: Any, other: Any) -> Any:
    """As RoFormer's queries; keys are read as they are."""
    queries = emit(R.permute_dims(emit(R.negative(heads_of(emit, q, other))), [1, 0, 2]))
    return emit(R.matmul(queries, emit(R.permute_dims(heads_of(emit, k, other), [1, 2, 0]))))


def with_biases(emit: Any, q: Any, k: Any, other: Any) -> Any:
    """As BERT's: attention has a product of its own for these."""
    queries = emit(R.permute_dims(heads_of(emit, q, other), [1, 0, 2]))
    return emit(R.matmul(queries, emit(R.permute_dims(heads_of(emit, k, other), [1, 2, 0]))))


@pytest.mark.parametrize("make", [gated, rotated, rotated_with_biases, biased])
def test_products_of_many_rows_are_one_where_nothing_is_lost(make: Any) -> None:
    module = of_many_rows(make)
    merged = merge_products(module, 1)
    assert products(merged) == products(module) - 1
    assert_same_results(merged, module, rtol=1e-4, atol=1e-3)


def activated_for_two(emit: Any, a: Any, b: Any, _other: Any) -> Any:
    """An activation that several read, which no multiplication by the other product is."""
    tanh = emit(R.tanh(a))
    return emit(R.add(emit(R.multiply(tanh, tanh)), emit(R.subtract(b, tanh))))


@pytest.mark.parametrize("make", [with_biases, activated, activated_for_two, read_by_a_product, read_by_a_convolution])
def test_products_of_many_rows_keep_their_epilogues(make: Any) -> None:
    module = of_many_rows(make)
    assert products(merge_products(module, 1)) == products(module)


@pytest.mark.parametrize("rows", [4, 40])
def test_biases_are_one_vector(rows: int) -> None:
    """As modulations of diffusion transformers have them, of few rows; a bias may have axes of one element in front."""

    def block(emit: Any, x: Any, *operands: Any) -> Any:
        parts = [emit(R.matmul(x, matrix)) for matrix in operands[:3]]
        biased = [emit(R.add(part, bias)) for part, bias in zip(parts, operands[3:], strict=False)]
        first, second, third = (emit(R.negative(each)) for each in (*biased, parts[2]))
        return emit(R.multiply(emit(R.multiply(first, second)), third))

    module = function(inputs((1, rows, 32), *[(32, 16)] * 3, (16,), (1, 1, 16)), block)
    merged = merge_products(module, 1)
    counts = [operator_of(binding.value) for binding in bindings_of(merged["main"])]
    assert (products(module), counts.count("matmul"), counts.count("add")) == (3, 1 if rows == 4 else 2, 1)
    assert_same_results(merged, module, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [4, 40])
def test_a_bias_that_adds_an_axis_stays(rows: int) -> None:
    def block(emit: Any, x: Any, *operands: Any) -> Any:
        parts = [emit(R.matmul(x, matrix)) for matrix in operands[:2]]
        return emit(R.multiply(*(emit(R.add(part, operands[2])) for part in parts)))

    module = function(inputs((rows, 32), *[(32, 16)] * 2, (1, 1, 16)), block)
    assert_same_results(merge_products(module, 1), module, rtol=1e-4, atol=1e-4)


def test_keys_without_a_bias_are_merged_in_place() -> None:
    """As DINOv3's: zeros are added to them, and queries and keys stay neighbors."""

    def block(emit: Any, x: Any, *operands: Any) -> Any:
        (bias, q, k, v) = operands
        rows = [emit(R.matmul(x, matrix)) for matrix in (q, k, v)]
        biased = [emit(R.add(rows[0], bias)), rows[1], emit(R.add(bias, rows[2]))]
        heads = [emit(R.reshape(each, (40, 2, 8))) for each in biased]
        scores = emit(R.multiply(emit(R.negative(heads[0])), emit(R.negative(heads[1]))))
        return emit(R.matmul(scores, emit(R.permute_dims(heads[2], [0, 2, 1]))))

    module = function(inputs((40, 32), (16,), *[(32, 16)] * 3), block)
    merged = merge_products(module, 1)
    assert products(module) - products(merged) == 2
    begins = [b.value.args[2].fields[0] for b in bindings_of(merged["main"]) if operator_of(b.value) == "strided_slice"]
    assert [int(begin) for begin in begins] == [16, 0, 32]  # of keys, which are read first, of queries, of values
    assert_same_results(merged, module, rtol=1e-4, atol=1e-3)


def test_a_gate_and_what_it_gates_stay_without_others() -> None:
    """As in Cohere's blocks, where heads and the MLP read the same rows."""

    def block(emit: Any, x: Any, gate: Any, up: Any, q: Any, k: Any) -> Any:
        read = [emit(R.negative(emit(R.matmul(x, matrix)))) for matrix in (q, k)]
        return emit(R.concat([gated(emit, emit(R.matmul(x, gate)), emit(R.matmul(x, up)), None), *read], axis=1))

    module = merge_products(function(inputs((40, 32), *[(32, 16)] * 4), block), 1)
    found = [binding.var for binding in bindings_of(module["main"]) if operator_of(binding.value) == "matmul"]
    assert [int(product.ty.shape.values[1]) for product in found] == [32, 32]


def test_two_gates_of_one_product() -> None:
    """The first is made with it."""

    def block(emit: Any, x: Any, first: Any, second: Any, up: Any) -> Any:
        gates = [emit(R.matmul(x, matrix)) for matrix in (first, second)]
        wide = emit(R.matmul(x, up))
        return emit(R.add(gated(emit, gates[0], wide, None), gated(emit, gates[1], wide, None)))

    module = function(inputs((40, 32), *[(32, 16)] * 3), block)
    merged = merge_products(module, 1)
    assert (products(module), products(merged)) == (3, 2)
    assert_same_results(merged, module, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("rows", "heads", "name"), [(1, 4, "reshape"), (3, 1, "reshape"), (3, 4, "permute_dims")])
def test_transposes_of_an_axis_of_one_element_are_reshapes(rows: int, heads: int, name: str) -> None:
    x = relax.Var("x", relax.TensorType((2, rows, heads, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(R.permute_dims(x, [0, 2, 1, 3]))
        builder.emit_func_output(result)
    module = reshape_unit_axes(builder.get())
    assert [operator_of(binding.value) for binding in bindings_of(module["main"])] == [name]
    value = np.random.default_rng(0).standard_normal((2, rows, heads, 8)).astype(np.float32)
    np.testing.assert_array_equal(compute(module, [value])[0], value.transpose(0, 2, 1, 3))
