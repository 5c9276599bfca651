"""Residuals are added to one of several products that are summed."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.dataflow import bindings_of, operator_of
from packager.transforms.products.residual_sums import add_residuals_first
from tests.unit.transforms.products.test_modulated_convs import function, inputs
from tests.unit.tvm_machine import assert_same_results

R = relax.op
SHAPES = ((6, 16), (16, 16), (16, 16), (16,))


def beside(emit: Any, x: Any, a: Any, b: Any, _bias: Any) -> Any:
    """(x a + x b) + x, as GPT-J's blocks."""
    return emit(R.add(emit(R.add(emit(R.matmul(x, a)), emit(R.matmul(x, b)))), x))


def with_biases(emit: Any, x: Any, a: Any, b: Any, bias: Any) -> Any:
    """x + (x a + bias + x b + bias), as Phi's."""
    sides = [emit(R.add(bias, emit(R.matmul(x, matrix)))) for matrix in (a, b)]
    return emit(R.add(x, emit(R.add(*sides))))


def three(emit: Any, x: Any, a: Any, b: Any, _bias: Any) -> Any:
    first = emit(R.add(emit(R.matmul(x, a)), emit(R.matmul(x, b))))
    return emit(R.add(emit(R.add(first, x)), emit(R.matmul(x, a))))


def one_by_one(emit: Any, x: Any, a: Any, b: Any, _bias: Any) -> Any:
    """As it should be."""
    return emit(R.add(emit(R.matmul(x, b)), emit(R.add(emit(R.matmul(x, a)), x))))


def read_twice(emit: Any, x: Any, a: Any, b: Any, _bias: Any) -> Any:
    both = emit(R.add(emit(R.matmul(x, a)), emit(R.matmul(x, b))))
    return emit(R.multiply(emit(R.add(both, x)), both))


def without_a_residual(emit: Any, x: Any, a: Any, b: Any, bias: Any) -> Any:
    return emit(R.add(emit(R.add(emit(R.matmul(x, a)), emit(R.matmul(x, b)))), bias))


def sums_of_products(module: Any) -> int:
    """Return how many additions have two operands of which each is a product, or one with a vector."""
    values = {binding.var.name: binding.value for binding in bindings_of(module["main"])}

    def is_product(operand: Any) -> bool:
        value = values.get(operand.name)
        if operator_of(value) == "add":
            return any(is_product(side) for side in value.args) and any(side.ty.ndim == 1 for side in value.args)
        return operator_of(value) == "matmul"

    return sum(operator_of(v) == "add" and all(map(is_product, v.args)) for v in values.values())


@pytest.mark.parametrize("make", [beside, with_biases, three])
def test_each_product_reads_what_is_added_before(make: Any) -> None:
    module = function(inputs(*SHAPES), make)
    rewritten = add_residuals_first(module, 1)
    assert (sums_of_products(module), sums_of_products(rewritten)) == (1, 0)
    assert_same_results(rewritten, module, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [one_by_one, read_twice, without_a_residual])
def test_other_sums_stay(make: Any) -> None:
    module = function(inputs(*SHAPES), make)
    assert add_residuals_first(module, 1).script() == module.script()


def test_matrices_that_are_inputs_are_no_products_with_the_model() -> None:
    module = function(inputs(*SHAPES), beside)
    assert add_residuals_first(module, 3).script() == module.script()
