"""Softmax over other axes than the last one for GPUs, its loops run one after the other here, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import relax, tirx

from packager.lower.cuda.schedule import schedule_cuda
from tests.unit.lower.algorithms.test_cuda_algorithms import compiled, legalized
from tests.unit.lower.test_schedule_cuda import TARGET, lower

GENERATOR = np.random.default_rng(11)
OPERATORS = {"softmax": relax.op.nn.softmax, "log_softmax": relax.op.nn.log_softmax}


def expected(x: np.ndarray, axis: int, name: str) -> np.ndarray:
    shifted = x.astype("f8") - x.max(axis, keepdims=True)
    total = np.exp(shifted).sum(axis, keepdims=True)
    return np.asarray(shifted - np.log(total) if name == "log_softmax" else np.exp(shifted) / total)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 3e-6), ("float16", 2e-3)])
@pytest.mark.parametrize(
    ("shape", "axis"), [((8, 33, 40), 1), ((2, 3, 5, 7), 1), ((2, 21, 9, 8), 1), ((300, 5), 0), ((4, 5, 6, 7), -2)]
)
def test_columns_are_normalized(shape: tuple[int, ...], axis: int, dtype: str, tolerance: float, name: str) -> None:
    x = (3 * GENERATOR.standard_normal(shape)).astype(dtype)
    (found,) = compiled(lambda p: OPERATORS[name](p, axis=axis), relax.TensorType(shape, dtype))(x)
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found, expected(x, axis, name), tolerance, tolerance)


@pytest.mark.parametrize("name", OPERATORS)
def test_columns_of_symbolic_length(name: str) -> None:
    x = GENERATOR.standard_normal((2, 19, 12)).astype("f4")
    kind = relax.TensorType([2, tirx.Var("n", "int64"), 12], "float32")
    (found,) = compiled(lambda p: OPERATORS[name](p, axis=1), kind)(x)
    np.testing.assert_allclose(found, expected(x, 1, name), 3e-6, 3e-6)


def test_a_thread_block_reads_adjacent_columns() -> None:
    def make(x: Any) -> relax.Call:
        return relax.op.nn.softmax(x, axis=1)

    _, functions = legalized(make, relax.TensorType([8, 512, 512], "float32"))
    launches = [launch for f in functions for launch in lower(schedule_cuda(f, TARGET))[1].values()]
    assert len(functions) == 3  # the largest, the sum, and what is computed of them
    assert all(int(launch.extents["blockIdx.x"]) < 8 * 512 for launch in launches[:2])
