"""Rows are scanned by blocks of threads for GPUs, their loops run one after the other here."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import relax, tirx

from packager.lower.cuda.algorithms.scan_rows import CHUNK, MOST_CHUNKS
from packager.lower.legalize.cumulative import WHOLE
from tests.unit.lower.algorithms.test_cuda_algorithms import compiled, legalized

GENERATOR = np.random.default_rng(11)
N, ROWS = tirx.Var("n", "int64"), tirx.Var("rows", "int64")


def exclusive(x: np.ndarray, neutral: int) -> np.ndarray:
    return np.concatenate([np.full_like(x[..., :1], neutral), x[..., :-1]], -1)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int64"])
@pytest.mark.parametrize("is_exclusive", [False, True])
@pytest.mark.parametrize(
    "shape", [(5, 65), (2, 3, 128), (3, 1000), (1, CHUNK), (2, CHUNK + 1), (1, 3 * CHUNK + 77), (200,)]
)
def test_sums(dtype: str, is_exclusive: bool, shape: tuple[int, ...]) -> None:
    run = compiled(lambda x: relax.op.cumsum(x, -1, exclusive=is_exclusive), relax.TensorType(shape, dtype))
    x = GENERATOR.integers(-9, 9, shape).astype(dtype)
    wanted = np.cumsum(exclusive(x, 0) if is_exclusive else x, -1, dtype="int64")
    np.testing.assert_array_equal(run(x)[0], wanted.astype(dtype))


def test_products() -> None:
    run = compiled(lambda x: relax.op.cumprod(x, -1, exclusive=True), relax.TensorType((3, 700), "float32"))
    x = GENERATOR.uniform(0.9, 1.1, (3, 700)).astype(np.float32)
    np.testing.assert_allclose(run(x)[0], np.cumprod(exclusive(x, 1).astype(np.float64), -1), rtol=1e-5)


def test_sums_of_another_type() -> None:
    """As of a mask."""
    run = compiled(lambda x: relax.op.cumsum(x, 1, dtype="int64"), relax.TensorType((2, 130), "int32"))
    x = GENERATOR.integers(0, 2, (2, 130)).astype(np.int32)
    np.testing.assert_array_equal(run(x)[0], np.cumsum(x, 1, dtype=np.int64))


@pytest.mark.parametrize("size", [0, 1, 64, CHUNK - 1, CHUNK, CHUNK + 1, 2500])
def test_any_number_of_elements_and_rows(size: int) -> None:
    run = compiled(lambda x: relax.op.cumsum(x, 1), relax.TensorType([ROWS, N], "int32"))
    x = GENERATOR.integers(-9, 9, (3, size)).astype(np.int32)
    np.testing.assert_array_equal(run(x)[0], np.cumsum(x, 1))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
@pytest.mark.parametrize("is_exclusive", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((2, 100, 40), 1), ((3, 257, 8), 1), ((70, 5, 33), 0), ((2, 5000, 32), 1), ((2, 3, WHOLE + 1, 4, 9), 2)],
)
def test_columns(dtype: str, is_exclusive: bool, shape: tuple[int, ...], axis: int) -> None:
    run = compiled(lambda x: relax.op.cumsum(x, axis, exclusive=is_exclusive), relax.TensorType(shape, dtype))
    x = GENERATOR.integers(-2, 3, shape).astype(dtype)
    wanted = np.cumsum(x, axis, dtype="int64") - (x.astype("int64") if is_exclusive else 0)
    np.testing.assert_array_equal(run(x)[0], wanted.astype(dtype))


def test_products_of_columns_of_any_number_of_tensors() -> None:
    run = compiled(lambda x: relax.op.cumprod(x, 1), relax.TensorType([N, 130, 12], "float32"))
    x = GENERATOR.uniform(0.9, 1.1, (3, 130, 12)).astype(np.float32)
    np.testing.assert_allclose(run(x)[0], np.cumprod(x.astype(np.float64), 1), rtol=1e-5)


def test_columns_are_scanned_by_blocks_of_threads() -> None:
    """By reductions each element read two times the root of the column's elements."""
    module, _ = legalized(lambda x: relax.op.cumsum(x, 1), relax.TensorType((16, 256, 256), "float32"))
    assert 'scope="shared"' in module.script()


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        pytest.param((3, WHOLE), 1, id="few elements"),
        pytest.param((CHUNK * MOST_CHUNKS + 1,), 0, id="very many elements"),
        pytest.param((300, 3), 0, id="few columns"),
    ],
)
def test_others_are_reductions(shape: tuple[int, ...], axis: int) -> None:
    """Which fuse with what reads them, or have many blocks for a row."""
    module, _ = legalized(lambda x: relax.op.cumsum(x, axis), relax.TensorType(shape, "float32"))
    assert "T.reads(" in module.script()
    assert 'scope="shared"' not in module.script()
