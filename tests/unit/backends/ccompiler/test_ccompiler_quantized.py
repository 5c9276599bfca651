"""Products of bytes in the ccompiler backend: exact on every kind of machine, and requantized in their loop nest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from ccompiler_runner import Runner, partition, variable
from test_ccompiler_families import LAYOUTS, conv2d, first, last, last_shape, symbol
from tvm import relax
from tvm.relax import op

from packager.backends.ccompiler.core.machine import Machine

pytestmark = pytest.mark.slow

Emit = Callable[[Any], Any]
RNG = np.random.default_rng(11)
MACHINES = {
    "own": (None, "ccompiler"),
    "avx2": (Machine(32, 16, "avx2"), "ccompiler -march=x86-64-v3"),
    "sse2": (Machine(16, 16, "sse2"), "ccompiler -march=x86-64-v2"),
    "aarch64": (Machine(16, 32, "aarch64"), "ccompiler -march=x86-64-v2"),
    "avx512": (Machine(64, 32, "avx512"), "ccompiler -march=x86-64-v4"),
    "vnni": (Machine(64, 32, "avx512", quads=True), "ccompiler -march=x86-64-v4"),
}


def extremes(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return integers of the whole range, the ends more often than others: pairs of them overflow 16 bits."""
    limits = np.iinfo(dtype)
    array = RNG.integers(limits.min, limits.max + 1, shape)
    ends = RNG.choice([limits.min, limits.max], shape)
    return np.where(RNG.random(shape) < 0.5, ends, array).astype(dtype)


def runner(part: object, folder: Path, machine: str) -> Runner:
    chosen, target = MACHINES[machine]
    return Runner(part, folder, target, machine=chosen)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("depth", "columns"), [(1, 1), (7, 5), (33, 50), (64, 16), (1100, 96)])
def test_dense(machine: str, depth: int, columns: int, tmp_path: Path) -> None:
    x, w = variable("x", (symbol(), depth), "uint8"), variable("w", (depth, columns), "int8")
    run = runner(partition([x, w], lambda e, x, w: e(op.matmul(x, w, out_dtype="int32")), [1]), tmp_path, machine)
    weights = extremes((depth, columns), "int8")
    for rows in (1, 2, 5, 31):
        data = extremes((rows, depth), "uint8")
        np.testing.assert_array_equal(run(data, weights), data.astype("i4") @ weights.astype("i4"))


def test_dense_of_two_tensors(tmp_path: Path) -> None:
    a, b = variable("a", (2, symbol("m"), 21), "uint8"), variable("b", (2, 21, 9), "int8")
    run = Runner(partition([a, b], lambda e, a, b: e(op.matmul(a, b, out_dtype="int32"))), tmp_path)
    left, right = extremes((2, 6, 21), "uint8"), extremes((2, 21, 9), "int8")
    np.testing.assert_array_equal(run(left, right), left.astype("i4") @ right.astype("i4"))


CONVOLUTIONS = {
    "1x1": ((1, 8, 7, 7), (33, 8, 1, 1), {}),
    "all attributes": ((2, 3, 13, 11), (6, 3, 3, 2), {"strides": (2, 3), "padding": (1, 0, 2, 3), "dilation": (2, 1)}),
    "groups": ((1, 6, 6, 5), (20, 3, 3, 3), {"groups": 2, "padding": (1, 1, 1, 1)}),
    "depthwise": ((2, 37, 9, 8), (37, 1, 3, 3), {"groups": 37, "padding": (1, 1, 1, 1)}),
    "depthwise, two each": ((1, 4, 9, 9), (8, 1, 5, 3), {"groups": 4, "strides": (2, 2)}),
    "large depthwise windows": ((1, 16, 30, 30), (16, 1, 25, 25), {"groups": 16}),
    "steps beyond lines": ((2, 3, 21, 33), (24, 3, 7, 7), {"strides": (2, 2)}),
    "steps beyond lines with edges": ((1, 5, 12, 61), (33, 5, 3, 2), {"padding": (1, 1, 1, 0)}),
    "two lines in a tile": ((3, 3, 5, 4), (20, 3, 3, 3), {"padding": (1, 1, 1, 1)}),
    "many channels": ((1, 300, 7, 8), (40, 300, 3, 3), {"padding": (1, 1, 1, 1)}),
}


