"""Products of few rows with weights that are quantized in blocks, run on the host, beside numpy in float64."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cutlass_kernel_builder import build_host, build_simt
from test_cutlass_kernels import Problem

from packager.backends.cutlass.gemm.block_weights import (
    BlockRowsGemm,
    block_kernels,
    blocks_of_unit,
    has_row_kernel,
    pack_numbers,
    pack_weights,
)
from packager.backends.cutlass.gemm.few_rows import RowsForm
from packager.graph.block_weights import BlockFormat, dequantized, pack

pytestmark = pytest.mark.slow


class BlockProblem(ctypes.Structure):
    """As pk_block_gemm_t."""

    _fields_ = (
        ("gemm", Problem),
        ("scales", ctypes.c_void_p),
        ("zeros", ctypes.c_void_p),
        ("block", ctypes.c_int64),
        ("floats", ctypes.c_void_p),
        ("slice", ctypes.c_int64),
    )


class NormedProblem(ctypes.Structure):
    """As pk_normed_block_gemm_t."""

    _fields_ = (("blocks", BlockProblem), ("gains", ctypes.c_void_p), ("epsilon", ctypes.c_float))


@dataclass(frozen=True)
class Case:
    """A product of random numbers; rows of data and results are ``gap`` elements wider.

    Data are float16 if ``half``, else bfloat16; results too, unless they are ``wide``, float32. ``normed``: rows are
    normalized, with gains, and there are ``n`` gates and as many columns that these multiply, in turns of eight.
    """

    m: int = 1
    n: int = 48
    k: int = 128
    bits: int = 4
    block: int = 32
    zeros: bool = False
    bias: bool = False
    residual: bool = False
    wide: bool = False
    gap: int = 0
    half: bool = True
    normed: bool = False

    @property
    def columns(self) -> int:
        """Columns of the weights."""
        return self.n * (1 + self.normed)


CASES = {
    "4 bits, one row": Case(),
    "4 bits, zero points": Case(m=3, zeros=True, bias=True),
    "4 bits, blocks of a unit": Case(m=8, n=33, block=64, residual=True),
    "4 bits, blocks of a unit, zero points": Case(m=8, k=192, block=64, zeros=True),
    "4 bits, blocks of two units": Case(m=16, n=64, k=1024, block=128, bias=True, wide=True),
    "4 bits, blocks of two units, zero points": Case(m=9, n=45, k=384, block=128, zeros=True, residual=True),
    "4 bits, blocks of four units": Case(m=2, k=4352, block=256, zeros=True),
    "4 bits, a last block that is not full": Case(m=2, n=16, k=200, block=64, zeros=True),
    "4 bits, half a unit": Case(m=2, n=16, k=96, zeros=True, wide=True),
    "4 bits, a long sum": Case(m=2, n=16, k=4424, zeros=True),
    "4 bits, a short sum": Case(m=2, n=16, k=8),
    "8 bits": Case(bits=8, m=5, bias=True, gap=8),
    "8 bits, zero points": Case(bits=8, m=4, n=20, k=160, zeros=True, residual=True),
    "8 bits, blocks of four units": Case(bits=8, m=11, k=1280, block=128, zeros=True, wide=True),
    "8 bits, a long sum": Case(bits=8, m=16, n=16, k=3000, block=64),
    "gaps": Case(m=5, gap=8, residual=True, zeros=True),
    "4 bits, blocks of 16": Case(m=3, n=33, k=200, block=16, bias=True, wide=True),
    "4 bits, blocks of 16, zero points": Case(m=11, k=1096, block=16, zeros=True, residual=True),
    "8 bits, blocks of 16, zero points": Case(bits=8, m=9, k=136, block=16, zeros=True),
    "bfloat16, 4 bits": Case(m=9, n=45, k=384, zeros=True, residual=True, half=False),
    "bfloat16, 4 bits, blocks of 64": Case(m=3, k=192, block=64, bias=True, wide=True, half=False),
    "bfloat16, 4 bits, blocks of 16": Case(m=3, k=200, block=16, bias=True, half=False),
    "normalized, 4 bits": Case(m=3, normed=True),
    "normalized, 4 bits, zero points": Case(m=8, n=40, k=1096, normed=True, zeros=True, bias=True, gap=8),
    "normalized, 4 bits, blocks of two units": Case(m=11, k=1024, block=128, normed=True),
    "normalized, 4 bits, blocks of 16": Case(m=2, k=200, block=16, normed=True),
    "normalized, 8 bits": Case(bits=8, m=1, k=4424, normed=True),
    "normalized, bfloat16, 4 bits": Case(m=9, k=384, normed=True, half=False),
    "bfloat16, 8 bits": Case(bits=8, m=16, k=1280, block=128, zeros=True, wide=True, half=False),
}


@dataclass(frozen=True)
class Weights:
    """Packed weights at random."""

    form: BlockFormat
    packed: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray

    @property
    def floats(self) -> np.ndarray:
        """As float32 [columns, depth]."""
        return dequantized(self.packed, self.scales.astype(np.float32), self.zeros.astype(np.float32), self.form)


def weights_of(case: Case, rng: np.random.Generator) -> Weights:
    form = BlockFormat(case.bits, case.block, case.k, case.zeros)
    numbers = rng.integers(0, 1 << case.bits, (case.columns, case.k)).astype(np.uint8)
    scales = (rng.random((case.columns, form.blocks)) * 0.02 + 0.01).astype(np.float16)
    zeros = rng.integers(0, 1 << case.bits, (case.columns, form.blocks)).astype(np.uint8)
    return Weights(form, pack(numbers, form), scales, zeros)


@pytest.fixture(scope="module")
def multiply(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return build_simt("gemm_blocks", tmp_path_factory.mktemp("simt")).multiply


def aligned(array: np.ndarray) -> np.ndarray:
    """Return a copy at a multiple of 16 bytes."""
    memory = np.empty(array.nbytes + 16, np.uint8)
    start = -memory.ctypes.data % 16
    made = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


@pytest.mark.sampled(5, every_value=False)
@pytest.mark.parametrize("warps", [8, 16])
@pytest.mark.parametrize("rows", [8, 16])
@pytest.mark.parametrize("name", CASES)
def test_a_product_with_packed_weights_is_that_of_numpy(multiply: Any, name: str, rows: int, warps: int) -> None:
    check_product(multiply, CASES[name], rows, warps)


@pytest.mark.sampled(5, every_value=False)
@pytest.mark.parametrize("warps", [8, 16])
@pytest.mark.parametrize("name", CASES)
def test_the_kernel_of_one_row_has_its_product(multiply: Any, name: str, warps: int) -> None:
    case = CASES[name]
    if has_row_kernel(case.bits, blocks_of_unit(BlockFormat(case.bits, case.block, case.k, case.zeros))):
        check_product(multiply, replace(case, m=1), 1, warps)
        check_product(multiply, replace(case, m=2), 1, warps)


def check_product(multiply: Any, case: Case, rows: int, warps: int) -> None:
    rng = np.random.default_rng(1)
    weights = weights_of(case, rng)
    a = Numbers(rng.standard_normal((case.m, case.k + case.gap)), wide=False, half=case.half)
    c = Numbers(rng.standard_normal((case.m, case.n + case.gap)), wide=case.wide, half=case.half)
    bias = Numbers(rng.standard_normal(case.columns), wide=case.wide, half=case.half)
    gains = Numbers(rng.standard_normal(case.k), wide=False, half=case.half)
    d = Numbers(np.full(c.stored.shape, np.nan), wide=case.wide, half=case.half)
    b = aligned(pack_weights(weights.packed, weights.form))
    scales, zeros = (aligned(pack_numbers(each, weights.form)) for each in (weights.scales, weights.zeros))
    gemm = Problem(a.address, b.ctypes.data, 0, 0, d.address, 0, case.m, case.n, case.k, 1)
    gemm.lda, gemm.ldc, gemm.ldd = case.k + case.gap, case.n + case.gap, case.n + case.gap
    gemm.alpha, gemm.beta = 0.25, 0.5
    gemm.bias = bias.address if case.bias else 0
    gemm.c = c.address if case.residual else 0
    blocks = BlockProblem(gemm, scales.ctypes.data, zeros.ctypes.data if case.zeros else 0, case.block)
    problem = NormedProblem(blocks, gains.address if case.normed else 0, 0.125 if case.normed else 0.0)
    form = (case.bits, blocks_of_unit(weights.form), case.zeros, case.wide, case.half, case.normed)
    status = multiply(ctypes.byref(problem), warps, rows, *form, 1)  # on one multiprocessor
    if case.m > rows:
        assert status == -1
        return
    assert status == 0
    matrix = weights.floats.astype(np.float64)
    if case.block == 16:  # rounded
        matrix = Numbers(matrix, wide=False, half=case.half).values
    x = a.values[:, : case.k]
    if case.normed:
        rounded = Numbers(x * gains.values, wide=False, half=case.half)
        x = rounded.values / np.sqrt((x**2).mean(-1, keepdims=True) + 0.125)
    want = 0.25 * x @ matrix.T + bias.values * case.bias
    if case.normed:
        gates, factors = want.reshape(case.m, -1, 2, 8).transpose(2, 0, 1, 3).reshape(2, case.m, case.n)
        want = np.maximum(gates, 0) * factors
    want += 0.5 * c.values[:, : case.n] * case.residual
    want = np.maximum(want, 0) if case.wide else want
    tolerance = 1e-5 if case.wide else 1e-3 if case.half else 4e-3
    np.testing.assert_allclose(d.values[:, : case.n], want, rtol=tolerance, atol=tolerance)
    assert np.isnan(d.values[:, case.n :]).all()


class Numbers:
    """Numbers in float16 or bfloat16, or in float32 if they are ``wide``, at a multiple of 16 bytes."""

    def __init__(self, numbers: np.ndarray, *, wide: bool, half: bool) -> None:
        self._narrow = not wide and not half
        dtype = np.float16 if half and not wide else np.float32
        stored = numbers.astype(dtype)
        self.stored = aligned(bfloat16_bits(stored) if self._narrow else stored)

    @property
    def address(self) -> int:
        """Where they are."""
        return int(self.stored.ctypes.data)

    @property
    def values(self) -> np.ndarray:
        """They in float64."""
        stored = (self.stored.astype(np.uint32) << 16).view(np.float32) if self._narrow else self.stored
        return stored.astype(np.float64)


def bfloat16_bits(array: np.ndarray) -> np.ndarray:
    """Return float32 numbers as the bits of bfloat16, rounded to the nearest, to even where two are."""
    bits = array.view(np.uint32)
    nan = np.where(np.isnan(array), np.uint32(0x7FC0), 0)
    return (((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) | nan).astype(np.uint16)


def test_what_has_a_kernel() -> None:
    def names(rows: int, bits: int, block: int, depth: int = 256) -> list[str]:
        form = BlockFormat(bits, block, depth, has_zeros=False)
        return [k.name for k in block_kernels(rows, 4096, form, RowsForm("float16", "silu"), fast_math=False)]

    assert names(1, 4, 32) == ["pk_gemm_blocks_f16_f16_1_w4b2_silu"]
    assert names(2, 4, 64) == names(8, 4, 256) == ["pk_gemm_blocks_f16_f16_8_w4_silu"]
    assert names(9, 8, 32) == names(16, 8, 128) == ["pk_gemm_blocks_f16_f16_16_w8_silu"]
    assert names(1, 4, 16) == ["pk_gemm_blocks_f16_f16_8_w4b4_silu"]
    for others in (names(17, 4, 32), names(1, 4, 8), names(1, 2, 32), names(1, 4, 48), names(1, 4, 32, 100)):
        assert not others


@pytest.mark.parametrize("bits", [4, 8])
def test_its_host_object_needs_nothing(tmp_path: Path, bits: int) -> None:
    built = build_host(BlockRowsGemm(8, "float32", bits, 1, has_zeros=True, activation="gelu", residual=True), tmp_path)
    assert subprocess.run(["nm", "-u", built.object], check=True, capture_output=True, text=True).stdout == ""
    gemm = Problem(0x1000, 0x2000, 0, 0x3000, 0x4000, 0, 3, 190, 256, 1, 256, 0, 192, 192)
    problem = BlockProblem(gemm, 0x5000, 0x6000, 128)
    launch = built.fill(problem)
    assert launch is not None
    assert (list(launch.grid), launch.flags) == ([12, 1, 1], 1)
    for field, value in (("scales", 0), ("scales", 0x5004), ("zeros", 0), ("block", 16), ("block", 192)):
        wrong = BlockProblem.from_buffer_copy(problem)
        setattr(wrong, field, value)
        assert built.fill(wrong) is None, field
    for field, value in (("m", 9), ("k", 260), ("a", 0x1008), ("b", 0x2008), ("batch", 2), ("c", 0)):
        wrong = BlockProblem.from_buffer_copy(problem)
        setattr(wrong.gemm, field, value)
        assert built.fill(wrong) is None, field
