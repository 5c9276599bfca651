"""Weights that are quantized in blocks, made floats on the host, and the launches of a product by its rows."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cutlass_kernel_builder import build_host, build_simt
from test_cutlass_gemm_blocks import BlockProblem, aligned, bfloat16_bits
from test_cutlass_kernels import Problem

from packager.backends.cutlass.core.compile_kernels import HEADER_FOLDERS
from packager.backends.cutlass.gemm.block_weights import (
    DequantizeBlocks,
    blocks_of_unit,
    pack_numbers,
    pack_weights,
)
from packager.codegen.toolchain import find_toolchain
from packager.graph.block_weights import BlockFormat, dequantized, pack

pytestmark = pytest.mark.slow


class Dequantize(ctypes.Structure):
    """As pk_dequantize_t."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("b", "scales", "zeros", "d")),
        *((name, ctypes.c_int64) for name in ("first", "n", "k", "block")),
    )


@dataclass(frozen=True)
class Case:
    """``columns`` of ``n`` from ``first`` on."""

    n: int = 48
    k: int = 128
    bits: int = 4
    block: int = 32
    zeros: bool = False
    first: int = 0
    columns: int = 48


CASES = [
    Case(),
    Case(n=45, columns=45, zeros=True),
    Case(n=80, first=32, columns=48, block=64, k=200),
    Case(block=128, k=2056, zeros=True, n=16, columns=16),
    Case(block=256, k=1024, n=64, first=48, columns=16),
    Case(block=16, k=72, zeros=True),
    Case(bits=8, zeros=True, n=33, first=16, columns=17),
    Case(bits=8, block=16, k=104),
    Case(bits=8, block=128, k=1280, zeros=True),
]


