"""Linear recurrences of GPUs and CPUs, beside numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm")
import tvm
from tvm import relax

from packager.graph.recurrences.linear_scan import linear_scan
from packager.lower.devices import CPU_LEGALIZERS
from tests.unit.lower.algorithms.test_cuda_algorithms import compiled
from tests.unit.tvm_machine import compute

GENERATOR = np.random.default_rng(5)
SHAPES = [(8, 3, 40), (7, 5), (1, 4), (129, 2, 3, 4), (24, 1000), (197, 6)]


def wanted(decay: np.ndarray, update: np.ndarray) -> np.ndarray:
    states = [np.zeros(update.shape[1:])]
    for factor, term in zip(decay.astype("float64"), update.astype("float64"), strict=True):
        states.append(factor * states[-1] + term)
    return np.stack(states[1:])


def operands(shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    return [GENERATOR.uniform(low, 1.0, shape).astype(dtype) for low in (0.5, -1.0)]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_thread_has_an_element(shape: tuple[int, ...], dtype: str) -> None:
    given = operands(shape, dtype)
    (found,) = compiled(linear_scan, *[relax.TensorType(shape, dtype)] * 2)(*given)
    np.testing.assert_allclose(found, wanted(*given), rtol=1e-5 if dtype == "float32" else 1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cpus_have_the_same(shape: tuple[int, ...]) -> None:
    given = operands(shape, "float32")
    builder = relax.BlockBuilder()
    parameters = [relax.Var(name, relax.TensorType(shape, "float32")) for name in ("decay", "update")]
    with builder.function("main", parameters):
        builder.emit_func_output(builder.emit(linear_scan(*parameters)))
    module: tvm.IRModule = relax.transform.LegalizeOps(CPU_LEGALIZERS)(builder.get())
    np.testing.assert_allclose(compute(module, given)[0], wanted(*given), rtol=1e-5, atol=1e-5)