@pytest.mark.sampled(5, every_value=False)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_conv2d(case: str, machine: str, dtype: str, tmp_path: Path) -> None:
    shape, weight, attributes = CONVOLUTIONS[case]
    x, w = variable("x", last_shape(shape), dtype), variable("w", last_shape(weight), "int8")
    part = partition([x, w], lambda e, x, w: e(op.nn.conv2d(x, w, **attributes, **LAYOUTS, out_dtype="int32")), [1])
    run = runner(part, tmp_path, machine)
    data, weights = extremes(shape, dtype), extremes(weight, "int8")
    np.testing.assert_array_equal(first(run(last(data), last(weights))), conv2d(data, weights, **attributes))


@pytest.mark.parametrize("stored", ["uint8", "int8"])
@pytest.mark.parametrize("machine", MACHINES)
def test_requantization_is_part_of_the_loop_nest(machine: str, stored: str, tmp_path: Path) -> None:
    rows, columns, limits, zero = symbol(), 70, np.iinfo(stored), 5
    arguments = [
        variable("x", (rows, 40), "uint8"),
        variable("w", (40, columns), "int8"),
        variable("b", (columns,), "int32"),
        variable("s", (columns,)),
        variable("r", (rows, columns), "uint8"),
    ]

    def body(e, x, w, b, s, r):
        whole = e(op.add(e(op.matmul(x, w, out_dtype="int32")), b))
        numbers = e(op.multiply(e(op.astype(whole, "float32")), s))
        total = e(op.add(numbers, e(op.multiply(e(op.astype(r, "float32")), relax.const(0.5, "float32")))))
        rounded = e(op.astype(e(op.round(total)), "int32"))
        clipped = e(op.clip(e(op.add(rounded, relax.const(zero, "int32"))), limits.min, limits.max))
        quantized = e(op.astype(clipped, stored))
        again = e(op.multiply(e(op.astype(quantized, "float32")), relax.const(0.25, "float32")))
        return quantized, again

    run = runner(partition(arguments, body, [1, 2, 3]), tmp_path, machine)
    assert len(run.group.functions) == 1
    x, w, r = extremes((19, 40), "uint8"), extremes((40, columns), "int8"), extremes((19, columns), "uint8")
    b = RNG.integers(-9000, 9000, columns).astype(np.int32)
    s = RNG.choice([2.0**-9, 2.0**-11, 2.0**-12], columns).astype(np.float32)
    numbers = (x.astype("i4") @ w.astype("i4") + b) * s.astype("f8") + r * 0.5
    expected = np.clip(np.rint(numbers) + zero, limits.min, limits.max)
    quantized, again = run(x, w, b, s, r)
    np.testing.assert_array_equal(quantized, expected.astype(stored))
    np.testing.assert_array_equal(again, (expected * 0.25).astype(np.float32))


def test_max_pool2d(tmp_path: Path) -> None:
    x = variable("x", (1, 9, 8, 20), "uint8")
    pooled = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1), "layout": "NHWC"}
    run = Runner(partition([x], lambda e, x: e(op.nn.max_pool2d(x, **pooled))), tmp_path)
    data = extremes((1, 9, 8, 20), "uint8")
    padded = np.pad(data, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2]
    np.testing.assert_array_equal(run(data), windows.max((-1, -2)))


def source_in(folder: Path) -> str:
    return (folder / "ccompiler.c").read_text()


def quantized(e: Emit, x: Any, scale: float, zero: int, dtype: str) -> Any:
    """Emit QuantizeLinear as the transform of quantized models writes it."""
    whole = e(op.astype(e(op.round(e(op.divide(x, relax.const(scale, "float32"))))), "int32"))
    limits = np.iinfo(dtype)
    shifted = e(op.clip(e(op.add(whole, relax.const(zero, "int32"))), float(limits.min), float(limits.max)))
    return e(op.astype(shifted, dtype))


def dequantized(e: Emit, x: Any, scale: float, zero: int) -> Any:
    """Emit DequantizeLinear."""
    whole = e(op.subtract(e(op.astype(x, "int32")), relax.const(zero, "int32")))
    return e(op.multiply(e(op.astype(whole, "float32")), relax.const(scale, "float32")))


