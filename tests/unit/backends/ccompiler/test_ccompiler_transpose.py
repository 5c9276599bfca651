"""Permutations of axes by the ccompiler backend: any order, odd extents, symbolic dims, all widths of elements."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm")
from ccompiler_runner import Runner, partition, variable
from tvm import tirx
from tvm.relax import op

pytestmark = pytest.mark.slow

ORDERS = [order for order in itertools.permutations(range(4)) if order != (0, 1, 2, 3)]


def numbers(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """Return elements that differ as far as the type has so many."""
    return np.arange(np.prod(shape)).astype(dtype).reshape(shape)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_every_order_of_symbolic_axes(order: tuple[int, ...], tmp_path: Path) -> None:
    dims = [tirx.Var(name, "int64") for name in "abcd"]
    run = Runner(partition([variable("x", dims)], lambda e, x: e(op.permute_dims(x, list(order)))), tmp_path)
    for shape in ((1, 1, 1, 1), (2, 3, 4, 5), (3, 17, 2, 33), (1, 300, 1, 16), (2, 16, 32, 48)):
        np.testing.assert_array_equal(run(numbers(shape)), numbers(shape).transpose(order))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "int64", "bool"])
def test_types(dtype: str, tmp_path: Path) -> None:
    n = tirx.Var("n", "int64")
    arguments = [variable("x", (n, 35, 50), dtype), variable("y", (n, 4, 6, 3), dtype)]

    def body(e, x, y):
        return e(op.permute_dims(x, [0, 2, 1])), e(op.permute_dims(y, [2, 0, 1, 3]))

    run = Runner(partition(arguments, body), tmp_path)
    for batch in (1, 3):
        x, y = numbers((batch, 35, 50), dtype), numbers((batch, 4, 6, 3), dtype)
        first, second = run(x, y)
        np.testing.assert_array_equal(first, x.transpose(0, 2, 1))
        np.testing.assert_array_equal(second, y.transpose(2, 0, 1, 3))


def test_what_follows_has_a_loop_of_its_own(tmp_path: Path) -> None:
    n = tirx.Var("n", "int64")

    def body(e, x):
        return e(op.nn.relu(e(op.permute_dims(x, [1, 0]))))

    run = Runner(partition([variable("x", (n, 19))], body), tmp_path)
    assert [function.symbol.split("_")[-1] for function in run.group.functions] == ["copy", "elementwise"]
    x = numbers((20, 19)) - 100
    np.testing.assert_array_equal(run(x), np.maximum(x.T, 0))
