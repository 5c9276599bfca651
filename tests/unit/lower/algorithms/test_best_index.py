"""The best element of each row or column on GPUs is found by reductions that many threads share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.lower.cuda.schedule import schedule_cuda
from tests.unit.lower.algorithms.test_cuda_algorithms import legalized, runs
from tests.unit.lower.test_schedule_cuda import TARGET, lower

GENERATOR = np.random.default_rng(3)
OPERATORS = {"argmax": relax.op.argmax, "argmin": relax.op.argmin}


def found(name: str, x: np.ndarray, axis: int | None, keepdims: bool = False) -> np.ndarray:
    def make(value: Any) -> relax.Call:
        return OPERATORS[name](value, axis, keepdims)

    module, _ = legalized(make, relax.TensorType(x.shape, str(x.dtype)))
    return np.asarray(runs(module)(x)[0])


def check(x: np.ndarray, axis: int | None = 1) -> None:
    """Compare with numpy, whose NaN is the best of all, too."""
    np.testing.assert_array_equal(found("argmax", x, axis), x.argmax(axis))
    np.testing.assert_array_equal(found("argmin", x, axis), x.argmin(axis))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint8", "int32", "int64"])
def test_the_first_of_equal_elements_is_found(dtype: str) -> None:
    check(GENERATOR.integers(0, 9, (5, 40)).astype(dtype))


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
def test_extreme_elements(dtype: str) -> None:
    bounds = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
    least, greatest = bounds.min, bounds.max
    rows = [[least, least, 0, -1], [greatest, 0, greatest, least], [-1, -2, -1, -2], [least] * 4, [greatest] * 4]
    check(np.array(rows, dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_numbers_that_are_not_finite(dtype: str) -> None:
    inf, nan = np.inf, np.nan
    rows = [[0, nan, inf, nan], [-inf, -inf, -inf, -inf], [-nan, 1, 2, 3], [inf, -inf, inf, -inf], [nan] * 4]
    check(np.array(rows, dtype))


def test_zeros_of_both_signs_are_equal() -> None:
    check(np.array([[-0.0, 0.0], [0.0, -0.0]], "float32"))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, None])
def test_axes(axis: int | None) -> None:
    x = GENERATOR.normal(size=(3, 20, 7)).astype("float32")
    check(x, axis)
    if axis is not None:
        np.testing.assert_array_equal(found("argmax", x, axis, keepdims=True), x.argmax(axis, keepdims=True))


@pytest.mark.parametrize(
    ("shape", "axis"), [((8, 1024), 1), ((2, 21, 64, 64), 1), ((1, 50_000), 1), ((3, 20_000), None)]
)
@pytest.mark.parametrize("dtype", ["float16", "int64"])
def test_threads_share_what_is_reduced(shape: tuple[int, ...], axis: int | None, dtype: str) -> None:
    """A thread for each result took 127 us for 8 rows of 1,024 elements."""
    _, functions = legalized(lambda x: relax.op.argmax(x, axis), relax.TensorType(shape, dtype))
    for primfunc in functions:
        if "T.init" in primfunc.script():
            source, _ = lower(schedule_cuda(primfunc, TARGET))
            assert "threadIdx" in source
            # Columns that lie side by side have a thread each.
            assert "__shfl_down_sync" in source or "__shared__" in source or len(shape) == 4
