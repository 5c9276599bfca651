"""Products with constant matrices are composed: messages and what gets them, low-rank adapters, sums."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.dataflow import bindings_of, computed_from_constants, operator_of
from packager.transforms.products.linear_forms import compose_products
from tests.unit.transforms.products.test_modulated_convs import function, inputs
from tests.unit.tvm_machine import assert_same_results

R = relax.op
INPUTS = 2
SHAPES = ((5, 16), (5, 16), (16, 16), (32, 24), (24,), (16,), (16, 24), (16, 4), (4, 24), (24, 16))


def linear(emit: Any, x: Any, matrix: Any, bias: Any) -> Any:
    return emit(R.add(bias, emit(R.matmul(x, matrix))))


def messages(emit: Any, x: Any, y: Any, out: Any, mix: Any, b: Any, a: Any, *_: Any) -> Any:
    """As SuperGlue's and LightGlue's layers."""
    both = emit(R.concat([x, linear(emit, y, out, a)], 1))
    return emit(R.nn.relu(linear(emit, both, mix, b)))


def messages_first(emit: Any, x: Any, y: Any, out: Any, mix: Any, b: Any, a: Any, *_: Any) -> Any:
    return linear(emit, emit(R.concat([linear(emit, y, out, a), x], 1)), mix, b)


def adapter(emit: Any, x: Any, _y: Any, _o: Any, _m: Any, b: Any, _a: Any, w: Any, down: Any, up: Any, _u: Any) -> Any:
    """As LoRA, before it is merged."""
    low = emit(R.multiply(emit(R.matmul(emit(R.matmul(x, down)), up)), relax.const(0.5)))
    return emit(R.nn.relu(emit(R.add(linear(emit, x, w, b), low))))


def one_after_the_other(emit: Any, x: Any, _y: Any, out: Any, _m: Any, b: Any, a: Any, w: Any, *_: Any) -> Any:
    return linear(emit, linear(emit, x, out, a), w, b)


def two_of_the_same(emit: Any, x: Any, _y: Any, _o: Any, _m: Any, b: Any, _a: Any, w: Any, *rest: Any) -> Any:
    turned = emit(R.permute_dims(rest[-1]))
    return emit(R.add(linear(emit, x, w, b), emit(R.matmul(x, turned))))


def bottleneck(emit: Any, x: Any, _y: Any, _o: Any, _m: Any, b: Any, *rest: Any) -> Any:
    """Two thin products are less work than one."""
    *_, down, up, _ = rest
    return linear(emit, emit(R.matmul(x, down)), up, b)


def read_twice(emit: Any, x: Any, _y: Any, out: Any, _m: Any, b: Any, a: Any, w: Any, *_: Any) -> Any:
    hidden = linear(emit, x, out, a)
    return emit(R.concat([hidden, linear(emit, hidden, w, b)], 1))


def activated(emit: Any, x: Any, _y: Any, out: Any, _m: Any, b: Any, a: Any, w: Any, *_: Any) -> Any:
    return linear(emit, emit(R.nn.relu(linear(emit, x, out, a))), w, b)


def of_two_rows(emit: Any, x: Any, y: Any, _o: Any, _m: Any, b: Any, _a: Any, w: Any, *_: Any) -> Any:
    """As few products as there can be."""
    return emit(R.add(linear(emit, x, w, b), emit(R.matmul(y, w))))


def products(module: Any) -> int:
    """Return how many products are not of constants alone."""
    main = module["main"]
    constants = computed_from_constants(main, INPUTS)
    return sum(operator_of(b.value) == "matmul" and b.var not in constants for b in bindings_of(main))


@pytest.mark.parametrize(
    ("make", "before", "after"),
    [
        (messages, 2, 2),
        (messages_first, 2, 2),
        (adapter, 3, 1),
        (one_after_the_other, 2, 1),
        (two_of_the_same, 2, 1),
    ],
)
def test_products_are_composed(make: Any, before: int, after: int) -> None:
    module = function(inputs(*SHAPES), make)
    rewritten = compose_products(module, INPUTS)
    assert (products(module), products(rewritten)) == (before, after)
    main = rewritten["main"]
    constants = computed_from_constants(main, INPUTS)
    assert not any(operator_of(b.value) == "concat" and b.var not in constants for b in bindings_of(main))
    assert_same_results(rewritten, module, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [bottleneck, read_twice, activated, of_two_rows])
def test_other_products_stay(make: Any) -> None:
    module = function(inputs(*SHAPES), make)
    assert compose_products(module, INPUTS).script() == module.script()


@pytest.mark.parametrize("inputs_of", [3, len(SHAPES)])
def test_matrices_that_are_inputs_are_not_composed(inputs_of: int) -> None:
    module = function(inputs(*SHAPES), one_after_the_other)
    assert compose_products(module, inputs_of).script() == module.script()


def test_matrices_of_half_precision_are_composed_in_float32() -> None:
    halves = [relax.Var(f"x{n}", relax.TensorType(shape, "float16")) for n, shape in enumerate(SHAPES)]
    module = function(halves, one_after_the_other)
    rewritten = compose_products(module, INPUTS)
    made = [binding for binding in bindings_of(rewritten["main"]) if operator_of(binding.value) == "matmul"]
    assert [str(binding.var.ty.dtype) for binding in made] == ["float32", "float16", "float32"]