@pytest.fixture(scope="module")
def dequantize(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return build_simt("gemm_dequantize", tmp_path_factory.mktemp("simt")).dequantize


@pytest.mark.parametrize("half", [True, False], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_they_are_what_a_build_makes_of_them_bit_for_bit(dequantize: Any, case: Case, half: bool) -> None:
    rng = np.random.default_rng(1)
    form = BlockFormat(case.bits, case.block, case.k, case.zeros)
    packed = pack(rng.integers(0, 1 << case.bits, (case.n, case.k)).astype(np.uint8), form)
    scales = (rng.standard_normal((case.n, form.blocks)) * 0.02).astype(np.float16)
    zeros = rng.integers(0, 1 << case.bits, (case.n, form.blocks)).astype(np.uint8)
    b, s, z = (aligned(pack_weights(packed, form)), *(aligned(pack_numbers(each, form)) for each in (scales, zeros)))
    d = aligned(np.full((case.columns + 1, case.k), 0x7FFF, np.uint16))
    pointers = (b.ctypes.data, s.ctypes.data, z.ctypes.data if case.zeros else 0, d.ctypes.data)
    problem = Dequantize(*pointers, case.first, case.columns, case.k, case.block)
    together = blocks_of_unit(form)
    assert dequantize(ctypes.byref(problem), case.bits, together, int(case.zeros), int(half)) == 0
    want = dequantized(packed, scales.astype(np.float32), zeros.astype(np.float32), form)
    want = want[case.first : case.first + case.columns]
    expected = want.astype(np.float16).view(np.uint16) if half else bfloat16_bits(want)
    np.testing.assert_array_equal(d[:-1], expected)
    assert (d[-1] == 0x7FFF).all()


def test_its_host_object_needs_nothing_and_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    built = build_host(DequantizeBlocks("float16", 4, 1, has_zeros=True), tmp_path)
    assert subprocess.run(["nm", "-u", built.object], check=True, capture_output=True, text=True).stdout == ""
    problem = Dequantize(0x1000, 0x2000, 0x3000, 0x4000, 32, 190, 2056, 128)
    launch = built.fill(problem)
    assert launch is not None
    assert (list(launch.grid), launch.flags) == ([12, 3, 1], 1)
    wrong_values = (("b", 0x1008), ("scales", 0), ("zeros", 0), ("d", 0x4008), ("first", 8), ("n", 0), ("k", 260))
    for field, value in (*wrong_values, ("block", 32), ("block", 192)):
        wrong = Dequantize.from_buffer_copy(problem)
        setattr(wrong, field, value)
        assert built.fill(wrong) is None, field


LAUNCHES = """
#include "block_launch.h"
int32_t kinds[64], launches, refuses = -1;
pk_block_gemm_t parts[64];
pk_dequantize_t floats[64];
static int32_t note(int32_t kind, void *to, const void *problem, uint64_t bytes) {
  if (launches == refuses) return 7;
  kinds[launches++] = kind;
  memcpy(to, problem, bytes);
  return 0;
}
static int32_t of_1(pk_cuda_t *c, const void *p, uint64_t b) { (void)c; return note(3, &parts[launches], p, b); }
static int32_t of_8(pk_cuda_t *c, const void *p, uint64_t b) { (void)c; return note(8, &parts[launches], p, b); }
static int32_t of_16(pk_cuda_t *c, const void *p, uint64_t b) { (void)c; return note(16, &parts[launches], p, b); }
static int32_t dequantize(pk_cuda_t *c, const void *p, uint64_t b) { (void)c; return note(1, &floats[launches], p, b); }
static int32_t multiply(pk_cuda_t *c, const void *p, uint64_t b) { (void)c; return note(2, &parts[launches], p, b); }
int32_t run(const pk_block_gemm_t *problem, int64_t few, int64_t d_bytes) {
  const pk_block_kernels_t kernels = {of_1, of_8, of_16, dequantize, multiply, few, d_bytes};
  launches = 0;
  return pk_multiply_blocks(NULL, problem, &kernels);
}
"""


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("launches")
    source, library = folder / "launches.c", folder / "launches.so"
    source.write_text(f"#include <string.h>\n{LAUNCHES}", encoding="utf-8")
    compiler = find_toolchain("x86_64").cc
    flags = ["-std=gnu11", "-Wall", "-Werror", "-shared", "-fPIC", *(f"-I{place}" for place in HEADER_FOLDERS)]
    subprocess.run([compiler, *flags, source, "-o", library], check=True)
    return ctypes.CDLL(str(library))


def problem_of(rows: int) -> BlockProblem:
    gemm = Problem(0x10000, 0x20000, 0x30000, 0x40000, 0x50000, 0, rows, 600, 64, 1, 64, 64, 600, 640)
    problem = BlockProblem(gemm, 0x60000, 0x70000, 32)
    problem.floats, problem.slice = 0x80000, 256
    return problem


RUNS = [(1, [3]), (2, [8]), (8, [8]), (9, [16]), (16, [16]), (17, [16, 3]), (18, [16, 8]), (33, [1, 2] * 3)]


@pytest.mark.parametrize(("rows", "kinds"), RUNS)
def test_rows_of_a_run_choose_the_kernels(launches: ctypes.CDLL, rows: int, kinds: list[int]) -> None:
    assert launches.run(ctypes.byref(problem_of(rows)), ctypes.c_int64(32), ctypes.c_int64(2)) == 0
    count = ctypes.c_int32.in_dll(launches, "launches").value
    assert list((ctypes.c_int32 * 64).in_dll(launches, "kinds"))[:count] == kinds


def test_rows_are_multiplied_sixteen_at_a_time(launches: ctypes.CDLL) -> None:
    launches.run(ctypes.byref(problem_of(39)), ctypes.c_int64(64), ctypes.c_int64(4))
    parts = (BlockProblem * 64).in_dll(launches, "parts")
    found = [(part.gemm.m, part.gemm.a, part.gemm.c, part.gemm.d) for part in parts[:3]]
    assert found == [
        (16 if row < 32 else 7, 0x10000 + row * 64 * 2, 0x40000 + row * 600 * 4, 0x50000 + row * 640 * 4)
        for row in (0, 16, 32)
    ]
    assert {(part.gemm.b, part.gemm.bias, part.scales) for part in parts[:3]} == {(0x20000, 0x30000, 0x60000)}


def test_columns_of_many_rows_are_made_floats_a_slice_at_a_time(launches: ctypes.CDLL) -> None:
    launches.run(ctypes.byref(problem_of(100)), ctypes.c_int64(16), ctypes.c_int64(2))
    parts, floats = (BlockProblem * 64).in_dll(launches, "parts"), (Dequantize * 64).in_dll(launches, "floats")
    slices = ((0, 256), (256, 256), (512, 88))
    assert [(each.first, each.n, each.k, each.d) for each in floats[0:6:2]] == [(c, n, 64, 0x80000) for c, n in slices]
    gemms = [part.gemm for part in parts[1:6:2]]
    assert [(each.n, each.b, each.bias, each.c, each.d) for each in gemms] == [
        (n, 0x80000, 0x30000 + 2 * c, 0x40000 + 2 * c, 0x50000 + 2 * c) for c, n in slices
    ]
    assert {(each.m, each.lda, each.ldd) for each in gemms} == {(100, 64, 640)}


def test_a_launch_that_fails_is_the_last(launches: ctypes.CDLL) -> None:
    refuses = ctypes.c_int32.in_dll(launches, "refuses")
    for rows in (20, 100):
        refuses.value = 1
        assert launches.run(ctypes.byref(problem_of(rows)), ctypes.c_int64(32), ctypes.c_int64(2)) == 7
        assert ctypes.c_int32.in_dll(launches, "launches").value == 1
    refuses.value = -1
