"""Reductions of whole tensors in two steps."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.dataflow import bindings_of, operator_of
from packager.transforms.simplify.whole_reductions import LEAST, split_whole_reductions
from tests.unit.transforms.products.test_modulated_convs import function
from tests.unit.tvm_machine import assert_same_results

R = relax.op


def split(shape: tuple[int, ...], reduce: Any, dtype: str = "float32") -> tuple[Any, Any, list[str]]:
    """Return a module, what it becomes, and the operators of that."""
    module = function([relax.Var("x", relax.TensorType(shape, dtype))], lambda emit, x: emit(reduce(x)))
    after = split_whole_reductions(module)
    return module, after, [operator_of(binding.value) for binding in bindings_of(after["main"])]


@pytest.mark.parametrize("name", ["max", "min", "sum", "mean"])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("shape", [(4, 64, 256), (2, 50, 12, 40), (LEAST,), (3, 40000), (1, 1, LEAST * 3)])
def test_large_tensors_are_reduced_in_two_steps(shape: tuple[int, ...], name: str, keepdims: bool) -> None:
    module, after, operators = split(shape, lambda x: getattr(R, name)(x, keepdims=keepdims))
    assert operators.count(name) == 2
    assert_same_results(after, module, rtol=1e-5, atol=2e-3 if name == "sum" else 1e-5)


@pytest.mark.parametrize("shape", [(4, 64, 64), (32771,)])
def test_small_ones_and_those_without_rows_stay(shape: tuple[int, ...]) -> None:
    module, after, _ = split(shape, R.sum)
    assert after.script() == module.script()


def test_reductions_along_some_axes_stay() -> None:
    module, after, _ = split((4, 64, 256), lambda x: R.sum(x, [1, 2]))
    assert after.script() == module.script()


@pytest.mark.parametrize(("name", "steps"), [("max", 2), ("sum", 1)])
def test_sums_of_halves_are_rounded_once(name: str, steps: int) -> None:
    _, _, operators = split((4, 64, 256), getattr(R, name), "float16")
    assert operators.count(name) == steps
