"""Quotients that are rounded to 16 bits are of approximate reciprocals, and powers are products; others are exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
import tvm
from tvm import te

from packager.lower.cuda.schedule import schedule_cuda
from packager.lower.cuda.widen_float16 import widen
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


def power(dtype: str, exponent: float, factor: str = "float16") -> Any:
    """Return a power that is multiplied by a number of each row, as a PrimFunc."""
    a, b = te.placeholder((64, 256), dtype, "a"), te.placeholder((64, 1), factor, "b")

    def raised(i: Any, j: Any) -> Any:
        found = te.power(a[i, j].astype("float32"), te.const(exponent, "float32"))
        return (found * b[i, 0].astype("float32")).astype(dtype)

    return te.create_prim_func([a, b, te.compute(a.shape, raised, "raised")])


def test_powers_that_are_rounded_are_products() -> None:
    def calls(function: Any) -> bool:
        source = lower(schedule_cuda(function, TARGET))[0]
        return "powf(" in source[source.rindex("__global__") :]

    assert not calls(power("float16", 9.0))
    assert not calls(power("float16", 3.0, "float32")), "what is read may be exact"
    for other in (power("float16", 1.5), power("float16", 17.0), power("float16", -2.0), power("float32", 9.0)):
        assert calls(other)


@pytest.mark.parametrize("exponent", [2, 3, 9, 15, 16])
def test_products_are_powers(exponent: int) -> None:
    rng = np.random.default_rng(0)
    x, factors = (rng.uniform(-1.5, 1.5, shape).astype("float16") for shape in ((64, 256), (64, 1)))
    module = tvm.IRModule({"main": widen(power("float16", float(exponent))).with_attr("global_symbol", "main")})
    tensors = [tvm.runtime.tensor(each) for each in (x, factors, np.zeros_like(x))]
    tvm.compile(module, target="llvm")["main"](*tensors)
    wanted = x.astype("float64") ** exponent * factors.astype("float64")
    np.testing.assert_allclose(tensors[2].numpy(), wanted.astype("float16"), rtol=1.1e-3, atol=6e-8)
