"""Products of few rows, run on the host, beside numpy in float64."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cutlass_kernel_builder import build_host, build_simt
from test_cutlass_kernels import Problem

from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.cost_model import GemmForm, GemmShape, rank_gemm
from packager.backends.cutlass.gemm.few_rows import TILES, FewRowsGemm, RowsForm, few_rows_kernels

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Case:
    """A product of random numbers; leading dimensions are ``gap`` elements wider than rows.

    ``gated``: there are ``n`` gates and as many columns that these multiply, in turns of eight.
    """

    m: int = 1
    n: int = 48
    k: int = 128
    kind: str = "fp16"
    bias: bool = False
    residual: bool = False
    relu: bool = False
    gap: int = 0
    gated: bool = False
    normed: bool = False


class NormedProblem(ctypes.Structure):
    """As pk_normed_gemm_t."""

    _fields_ = (("gemm", Problem), ("epsilon", ctypes.c_float))


CASES = {
    "one row": Case(),
    "three rows": Case(m=3, bias=True),
    "eight rows": Case(m=8, n=33, residual=True),
    "sixteen rows": Case(m=16, n=64, bias=True, relu=True),
    "nine rows, odd columns": Case(m=9, n=45, bias=True, residual=True),
    "a long sum": Case(m=2, n=16, k=4424),
    "a long sum of many rows": Case(m=11, n=32, k=3000),
    "a short sum": Case(m=2, n=16, k=8),
    "bfloat16": Case(m=4, kind="bf16", bias=True, residual=True),
    "float32 results": Case(m=4, kind="fp32", bias=True, relu=True),
    "gaps": Case(m=5, gap=8, residual=True),
    "tiles one after the other": Case(m=5, n=150, k=2056, bias=True, residual=True),
    "tiles one after the other, rows that stay": Case(m=5, n=150, k=1000, normed=True),
    "gates": Case(m=3, gated=True, relu=True),
    "gates with a bias": Case(m=2, n=40, gated=True, bias=True, gap=8),
    "gates of many rows": Case(m=13, n=24, k=1000, gated=True, relu=True),
    "normalized": Case(m=3, normed=True, residual=True),
    "a long normalized row": Case(k=4424, normed=True, bias=True),
    "many normalized rows": Case(m=16, n=33, k=1200, normed=True),
    "normalized, gates": Case(m=7, n=56, normed=True, gated=True, relu=True),
    "normalized, gates, bfloat16": Case(m=9, kind="bf16", normed=True, gated=True, relu=True, bias=True),
}


@pytest.fixture(scope="module")
def multiply(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return build_simt("gemm_rows", tmp_path_factory.mktemp("simt")).multiply


@pytest.mark.sampled(4, every_value=False)
@pytest.mark.parametrize("warps", [8, 16])
@pytest.mark.parametrize("rows", [8, 16])
@pytest.mark.parametrize("name", CASES)
def test_a_product_of_few_rows_is_that_of_numpy(multiply: Any, name: str, rows: int, warps: int) -> None:
    case = CASES[name]
    rng, half = np.random.default_rng(0), np.float16 if case.kind != "bf16" else ml_dtypes.bfloat16
    out = np.float32 if case.kind == "fp32" else half

    def made(height: int, width: int, dtype: Any) -> Any:
        return rng.standard_normal((height, width + case.gap)).astype(dtype)

    columns = case.n * (1 + case.gated)
    a, b, c = made(case.m, case.k, half), made(columns, case.k, half), made(case.m, case.n, out)
    bias, d = rng.standard_normal(columns).astype(out), np.full_like(c, np.nan)
    gemm = Problem(a.ctypes.data, b.ctypes.data, 0, 0, d.ctypes.data, 0, case.m, case.n, case.k, 1)
    gemm.lda = gemm.ldb = case.k + case.gap
    gemm.ldc = gemm.ldd = case.n + case.gap
    gemm.alpha, gemm.beta = 0.25, 0.5
    gemm.bias = bias.ctypes.data if case.bias else 0
    gemm.c = c.ctypes.data if case.residual else 0
    problem = NormedProblem(gemm, 0.125 if case.normed else 0.0)
    kind = ("fp16", "bf16", "fp32").index(case.kind)
    # On one multiprocessor, of which blocks have several tiles.
    status = multiply(ctypes.byref(problem), kind, warps, rows, case.relu, case.gated, case.normed, 1)
    if case.m > rows:
        assert status == -1
        return
    assert status == 0
    x = a[:, : case.k].astype(np.float64)
    if case.normed:
        x /= np.sqrt((x**2).mean(-1, keepdims=True) + 0.125)
    want = 0.25 * x @ b[:, : case.k].astype(np.float64).T
    want += bias.astype(np.float64) * case.bias
    if case.gated:
        gates, want = want.reshape(case.m, -1, 2, 8).transpose(2, 0, 1, 3).reshape(2, case.m, case.n)
        want = want * (np.maximum(gates, 0) if case.relu else gates)
    else:
        want += 0.5 * c[:, : case.n].astype(np.float64) * case.residual
        want = np.maximum(want, 0) if case.relu else want
    tolerance = {"fp16": 1e-3, "bf16": 8e-3, "fp32": 1e-5}[case.kind]
    np.testing.assert_allclose(d[:, : case.n].astype(np.float64), want, rtol=tolerance, atol=tolerance)
    assert np.isnan(d[:, case.n :].astype(np.float64)).all()


def names(
    rows: int, depth: int = 768, *, fixed: bool = True, dtype: str = "float16", archs: tuple[str, ...] = ("sm_90a",)
) -> list[str]:
    shape = GemmShape(rows, 3072, depth, 1, fixed)
    ranking = rank_gemm(
        shape, GemmForm(dtype, dtype, activation="silu", constant=True), (768, 3072), CutlassOptions(arch=archs)
    )
    return [candidate.name for candidate in ranking.candidates]


def test_few_rows_have_any_number_of_columns() -> None:
    shape, form = GemmShape(8, 10, 768, 1, True), GemmForm("float16", "float16", constant=True)
    ranking = rank_gemm(shape, form, (768, 10), CutlassOptions(arch=("sm_90a",)))
    assert ranking.candidates[0].name.startswith("pk_gemm_rows_f16_f16_8_none")


def test_few_rows_have_a_kernel_of_their_own() -> None:
    assert names(1)[0] == "pk_gemm_rows_f16_f16_8_silu"
    assert names(1, archs=("sm_80",))[0] == names(1, archs=("sm_80", "sm_90a"))[0].partition("+")[0] == names(1)[0]
    assert names(16)[0] == "pk_gemm_rows_f16_f16_16_silu"
    assert names(16, 3072)[1] == names(16)[0], "of wide tiles no block has more warps"
    for others in (names(17), names(1, fixed=False), names(1, dtype="float32")):
        assert others
        assert not any("rows" in name for name in others)


@pytest.mark.parametrize("rows", [8, 16])
@pytest.mark.parametrize("size", [(2048, 8192), (2048, 2048), (4096, 8192)])
def test_what_warps_add_up_fits_shared_memory(rows: int, size: tuple[int, int]) -> None:
    """Of 16 rows by 16 warps it did not: no bundle for other GPUs than Hopper's could be built."""
    (kernel,) = few_rows_kernels((rows, *size), "float16", RowsForm("float16"), fast_math=False)
    assert kernel.warps == (16 if rows == 8 and size == (2048, 8192) else 8)
    # As rows_memory of gemm_rows.h has it, of static shared memory.
    assert 4 * kernel.warps * rows * (32 * TILES[rows] + 1) <= 48 << 10
    with pytest.raises(ValueError, match="no kernel of 16 rows and 16 warps"):
        FewRowsGemm(16, "float16", "float16", warps=16)


@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_its_host_object_needs_nothing(tmp_path: Path, activation: str) -> None:
    built = build_host(FewRowsGemm(8, "bfloat16", "float32", activation, residual=True), tmp_path)
    assert subprocess.run(["nm", "-u", built.object], check=True, capture_output=True, text=True).stdout == ""
    problem = Problem(0x1000, 0x2000, 0, 0x3000, 0x4000, 0, 3, 192, 256, 1, 256, 256, 192, 192)
    launch = built.fill(problem)
    assert launch is not None
    assert (list(launch.grid), launch.flags) == ([12, 1, 1], 1)
    for field, value in (("m", 9), ("k", 260), ("a", 0x1008), ("batch", 2), ("c", 0)):
        wrong = Problem.from_buffer_copy(problem)
        setattr(wrong, field, value)
        assert built.fill(wrong) is None, field
