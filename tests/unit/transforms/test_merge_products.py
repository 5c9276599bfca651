"""Products of the same few rows become one; transposes of heads of one row become reshapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.dataflow import bindings_of, operator_of
from packager.transforms.simplify.merge_products import merge_products
from packager.transforms.simplify.unit_axes import reshape_unit_axes
from tests.unit.tvm_machine import compute

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
    rng = np.random.default_rng(0)
    shapes = [[int(extent) for extent in parameter.ty.shape.values] for parameter in module["main"].params]
    arguments = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    np.testing.assert_allclose(compute(merged, arguments)[0], compute(module, arguments)[0], rtol=1e-5, atol=1e-5)


def test_what_stays_apart() -> None:
    assert products(merge_products(made(9), 1)) == 3
    assert products(merge_products(made(1, widths=(16,)), 1)) == 1
    assert products(merge_products(made(1, widths=(12, 20)), 1)) == 2  # of no whole vectors
    assert products(merge_products(made(1), 4)) == 3  # the matrices are inputs


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
