from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.bundle.shape_expr import ShapeExpressionError, evaluate, names


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("7", 7),
        ("n", 5),
        ("2*n+1", 11),
        ("2*(n+1)", 12),
        ("n-1-1", 3),
        ("(n+m-1)//m", 2),
        ("n//2*2", 4),
        (" n + 1 ", 6),
        ("(m-n)%4", 2),
        ("min(n,m)+max(2*m,n)", 9),
    ],
)
def test_evaluates_as_python_does(expression: str, value: int) -> None:
    assert evaluate(expression, {"n": 5, "m": 3}) == value


def test_names() -> None:
    assert names("(batch + 1) * seq_len // 2") == {"batch", "seq_len"}
    assert names("12") == frozenset()
    assert names("min(n, 3)") == {"n"}
    assert names("min + max") == {"min", "max"}


@pytest.mark.parametrize(
    "expression",
    ["", " ", "n n", "n+", "*n", "(n", "n)", "n/2", "n**2", "n.real", "n[0]", "f(n)", "0x10", "1e3", "n%%2", "-n", "()",
     "min(n)", "max(n,n,n)", "min n", "min(n,", ",", "abs(n,n)", "__import__('os')", "n;n", "9" * 19,
     "(" * 100 + "n" + ")" * 100, "n+" * 1000 + "n", "n\x00", "ñ"],
)  # fmt: skip
def test_refuses_all_else(expression: str) -> None:
    with pytest.raises(ShapeExpressionError):
        evaluate(expression, {"n": 1})
    with pytest.raises(ShapeExpressionError):
        names(expression)


def test_unknown_dim_and_division_by_zero() -> None:
    with pytest.raises(ShapeExpressionError, match="unknown dim 'k'"):
        evaluate("k+1", {"n": 1})
    with pytest.raises(ShapeExpressionError, match="division by zero"):
        evaluate("4//(n-n)", {"n": 1})


OPERATORS = st.sampled_from(["+", "-", "*", "//", "%"])
EXPRESSIONS = st.recursive(
    st.integers(0, 99).map(str) | st.sampled_from(["n", "m"]),
    lambda inner: st.tuples(inner, OPERATORS, inner).map(lambda parts: f"({''.join(parts)})"),
    max_leaves=12,
)


@given(EXPRESSIONS)
def test_agrees_with_python(expression: str) -> None:
    try:
        expected = eval(expression, {"n": 7, "m": 3})
    except ZeroDivisionError:
        with pytest.raises(ShapeExpressionError, match="zero"):
            evaluate(expression, {"n": 7, "m": 3})
        return
    assert evaluate(expression, {"n": 7, "m": 3}) == expected


@given(st.text(max_size=40))
def test_any_text_is_a_value_or_an_error(text: str) -> None:
    try:
        evaluate(text, {})
    except ShapeExpressionError:
        return
    assert names(text) == frozenset()
