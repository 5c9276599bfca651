"""Products with one column are sums of rows on a GPU, fused with what has as many elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from packager.lower.cuda.algorithms.dot import sum_products
from packager.lower.cuda.schedule import schedule_cuda
from tests.unit.lower.test_cuda_lookups import kernels
from tests.unit.lower.test_schedule_cuda import TARGET, in_shapes_of, lower, serial
from tests.unit.transforms.products.test_modulated_convs import function, inputs

R = relax.op
F = "float32"


def summed(make: Any, *shapes: tuple[int, ...]) -> Any:
    return sum_products(function(inputs(*shapes), make))


@pytest.mark.parametrize("rows", [(70,), (3, 9), (1,)])
@pytest.mark.parametrize("length", [400, 77, 8])
def test_a_sum_of_rows_computes_the_product(rows: tuple[int, ...], length: int) -> None:
    module = summed(lambda emit, x, w: emit(R.matmul(x, w)), (*rows, length), (length, 1))
    (name,) = [name for name in module.get_global_vars() if name.name_hint != "main"]
    scheduled = schedule_cuda(module[name], TARGET)
    lower(scheduled)
    library = tvm.compile(tvm.IRModule({"main": serial(scheduled).with_attr("global_symbol", "main")}), target="llvm")
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((*rows, length)).astype(F), rng.standard_normal(length).astype(F)
    arrays = in_shapes_of(scheduled, (x, w, np.full((*rows, 1), np.nan, F)))
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    library["main"](*tensors)
    np.testing.assert_allclose(tensors[-1].numpy().reshape(rows), x @ w, rtol=1e-4, atol=1e-4)


def test_what_has_as_many_elements_is_part_of_it() -> None:
    def head(emit: Any, x: Any, w: Any, b: Any) -> Any:
        return emit(R.sigmoid(emit(R.add(emit(R.matmul(x, w)), b))))

    def cross(emit: Any, x: Any, w: Any, _b: Any) -> Any:
        return emit(R.multiply(x, emit(R.nn.relu(emit(R.matmul(x, w))))))

    shapes = ((64, 32), (32, 1), (1,))
    assert sorted(kernels(summed(head, *shapes))) == ["fused_matmul_add_tir_sigmoid", "reshape"]
    assert sorted(kernels(summed(cross, *shapes))) == ["fused_relu_multiply", "matmul", "reshape"]


def test_other_products_stay() -> None:
    module = function(inputs((64, 32), (32, 2)), lambda emit, x, w: emit(R.matmul(x, w)))
    assert len(sum_products(module).get_global_vars()) == 1
