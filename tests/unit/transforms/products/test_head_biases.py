"""Vectors that are added to heads are biases of their product."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.dataflow import bindings_of, operator_of
from packager.transforms.products.head_biases import MOST_STEPS, add_to_biases
from tests.unit.transforms.products.test_modulated_convs import function, inputs
from tests.unit.tvm_machine import assert_same_results

R = relax.op
B, L, H, D, N = 2, 5, 3, 8, 24


def heads(emit: Any, x: Any, matrix: Any, bias: Any | None) -> Any:
    rows = emit(R.matmul(x, matrix))
    rows = rows if bias is None else emit(R.add(bias, rows))
    return emit(R.reshape(rows, [B, L, H, D]))


def scores(emit: Any, *queries: Any) -> Any:
    """Read each of the queries in its own way."""
    return emit(R.concat([emit(R.multiply(query, relax.const(float(2 + at)))) for at, query in enumerate(queries)], 1))


def before_the_transpose(emit: Any, x: Any, matrix: Any, bias: Any, u: Any, v: Any) -> Any:
    """As the Conformer's code has it."""
    queries = heads(emit, x, matrix, bias)
    return scores(emit, *(emit(R.permute_dims(emit(R.add(queries, each)), [0, 2, 1, 3])) for each in (u, v)))


def behind_the_transpose(emit: Any, x: Any, matrix: Any, bias: Any, u: Any, v: Any) -> Any:
    queries = emit(R.permute_dims(heads(emit, x, matrix, bias), [0, 2, 1, 3]))
    turned = [emit(R.reshape(each, [1, H, 1, D])) for each in (u, v)]
    return scores(emit, *(emit(R.add(each, queries)) for each in turned))


def with_a_late_vector(emit: Any, x: Any, matrix: Any, bias: Any, u: Any, v: Any) -> Any:
    """The second vector has its shape behind the first sum, as torch.export writes it."""
    queries = emit(R.permute_dims(heads(emit, x, matrix, bias), [0, 2, 1, 3]))
    return scores(emit, *(emit(R.add(queries, emit(R.reshape(each, [1, H, 1, D])))) for each in (u, v)))


def without_a_bias(emit: Any, x: Any, matrix: Any, _bias: Any, u: Any, v: Any) -> Any:
    """As XLNet."""
    queries = heads(emit, x, matrix, None)
    return scores(emit, *(emit(R.add(queries, each)) for each in (u, v)))


def one(emit: Any, x: Any, matrix: Any, bias: Any, u: Any, _v: Any) -> Any:
    return scores(emit, emit(R.add(heads(emit, x, matrix, bias), u)))


def read_by_others(emit: Any, x: Any, matrix: Any, bias: Any, u: Any, _v: Any) -> Any:
    queries = heads(emit, x, matrix, bias)
    return scores(emit, emit(R.add(queries, u)), queries)


def three(emit: Any, x: Any, matrix: Any, bias: Any, u: Any, v: Any) -> Any:
    """More products than are worth it."""
    queries = heads(emit, x, matrix, bias)
    return scores(emit, *(emit(R.add(queries, each)) for each in (u, v, emit(R.add(u, v)))))


def of_rows(emit: Any, x: Any, matrix: Any, bias: Any, u: Any, _v: Any) -> Any:
    """A vector of each row is no bias: heads and rows have changed places, and there are as many of each."""
    rows = emit(R.reshape(heads(emit, x, matrix, bias), [B, L, H, D]))
    turned = emit(R.permute_dims(rows, [0, 2, 3, 1]))
    return scores(emit, emit(R.add(turned, emit(R.reshape(emit(R.sum(u, [1])), [1, H, 1, 1])))))


SHAPES = ((B, L, 16), (16, N), (N,), (H, D), (H, D))


def count(module: Any, operator: str) -> int:
    return sum(operator_of(binding.value) == operator for binding in bindings_of(module["main"]))


@pytest.mark.parametrize("make", [before_the_transpose, behind_the_transpose, with_a_late_vector, without_a_bias, one])
def test_heads_are_of_one_product_with_a_bias(make: Any) -> None:
    module = function(inputs(*SHAPES), make)
    rewritten = add_to_biases(module, 1)
    sums = [binding.var for binding in bindings_of(rewritten["main"]) if operator_of(binding.value) == "add"]
    assert count(rewritten, "matmul") == 1
    assert max(variable.ty.ndim for variable in sums) == 3  # none is of heads
    assert_same_results(rewritten, module, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [read_by_others, three, of_rows])
def test_other_sums_of_heads_stay(make: Any) -> None:
    module = function(inputs(*SHAPES), make)
    assert add_to_biases(module, 1).script() == module.script()


def test_vectors_that_are_inputs_are_no_biases() -> None:
    module = function(inputs(*SHAPES), before_the_transpose)
    assert add_to_biases(module, 5).script() == module.script()


def test_products_of_many_steps_are_not_made_twice() -> None:
    deep = ((B, L, MOST_STEPS + 8), (MOST_STEPS + 8, N), *SHAPES[2:])
    module = function(inputs(*deep), before_the_transpose)
    assert add_to_biases(module, 1).script() == module.script()