def numbers(x: np.ndarray, scale: float, zero: int) -> np.ndarray:
    return np.float32(scale) * (x.astype("i4") - zero).astype("f4")


def bytes_of(x: np.ndarray, scale: float, zero: int, dtype: str) -> np.ndarray:
    limits = np.iinfo(dtype)
    rounded = np.rint(x.astype("f4") / np.float32(scale)).astype("i4")
    return np.clip(rounded + zero, limits.min, limits.max).astype(dtype)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return (1 / (1 + np.exp(-x.astype("f8")))).astype("f4")


@pytest.mark.sampled(5, every_value=False)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("rest", ["", "read", "stored and read", "given"])
def test_functions_of_one_byte_are_tables(rest: str, machine: str, dtype: str, tmp_path: Path) -> None:
    """x sigmoid(x), quantized thrice, is one table, at the end of a loop or in the middle of it."""
    zero = 120 if dtype == "uint8" else -3
    rows = symbol()
    x, y = variable("x", (rows, 100), dtype), variable("y", (rows, 100))

    def body(e: Emit, x: Any, y: Any) -> Any:
        x = quantized(e, y, 0.03, zero, dtype) if rest == "given" else x
        plain = dequantized(e, x, 0.03, zero)
        gate = dequantized(e, quantized(e, e(op.sigmoid(plain)), 0.0039, 0, "uint8"), 0.0039, 0)
        made = quantized(e, e(op.multiply(plain, gate)), 0.031, 7, dtype)
        if not rest:
            return made
        other = e(op.add(dequantized(e, made, 0.031, 7), y))
        return (made, other) if "stored" in rest else other

    run = runner(partition([x, y], body), tmp_path, machine)
    assert "pk_map_bytes(" in source_in(tmp_path)
    for count in (1, 3, 50):
        data, others = extremes((count, 100), dtype), RNG.standard_normal((count, 100)).astype("f4")
        source = bytes_of(others, 0.03, zero, dtype) if rest == "given" else data
        plain = numbers(source, 0.03, zero)
        gate = numbers(bytes_of(sigmoid(plain), 0.0039, 0, "uint8"), 0.0039, 0)
        made = bytes_of(plain * gate, 0.031, 7, dtype)
        results = run(data, others)
        expected = [made] if not rest or "stored" in rest else []
        expected += [numbers(made, 0.031, 7) + others] if rest else []
        for result, wanted in zip(results if len(expected) > 1 else [results], expected, strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_table_follows_a_product(machine: str, tmp_path: Path) -> None:
    x, w = variable("x", (symbol(), 24), "uint8"), variable("w", (24, 40), "int8")

    def body(e: Emit, x: Any, w: Any) -> Any:
        sums = e(op.astype(e(op.matmul(x, w, out_dtype="int32")), "float32"))
        made = quantized(e, sums, 90.0, 100, "uint8")
        return quantized(e, e(op.tanh(dequantized(e, made, 0.02, 100))), 0.0078, 128, "uint8")

    run = runner(partition([x, w], body, [1]), tmp_path, machine)
    data, weights = extremes((9, 24), "uint8"), extremes((24, 40), "int8")
    made = bytes_of((data.astype("i4") @ weights.astype("i4")).astype("f4"), 90.0, 100, "uint8")
    expected = bytes_of(np.tanh(numbers(made, 0.02, 100).astype("f8")).astype("f4"), 0.0078, 128, "uint8")
    np.testing.assert_array_equal(run(data, weights), expected)
    assert source_in(tmp_path).count("static const uint8_t t") == 1


def test_cheap_functions_of_bytes_are_computed(tmp_path: Path) -> None:
    x = variable("x", (40, 30), "uint8")
    run = Runner(partition([x], lambda e, x: e(op.clip(e(op.add(x, relax.const(3, "uint8"))), 5, 200))), tmp_path)
    assert "pk_map_bytes(" not in source_in(tmp_path)
    data = extremes((40, 30), "uint8")
    np.testing.assert_array_equal(run(data), np.clip(data + np.uint8(3), 5, 200))
