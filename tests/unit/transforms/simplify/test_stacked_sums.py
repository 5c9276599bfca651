"""Sums along a stack: of its parts."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.dataflow import bindings_of, operator_of
from packager.graph.rewrite import tidy
from packager.transforms.simplify.stacked_sums import MOST_PARTS, add_stacked
from tests.unit.transforms.products.test_modulated_convs import function
from tests.unit.tvm_machine import assert_same_results

R = relax.op
SHAPE = (2, 6, 4, 5)


def rewritten(make: Any, *shapes: tuple[int, ...], dtype: str = "float32") -> tuple[Any, Any, list[str]]:
    """Return a module, what it becomes, and the operators of that."""
    inputs = [relax.Var(f"x{number}", relax.TensorType(shape, dtype)) for number, shape in enumerate(shapes)]
    module = function(inputs, lambda emit, *tensors: emit(make(emit, *tensors)))
    after = tidy(add_stacked(module))
    return module, after, [operator_of(binding.value) for binding in bindings_of(after["main"])]


def stack(emit: Any, parts: Any, axis: int = 1) -> Any:
    return emit(R.concat([emit(R.expand_dims(part, axis)) for part in parts], axis))


def weighed(shape: tuple[int, ...], axis: int = 1) -> Any:
    return lambda emit, *x: R.sum(emit(R.multiply(emit(R.reshape(x[-1], shape)), stack(emit, x[:-1], axis))), axis)


@pytest.mark.parametrize("number", [2, 3, MOST_PARTS])
@pytest.mark.parametrize("axis", [0, 1, 4])
def test_parts_are_added_up(number: int, axis: int) -> None:
    shapes = [SHAPE] * number
    module, after, operators = rewritten(lambda emit, *x: R.sum(stack(emit, x, axis), axis), *shapes)
    assert set(operators) == {"add"}
    assert_same_results(after, module, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("axis", "weights", "shape"),
    [(1, (2, 3, 6), (2, 3, 6, 1, 1)), (1, (6, 1), (6, 1, 1)), (2, (3, 4), (3, 4, 1)), (1, (2, 6), (2, 1, 6, 1, 1))],
)
def test_a_factor_of_each_part_is_that_of_its_slice(axis: int, weights: Any, shape: tuple[int, ...]) -> None:
    module, after, operators = rewritten(weighed(shape, axis), SHAPE, SHAPE, SHAPE, weights)
    assert "concat" not in operators
    assert "sum" not in operators
    assert_same_results(after, module, rtol=1e-6, atol=1e-6)


def test_products_of_stacks_are_those_of_parts() -> None:
    def both(emit: Any, a: Any, b: Any) -> Any:
        return R.sum(emit(R.multiply(stack(emit, (a, b)), stack(emit, (b, b)))), [1])

    module, after, operators = rewritten(both, SHAPE, SHAPE)
    assert sorted(operators) == ["add", "multiply", "multiply"]
    assert_same_results(after, module, rtol=1e-6, atol=1e-6)


def test_sums_of_halves_are_rounded_once() -> None:
    _, _, operators = rewritten(lambda emit, *x: R.sum(stack(emit, x), 1), *[SHAPE] * 3, dtype="float16")
    assert operators == ["astype", "astype", "add", "astype", "add", "astype"]


@pytest.mark.parametrize(
    "make",
    [
        lambda emit, *x: R.sum(stack(emit, x), 2),
        lambda emit, *x: R.sum(stack(emit, x), 1, keepdims=True),
        lambda emit, *x: R.sum(stack(emit, x), [1, 2]),
        lambda emit, *x: R.max(stack(emit, x), 1),
        lambda emit, *x: R.sum(emit(R.concat([*x], 1)), 1),
        lambda emit, *x: R.sum(stack(emit, [*x] * MOST_PARTS), 1),
    ],
)
def test_others_stay(make: Any) -> None:
    module, after, _ = rewritten(make, SHAPE, SHAPE)
    assert after.script() == tidy(module).script()


@pytest.mark.parametrize("make", [lambda _, *x: R.sum(x[1], 1), lambda emit, *x: R.sum(emit(R.multiply(*x)), 1)])
def test_tensors_of_unknown_shapes_stay(make: Any) -> None:
    unknown = relax.TensorType(dtype="float32", ndim=5)
    inputs = [relax.Var("x0", relax.TensorType((2, 3, 6, 4, 5), "float32")), relax.Var("x1", unknown)]
    module = function(inputs, lambda emit, *tensors: emit(make(emit, *tensors)))
    assert tidy(add_stacked(module)).script() == tidy(module).script()
