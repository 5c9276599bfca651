"""Rows of all images are multiplied by the matrix of a head that they share."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.dataflow import bindings_of, operator_of, shape_of
from packager.transforms.products.shared_matrices import multiply_rows_of_images
from tests.unit.transforms.products.test_modulated_convs import function, inputs
from tests.unit.tvm_machine import assert_same_results

R = relax.op


def product(emit: Any, a: Any, b: Any) -> Any:
    return emit(R.nn.relu(emit(R.matmul(a, b))))


def products(module: Any) -> list[tuple[Any, ...]]:
    """Return the shapes of the operands of products."""
    values = [binding.value for binding in bindings_of(module["main"])]
    return [tuple(map(shape_of, value.args)) for value in values if operator_of(value) == "matmul"]


@pytest.mark.parametrize(
    ("columns", "padded"),
    [pytest.param(16, 16, id="vectors"), pytest.param(11, 16, id="2 n - 1 positions"), pytest.param(47, 48, id="47")],
)
def test_products_are_one_for_each_head(columns: int, padded: int) -> None:
    module = function(inputs((3, 4, 6, 8), (1, 4, 8, columns)), product)
    rewritten = multiply_rows_of_images(module)
    assert products(rewritten) == [((4, 18, 8), (4, 8, padded))]
    assert_same_results(rewritten, module, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        pytest.param((3, 4, 6, 8), (3, 4, 8, 16), id="a matrix of each image"),
        pytest.param((1, 4, 6, 8), (1, 4, 8, 16), id="one image"),
        pytest.param((3, 1, 6, 8), (1, 1, 8, 16), id="one head"),
        pytest.param((3, 4, 6, 8), (8, 16), id="one matrix"),
        pytest.param((3, 4, 6, 7), (1, 4, 7, 16), id="rows that are no vectors"),
        pytest.param((3, 4, 6, 8), (1, 4, 8, 7), id="few columns"),
    ],
)
def test_other_products_stay(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    module = function(inputs(left, right), product)
    assert multiply_rows_of_images(module).script() == module.script()


def test_batches_may_be_dynamic() -> None:
    from tvm import tirx

    batch = tirx.Var("n", "int64")
    left = relax.Var("a", relax.TensorType([batch, 4, 6, 8], "float32"))
    right = relax.Var("b", relax.TensorType([1, 4, 8, 11], "float32"))
    module = function([left, right], product)
    ((rows, matrix),) = products(multiply_rows_of_images(module))
    assert (rows[0], rows[2], matrix) == (4, 8, (4, 8, 16))
