"""Conversion of narrow elements, bit by bit against ml_dtypes: all codes, and floats around all of their values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx.numpy_helper
import pytest
import tvm
from tvm import te

from packager.bundle.arrays import Array
from packager.bundle.dtypes import storage_dtype
from packager.graph.narrow_types import EXPONENTS, FLOATS, INTEGERS, decode, encode, widened

CODES = np.arange(256, dtype=np.uint8)


def computed(function: Callable[[Any], Any], operand: Array, result: str) -> Array:
    """Return what a function of elements gives for an array."""
    x = te.placeholder(operand.shape, operand.dtype.name, name="x")
    y = te.compute(operand.shape, lambda i: function(x(i)), name="y")
    built = tvm.compile(te.create_prim_func([x, y]), target="llvm")
    made = tvm.runtime.tensor(np.zeros(operand.shape, result))
    built(tvm.runtime.tensor(operand), made)
    return np.asarray(made.numpy())


def assert_same(name: str, actual: Array, expected: Array) -> None:
    """Compare bytes; of NaN only that it is one."""
    assert expected.dtype == storage_dtype(name)
    wide = np.float64 if name not in INTEGERS else np.int64
    nan = np.isnan(expected.astype(np.float64)) & np.isnan(actual.view(expected.dtype).astype(wide))
    np.testing.assert_array_equal(np.where(nan, 0, actual), np.where(nan, 0, expected.view(np.uint8)))


@functools.cache
def numbers(name: str, dtype: str) -> Array:
    """Return numbers around all values of a type and all midpoints between two of them, and what is special."""
    values = np.unique(CODES.view(storage_dtype(name)).astype(np.float64))
    values = values[np.isfinite(values)]
    exact = np.concatenate([values, (values[1:] + values[:-1]) / 2, values * 1.5]).astype(dtype)
    info = np.finfo(dtype)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, info.tiny, info.smallest_subnormal, info.max, -info.max]
    random = np.random.default_rng(0).standard_normal(4096) * np.exp2(np.random.default_rng(1).integers(-20, 20, 4096))
    around = [np.nextafter(exact, np.array(way, dtype)) for way in (np.inf, -np.inf)]
    return np.concatenate([exact, *around, special, random]).astype(dtype)


def rounded_to_odd(numbers: Array) -> Array:
    """Return numbers as float32: where these are rounded in turn, the result is that of rounding once."""
    with np.errstate(all="ignore"):
        single = numbers.astype(np.float32)
        below = np.where(np.abs(single) > np.abs(numbers), np.nextafter(single, np.float32(0)), single)
    odd = (below.view(np.uint32) | 1).view(np.float32)
    return np.where(np.isnan(numbers) | (below == numbers), below, odd)


@pytest.mark.parametrize("name", [*FLOATS, EXPONENTS, *INTEGERS])
def test_all_codes_are_read(name: str) -> None:
    wide = widened(name)
    low = CODES if name not in INTEGERS and name != "float4_e2m1fn" else CODES & (15 if "4" in name else 3)
    np.testing.assert_array_equal(
        computed(lambda byte: decode(name, byte), CODES, wide), low.view(storage_dtype(name)).astype(wide)
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FLOATS)
def test_floats_are_rounded_to_the_nearest(name: str, dtype: str) -> None:
    given, target = numbers(name, dtype), storage_dtype(name)
    single = rounded_to_odd(given)  # ml_dtypes rounds a float64 twice
    for saturate in (False, True):
        with np.errstate(all="ignore"):
            expected = onnx.numpy_helper.saturate_cast(single, target) if saturate else single.astype(target)
        made = computed(lambda x, s=saturate: encode(name, x, dtype, s), given, "uint8")
        counted = ~np.isnan(given) if name == "float4_e2m1fn" else slice(None)  # it has no NaN
        assert_same(name, made[counted], expected[counted])


@pytest.mark.parametrize("rounding", ["up", "down", "nearest"])
def test_powers_of_two(rounding: str) -> None:
    """As onnx's reference has it but for what the standard's table says otherwise: infinities, and numbers that are
    subnormal."""
    given = np.abs(numbers(EXPONENTS, "float32"))
    usual = given[((given >= np.finfo(np.float32).tiny) & np.isfinite(given)) | np.isnan(given)]
    for saturate in (False, True):
        expected = onnx.numpy_helper.to_float8e8m0(usual, saturate, rounding)
        made = computed(lambda x, s=saturate: encode(EXPONENTS, x, "float32", s, rounding), usual, "uint8")
        assert_same(EXPONENTS, made, expected)
    special = np.array([0, 2.0**-127, 2.0**-127 * 1.25, 2.0**-127 * 1.75, np.inf], np.float32)
    saturated, exact = {"up": (1, 1), "down": (0, 0), "nearest": (0, 1)}[rounding], [255]
    made = computed(lambda x: encode(EXPONENTS, x, "float32", True, rounding), special, "uint8")
    assert made.tolist() == [0, 0, *saturated, 254]
    made = computed(lambda x: encode(EXPONENTS, x, "float32", False, rounding), special, "uint8")
    assert made.tolist() == [*exact, 0, *saturated, *exact]


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_lose_their_high_bits_or_saturate(name: str) -> None:
    given = np.arange(-300, 300, dtype=np.int32)
    for dtype in ("int32", "int64", "int8", "uint8"):
        some = given.astype(dtype)
        made = computed(lambda x, d=dtype: encode(name, x, d, False), some, "uint8")
        assert_same(name, made, some.astype(storage_dtype(name)))
    info = ml_dtypes.iinfo(name)
    made = computed(lambda x: encode(name, x, "int32", True), given, "uint8")
    assert_same(name, made, np.clip(given, int(info.min), int(info.max)).astype(storage_dtype(name)))
    floats = np.array([-2.9, -0.5, 0.99, 1.5, 7.99, 100.25, np.nan, 1e30], np.float32)
    made = computed(lambda x: encode(name, x, "float32", False), floats, "uint8")
    assert_same(name, made[:-1], floats[:-1].astype(storage_dtype(name)))
