"""The cases of cutlass/operators.py, which run on a GPU: models that are valid, and references that are right."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from benchmarks.cutlass import operator_cases as cases
from benchmarks.harness import gpu


def test_names_are_unique_and_models_valid() -> None:
    assert len({case.name for case in cases.CASES}) == len(cases.CASES) > 90
    for case in cases.CASES:
        onnx.checker.check_model(case.model())


def test_the_cases_cover_what_tvms_tests_do() -> None:
    names = {case.name for case in cases.CASES}
    wanted = {"dense_fp32_out", "dense_alignment_1", "dense_tf32", "dense_3xtf32", "dense_dynamic", "bmm_dynamic"}
    wanted |= {"conv_ic3", "conv_ic16", "conv_dynamic_ic3", "conv_residual_relu", "conv_fast_math", "dense_one_row"}
    assert wanted | {"dense_split_k_1", "dense_split_k_8", "dense_huge"} <= names


def test_a_reference_is_what_numpy_computes() -> None:
    case = next(case for case in cases.CASES if case.name == "dense_relu")
    inputs = case.inputs({})
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in case.model().graph.initializer}
    product = inputs["x"].astype(np.float64) @ weights["weight"].astype(np.float64) + weights["b"].astype(np.float64)
    (found,) = cases.reference(case, inputs).values()
    np.testing.assert_allclose(found, np.maximum(product, 0), rtol=1e-4, atol=1e-5)


def test_inputs_are_the_same_every_time_and_what_the_type_can_hold() -> None:
    for name in ("dense_bf16", "dense_bias"):
        case = next(case for case in cases.CASES if case.name == name)
        first, second = case.inputs({}), case.inputs({})
        assert all(np.array_equal(first[key], second[key]) for key in first)
    bits = next(case for case in cases.CASES if case.name == "dense_bf16").inputs({})["x"].view(np.uint32)
    assert not (bits & 0xFFFF).any()


@pytest.mark.parametrize(("old", "new", "worse"), [(1.0, 2.0, 2.0), (2.0, 1.0, 2.0), (0.0, float("nan"), None)])
def test_nan_is_the_worst_error(old: float, new: float, worse: float | None) -> None:
    found = gpu.worse(old, new)
    assert found == worse or (worse is None and np.isnan(found) and np.isnan(gpu.worse(found, 1.0)))
