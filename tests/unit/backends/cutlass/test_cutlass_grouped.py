"""Products of groups of rows: tiles that blocks find by the ends of groups, kernels, and what stays one operator."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from cutlass_kernel_builder import build_host, build_simt
from tvm import relax

from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.grouped import GroupedGemm, GroupedProblem, rank_grouped
from packager.bundle.arrays import Array
from packager.graph.products.grouped import NAME, grouped_matmul
from packager.transforms.products.grouped_products import decompose_grouped

# Groups, rows, height of tiles.
SIZES = [(1, 1, 16), (8, 100, 16), (3, 500, 128), (31, 64, 64), (32, 40, 16), (70, 333, 16), (200, 9, 16)]


class Problem(ctypes.Structure):
    """As pk_grouped_gemm_t."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "ends", "d")),
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "groups")),
    )


@pytest.fixture(scope="module")
def find_tiles(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return build_simt("row_tiles", tmp_path_factory.mktemp("simt")).find_tiles


@pytest.mark.parametrize("full", [True, False], ids=["all rows are of groups", "rows behind the last group"])
@pytest.mark.parametrize(("groups", "rows", "height"), SIZES)
def test_tiles_have_each_row_once_and_with_those_of_its_group(
    groups: int, rows: int, height: int, full: bool, find_tiles: Any
) -> None:
    rng = np.random.default_rng(groups + rows)
    # Some groups have no rows, some many.
    counts = rng.multinomial(rows if full else rows * 2 // 3, rng.dirichlet(np.full(groups, 0.3)))
    ends = np.cumsum(counts, dtype=np.int32)
    tiles = np.full((rows + groups + 1, 3), -1, np.int32)
    count = find_tiles(
        ends.ctypes.data_as(ctypes.c_void_p), groups, rows, height, tiles.ctypes.data_as(ctypes.c_void_p)
    )
    owner = np.full(rows, -1)
    for group, first, number in tiles[:count].tolist():
        assert number <= height
        assert (owner[first : first + max(number, 0)] == -1).all()
        owner[first : first + max(number, 0)] = group
    np.testing.assert_array_equal(owner, (np.arange(rows)[:, None] >= ends).sum(1))


def test_each_tile_and_type_has_a_name_and_a_source_of_its_own() -> None:
    options = CutlassOptions(arch=("sm_80",))
    kernels: dict[str, GroupedGemm] = {}
    for dtype in ("float16", "bfloat16", "float32"):
        for columns in (512, 36):
            ranking = rank_grouped(GroupedProblem(None, None, None, dtype, 64, 8, columns, 256), 64, options)
            assert ranking.estimates == tuple(sorted(ranking.estimates))
            kernels |= {candidate.name: candidate.choices[0].kernel for candidate in ranking.candidates}
    texts = {kernel.source(("sm_80",)).text.replace(name, "") for name, kernel in kernels.items()}
    assert len(texts) == len(kernels) > 10
    assert all(re.fullmatch("pk_gemm_grouped_[a-z0-9_]+", name) for name in kernels)


def test_many_rows_of_each_group_take_wide_tiles() -> None:
    problem = GroupedProblem(None, None, None, "float16", 8192, 8, 1024, 1024)
    for arch in ("sm_80", "sm_90a"):
        kernel: Any = rank_grouped(problem, 8192, CutlassOptions(arch=(arch,))).candidates[0].choices[0].kernel
        assert kernel.tile.shape[0] == 128


@pytest.mark.slow
def test_a_kernel_takes_what_it_is_made_for(tmp_path: Path) -> None:
    ranking = rank_grouped(
        GroupedProblem(None, None, None, "float16", 64, 8, 512, 256), 64, CutlassOptions(arch=("sm_90a",))
    )
    kernel: Any = ranking.candidates[0].choices[0].kernel
    host, (height, width, _) = build_host(kernel, tmp_path), kernel.tile.shape
    given: dict[str, int] = {
        "a": 4096,
        "b": 8192,
        "ends": 4100,
        "d": 1 << 20,
        "m": 100,
        "n": 512,
        "k": 256,
        "groups": 8,
    }
    launch = host.fill(Problem(**given))
    assert launch is not None
    assert list(launch.grid) == [512 // width, 100 // height + 9, 1]
    assert launch.shared_bytes == host.shared_bytes
    for name, value in {"a": 4098, "b": 8194, "ends": 0, "d": 8, "m": 0, "n": 500, "k": 252, "groups": 0}.items():
        assert host.fill(Problem(**{**given, name: value})) is None, name


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("kept", [True, False])
def test_products_with_constants_stay_one_operator_where_they_are_wanted(constant: bool, kept: bool) -> None:
    kinds = [relax.TensorType(shape, "float32") for shape in ([20, 8], [4, 8, 6])]
    rows, matrices = (relax.Var(name, kind) for name, kind in zip(("rows", "matrices"), kinds, strict=True))
    ends = relax.Var("ends", relax.TensorType([4], "int32"))
    inputs = [rows, ends] if constant else [rows, ends, matrices]
    builder = relax.BlockBuilder()
    with builder.function("main", [*inputs, *([matrices] if constant else [])]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(grouped_matmul(rows, matrices, ends)))
        builder.emit_func_output(result)
    module = decompose_grouped(builder.get(), len(inputs), kept=kept)
    assert (NAME.removeprefix("relax.") in module.script()) == (kept and constant)
    if not kept:
        _check_numbers(module)


def _check_numbers(module: tvm.IRModule) -> None:
    rng = np.random.default_rng(0)
    rows, matrices = rng.standard_normal((20, 8), np.float32), rng.standard_normal((4, 8, 6), np.float32)
    ends = np.array([3, 3, 11, 17], np.int32)
    machine = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())
    found = machine["main"](*(tvm.runtime.tensor(array) for array in (rows, ends, matrices)))
    np.testing.assert_allclose(found.numpy(), _product(rows, matrices, ends), 1e-5, 1e-5)


def _product(rows: Array, matrices: Array, ends: Array) -> Array:
    result = np.zeros((len(rows), matrices.shape[2]), np.float32)
    for matrix, begin, end in zip(matrices, [0, *ends], ends, strict=False):
        result[begin:end] = rows[begin:end] @ matrix
    return result
