"""Reductions of very few elements on a GPU: part of the kernel that makes them and that reads the result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from packager.graph.dataflow import bindings_of, operator_of
from packager.lower.cuda.algorithms.short_reductions import legalize_short_reduction
from tests.unit.lower.test_cuda_lookups import kernels, written
from tests.unit.tvm_machine import compute

R = relax.op
NAMES = ("sum", "mean", "prod", "max", "min")
EXPECTED = {"sum": np.sum, "mean": np.mean, "prod": np.prod, "max": np.max, "min": np.min}


def reduced(name: str, shape: tuple[Any, ...], axes: list[int], keepdims: bool, dtype: str = "float32") -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType(shape, dtype))
    return written(lambda builder, x: builder.emit(getattr(R, name)(x, axis=axes, keepdims=keepdims)), x)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(
    ("shape", "axes"), [((5, 7, 3), [2]), ((4, 6), [-2]), ((2, 5, 2), [0, 2]), ((5, 1, 7), [1])], ids=str
)
@pytest.mark.parametrize("name", NAMES)
def test_few_elements_are_reduced(name: str, shape: tuple[int, ...], axes: list[int], keepdims: bool) -> None:
    module = reduced(name, shape, axes, keepdims)
    legalizers = {f"relax.{each}": legalize_short_reduction for each in NAMES}
    lowered = relax.transform.LegalizeOps(legalizers)(module)
    assert all(operator_of(binding.value) != name for binding in bindings_of(lowered["main"]))
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    expected = EXPECTED[name](x, axis=tuple(axes), keepdims=keepdims)
    np.testing.assert_allclose(compute(lowered, [x])[0], expected, rtol=1e-5, atol=1e-6)


def test_infinite_and_missing_numbers() -> None:
    x = np.array([[np.inf, -np.inf, 1.0], [-np.inf, -np.inf, -np.inf]], "float32")
    for name in ("max", "min", "sum"):
        lowered = relax.transform.LegalizeOps({f"relax.{name}": legalize_short_reduction})(
            reduced(name, (2, 3), [1], keepdims=False)
        )
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(compute(lowered, [x])[0], EXPECTED[name](x, axis=1))


def test_half_precision_is_summed_in_float32() -> None:
    """65504 + 65504 - 65504 is no infinity."""
    lowered = relax.transform.LegalizeOps({"relax.sum": legalize_short_reduction})(
        reduced("sum", (1, 3), [1], keepdims=False, dtype="float16")
    )
    x = np.array([[65504, 65504, -65504]], "float16")
    np.testing.assert_array_equal(compute(lowered, [x])[0], np.array([65504], "float16"))


@pytest.mark.parametrize(("length", "several"), [(3, False), (8, True)])
def test_distances_of_points_are_one_kernel(length: int, several: bool) -> None:
    def near(builder: Any, x: Any, y: Any) -> Any:
        apart = builder.emit(R.subtract(R.expand_dims(x, 2), R.expand_dims(y, 1)))
        squares = builder.emit(R.sum(builder.emit(R.multiply(apart, apart)), axis=[3], keepdims=True))
        scaled = builder.emit(R.exp(builder.emit(R.negative(squares))))
        return builder.emit(R.concat([scaled, apart], axis=3))

    x, y = (relax.Var(name, relax.TensorType([2, 32, length], "float32")) for name in "xy")
    assert (len(kernels(written(near, x, y))) > 1) == several


@pytest.mark.parametrize("name", NAMES)
def test_symbolic_extents_and_everything(name: str) -> None:
    n = tvm.tirx.Var("n", "int64")
    for shape, axes in (((n, 3), [1]), ((3, n), [1]), ((2, 2), [0, 1])):
        assert len(kernels(reduced(name, shape, axes, keepdims=False))) == 1
