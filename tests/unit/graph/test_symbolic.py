from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import tirx

from packager.bundle import shape_expr
from packager.bundle.manifest import Dim
from packager.errors import ModelError
from packager.graph.identity import IdentityMap
from packager.graph.symbolic import extent_interval, maximum, product, to_extent

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")
NAMES = IdentityMap([(N, "n"), (M, "m")])
DIMS = {"n": Dim("n", 1, 5), "m": Dim("m", 2, 4)}
POINTS = [{"n": n, "m": m} for n, m in itertools.product(range(1, 6), range(2, 5))]


def constant(value: int) -> Any:
    return tirx.const(value, "int64")


# An expression of TVM beside the Python function that it means.
LEAVES = st.one_of(
    st.just((N, lambda point: point["n"])),
    st.just((M, lambda point: point["m"])),
    st.integers(0, 9).map(lambda value: (constant(value), lambda _: value)),
)
OPERATORS = {
    tirx.Add: lambda a, b: a + b,
    tirx.Sub: lambda a, b: a - b,
    tirx.Mul: lambda a, b: a * b,
    tirx.Min: min,
    tirx.Max: max,
}
DIVISIONS = {tirx.FloorDiv: lambda a, b: a // b, tirx.FloorMod: lambda a, b: a % b}


def combine(parts: tuple[Any, Any, Any]) -> tuple[Any, Any]:
    kind, (a, f), (b, g) = parts
    operation = {**OPERATORS, **DIVISIONS}[kind]
    return kind(a, b), lambda point: operation(f(point), g(point))


EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: (
        st.tuples(st.sampled_from(list(OPERATORS)), inner, inner)
        | st.tuples(
            st.sampled_from(list(DIVISIONS)), inner, st.integers(1, 7).map(lambda v: (constant(v), lambda _: v))
        )
    ).map(combine),
    max_leaves=8,
)


@given(EXPRESSIONS)
def test_the_text_means_what_the_expression_means(pair: tuple[Any, Any]) -> None:
    expression, function = pair
    extent = to_extent(expression, NAMES)
    for point in POINTS:
        value = extent if isinstance(extent, int) else eval(extent, {"min": min, "max": max}, point)
        assert value == function(point)
        if isinstance(extent, str) and len(extent) <= shape_expr.MAX_LENGTH:  # the deploy side reads it the same way
            assert shape_expr.evaluate(extent, point) == value


@given(EXPRESSIONS)
def test_bounds_hold_at_every_point(pair: tuple[Any, Any]) -> None:
    expression, function = pair
    values = [function(point) for point in POINTS]
    assert maximum(expression, NAMES, DIMS) >= max(values)
    low, high = extent_interval(to_extent(expression, NAMES), DIMS)
    assert low <= min(values) <= max(values) <= high


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (constant(7), 7),
        (N, "n"),
        (N + 0, "n"),
        (N * 1, "n"),
        (constant(0) + N, "n"),
        (N * 2 + 1, "(n * 2) + 1"),
        (tirx.FloorDiv(N + 1, constant(2)), "(n + 1) // 2"),
        (tirx.Cast("int32", N), "n"),
        (constant(3) * constant(4), 12),
        # every extent is at least 0, as one that a run computes, and below 2**31, which decides these
        (tirx.Min(constant(0), N), 0),
        (tirx.Max(constant(0), N), "n"),
        (tirx.Max(constant(1), N), "max(1, n)"),
        (tirx.Min(constant(8), tirx.FloorDiv(constant(64), N)), "min(8, 64 // n)"),
        (tirx.Min(N, constant(2**31 - 1)), "n"),
        (tirx.Max(N - 3, constant(0)), "max(n - 3, 0)"),
        # numbers are never negative
        (N * (constant(0) - constant(1)), "n * (0 - 1)"),
        (tirx.Max(N - 5, constant(-3)), "max(n - 5, 0 - 3)"),
        (tirx.Min(constant(3), constant(5)), 3),
    ],
)
def test_simple_texts(expression: Any, text: int | str) -> None:
    assert to_extent(expression, NAMES) == text


def test_bounds_are_tight_where_a_dim_stands_once() -> None:
    assert maximum(N * 2 + 1, NAMES, DIMS) == 11
    assert maximum(tirx.FloorDiv(N + M, constant(2)), NAMES, DIMS) == 4
    assert extent_interval("(n + m) // 2", DIMS) == (1, 4)
    assert extent_interval("max(n - 3, 0)", DIMS) == (0, 2)


def test_a_shape_that_depends_on_data_is_refused() -> None:
    with pytest.raises(ModelError, match="depends on 'k', which is not a dim of an input"):
        to_extent(tirx.Var("k", "int64"), NAMES)


def test_products() -> None:
    assert product((2, 3, 4)) == 24
    assert product(()) == 1
    assert product((1, "n", 1)) == "n"
    assert eval(str(product(("n", "n + 1", 4))), {}, {"n": 3}) == 48
