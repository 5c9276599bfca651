"""Quotients that are rounded to 16 bits are of approximate reciprocals, others are exact."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm")
from tvm import te

from packager.lower.cuda.schedule import schedule_cuda
from tests.unit.lower.test_schedule_cuda import TARGET, lower


def source_of(dtype: str, other: str = "", divisor: float | None = None) -> str:
    """Return the source of an elementwise quotient, of a constant if there is one."""
    a, b = te.placeholder((64, 256), dtype, "a"), te.placeholder((64, 256), dtype, "b")

    def quotient(*at: object) -> object:
        left = a[at].astype("float32")
        found = left / (b[at].astype("float32") if divisor is None else te.const(divisor, "float32"))
        return found.astype(other or dtype)

    operands = [a, b] if divisor is None else [a]
    function = te.create_prim_func([*operands, te.compute(a.shape, quotient, "quotient")])
    return lower(schedule_cuda(function, TARGET))[0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_rounded_is_divided_fast(dtype: str) -> None:
    assert "__fdividef(" in source_of(dtype)
    inverse = source_of(dtype, divisor=5.0)
    assert "* 0x1.999999999999ap-3f" in inverse
    assert " / " not in inverse


@pytest.mark.parametrize(("dtype", "other"), [("float32", ""), ("float16", "float32")])
def test_other_quotients_are_exact(dtype: str, other: str) -> None:
    assert "__fdividef" not in source_of(dtype, other)
    assert " / " in source_of(dtype, other, 5.0)


def test_divisors_without_an_inverse_are_not_inverted() -> None:
    assert "__fdividef(" in source_of("float16", divisor=2.0**127)
