"""Forward substitutions of GPUs and CPUs, beside numpy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.recurrences.forward_substitution import forward_substitution
from packager.lower.cuda.algorithms.recurrences import MOST_ROWS
from packager.lower.devices import CPU_LEGALIZERS
from tests.unit.lower.algorithms.test_cuda_algorithms import compiled
from tests.unit.tvm_machine import compute

SHAPES = [(2, 3, 16, 16), (MOST_ROWS, MOST_ROWS), (5, 1, 1), (2, 33, 33), (2, MOST_ROWS + 8, MOST_ROWS + 8)]


def matrices(shape: tuple[int, ...], *, lower: bool, dtype: str = "float32") -> np.ndarray:
    found = np.random.default_rng(3).uniform(-1, 1, shape) / shape[-1] ** 0.5
    return (np.tril(found, -1) if lower else found / 4).astype(dtype)


def wanted(given: np.ndarray) -> np.ndarray:
    found = given.astype("float64")
    for i in range(1, given.shape[-1]):
        row = found[..., i, :i].copy()
        found[..., i, :i] = row + (row[..., None] * found[..., :i, :i]).sum(-2)
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_block_has_a_matrix(shape: tuple[int, ...], lower: bool, dtype: str) -> None:
    given = matrices(shape, lower=lower, dtype=dtype)
    (found,) = compiled(forward_substitution, relax.TensorType(shape, dtype))(given)
    tolerance = 1e-5 if dtype == "float32" else 2e-3
    np.testing.assert_allclose(found, wanted(given), rtol=tolerance, atol=tolerance)


def test_a_triangular_matrix_is_inverted() -> None:
    given = matrices((4, 24, 24), lower=True)
    inverse = np.linalg.inv(np.eye(24) - given.astype("float64"))
    np.testing.assert_allclose(wanted(given) + np.eye(24), inverse, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cpus_have_the_same(shape: tuple[int, ...]) -> None:
    given: Any = matrices(shape, lower=False)
    builder, parameter = relax.BlockBuilder(), relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [parameter]):
        builder.emit_func_output(builder.emit(forward_substitution(parameter)))
    module = relax.transform.LegalizeOps(CPU_LEGALIZERS)(builder.get())
    np.testing.assert_allclose(compute(module, [given])[0], wanted(given), rtol=1e-5, atol=1e-5)
