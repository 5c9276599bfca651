"""The configurations of GEMM kernels, and what two compilers make of one of each family."""

from __future__ import annotations

import ctypes
import importlib.metadata
import itertools
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cutlass_kernel_builder import ARCHS, EVERY, HostKernel, Launch, build_host, link_host, make_context

from packager.backends.cutlass.core.compile_kernels import compile_kernels, find_cutlass
from packager.backends.cutlass.core.element_types import ELEMENTS, vector_of
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.cost_model import GemmForm, GemmShape, rank_gemm
from packager.backends.cutlass.gemm.kernels import ACTIVATIONS, TYPES, GemmConfig
from packager.backends.cutlass.gemm.tiles import portfolio
from packager.backends.cutlass.gemm.tilings import Sm80Tile, Sm90Tile, has_gates
from packager.codegen.cuda_toolkit import find_cuda_toolkit
from packager.resources import folder

# Where parameters begin in the constant bank; on sm_90 those that hold tensor maps begin at a multiple of 128.
PARAMETERS = {("sm90", "sm_90a"): 0x280, ("sm80", "sm_90a"): 0x210, ("sm80", "sm_80"): 0x160}

PARAMETRIZED = (
    *("leaky_relu_3e4ccccd", "leaky_relu_3c23d70a", "clip_00000000_40c00000", "clip_bf800000_7f800000"),
    *("sine_41f00000", "swish_3fd9db23", "elu_3f800000_3f800000", "star_relu_3f800000_00000000"),
)


def configurations() -> Iterator[GemmConfig]:
    """Yield all that the portfolios and the axes make of each type."""
    for family, dtype, b_rows in itertools.product(("sm90", "sm80"), TYPES, (False, True)):
        full = vector_of(dtype)
        for alignment, out in itertools.product((full, full // 2, full // 4, full // 8), TYPES[dtype].outputs):
            for tile in portfolio(family, dtype, out, alignment=alignment, b_rows=b_rows) if alignment else ():
                plain = GemmConfig(tile, dtype, out, alignment, b_rows)
                yield plain
                yield replace(plain, residual=True)
                if family == "sm90" and not b_rows:
                    yield replace(plain, early=True)
                    if has_gates(tile):
                        yield replace(plain, early=True, gated=True)
                for activation in (*ACTIVATIONS, *PARAMETRIZED):
                    yield replace(plain, activation=activation)
                    yield replace(plain, activation=activation, fast_math=True)


def test_a_name_says_all_that_the_code_depends_on() -> None:
    texts: dict[str, str] = {}
    for config in configurations():
        source = config.source(ARCHS)
        assert source.name == config.name
        assert re.fullmatch("[a-z][a-z0-9_]*", source.name)
        text = source.text.replace(source.name, "")
        assert texts.setdefault(source.name, text) == text
    assert len(texts) > 1000
    assert len(set(texts.values())) == len(texts)


@pytest.mark.parametrize(
    "change",
    [
        {"shape": (64, 128, 128)},
        {"cluster": (1, 2)},
        {"schedule": "plain"},
        {"stages": 3},
        {"epilogue": (64, 32)},
        {"blocks": 2},
        {"swapped": True},
    ],
)
def test_each_field_of_an_sm90_tile_makes_another_kernel(change: dict[str, object]) -> None:
    tile = Sm90Tile((64, 128, 64), (2, 1))
    kernels = [
        GemmConfig(each, "float16", "float16", 8).source(ARCHS)
        for each in (tile, replace(tile, **change))  # type: ignore[arg-type]
    ]
    assert kernels[0].name != kernels[1].name
    assert kernels[0].text.replace(kernels[0].name, "") != kernels[1].text.replace(kernels[1].name, "")


@pytest.mark.parametrize("swapped", [False, True])
def test_constant_matrices_alone_are_loaded_before_the_wait(swapped: bool) -> None:
    tile = Sm90Tile((64, 32, 128), swapped=swapped)
    plain = GemmConfig(tile, "float16", "float16", 8, residual=True)
    constant = f"EarlyWeights<Mainloop, {'true' if swapped else 'false'}>, WaitingEpilogue<Epilogue>"
    early = replace(plain, early=True)
    assert constant in early.source(ARCHS).text
    assert early.name != plain.name
    for text in (plain.source(ARCHS).text, replace(plain, b_rows=True).source(ARCHS).text):
        assert "GemmUniversal<Shape<int, int, int, int>, Mainloop, Epilogue>" in text
        assert "gemm_sm90.h" not in text  # without which CUTLASS waits before all loads


def test_matrices_that_a_kernel_computes_are_never_loaded_early() -> None:
    """Whatever the rows: also by the kernels of few rows, which always load early."""
    options = CutlassOptions(arch=("sm_80", "sm_90a"))
    for rows, b_rows in itertools.product((1, 8, 16, 100, 1000), (False, True)):
        shape = GemmShape(rows, 768, 768, 1, has_fixed_rows=True)
        ranking = rank_gemm(shape, GemmForm("float16", "float16", b_rows), (768, 768), options)
        assert ranking.candidates
        for choice in (choice for candidate in ranking.candidates for choice in candidate.choices):
            assert isinstance(choice.kernel, GemmConfig)
            assert not choice.kernel.early
    constant = rank_gemm(
        GemmShape(100, 768, 768, 1), GemmForm("float16", "float16", constant=True), (768, 768), options
    )
    kernels = [choice.kernel for candidate in constant.candidates for choice in candidate.choices]
    assert {kernel.early for kernel in kernels if choice_is_sm90(kernel)} == {True}


def choice_is_sm90(kernel: object) -> bool:
    return isinstance(kernel, GemmConfig) and kernel.tile.family == "sm90"


def test_functors_of_activations_exist() -> None:
    header = (folder("templates") / "cutlass" / "common" / "activations.h").read_text(encoding="utf-8")
    defined = set(re.findall(r"^template <class T> struct (\w+)", header, re.MULTILINE))
    asked = {config.form for config in configurations()} - {"cutlass::epilogue::thread::Identity"}
    assert {form.removeprefix("pk::") for form in asked if "<" not in form} == defined
    kinds = {form.removeprefix("pk::").partition("<")[0]: form.count("0x") for form in asked if "<" in form}
    found = re.findall(r"^template <(uint32_t[^>]*)> struct (\w+) [{:]", header, re.MULTILINE)
    assert kinds == {name: parameters.count("uint32_t") for parameters, name in found if not name.startswith("Scalar")}


def test_constants_are_those_of_the_header() -> None:
    header = (folder("templates") / "cutlass" / "gemm" / "gemm.h").read_text(encoding="utf-8")
    config = GemmConfig(Sm80Tile((64, 64, 64), (32, 32), 5, 0), "float16", "float16", 8)
    (blocks,) = re.findall(r"kStreamBlocksPerSm = (\d+);", header)
    assert config.workspace_bytes(100) == int(blocks) * 100 * 2 * 64 * 64 * 4
    assert replace(config, tile=Sm90Tile((64, 64, 64))).workspace_bytes(100) == 0


WRONG = {
    "makes float16, float32": {"out": "bfloat16"},
    "TMA takes 16 bytes": {"alignment": 4},
    "sm90 kernels do not multiply float32": {"dtype": "float32", "out": "float32", "alignment": 4},
    "constant matrices are loaded early": {"early": True, "b_rows": True},
    "b of tfloat32 is": {"dtype": "tfloat32", "out": "float32", "alignment": 4, "b_rows": True},
    "no layout of float32": {"tile": Sm90Tile((128, 144, 64), epilogue=(128, 48)), "out": "float32"},
    "gates are columns of an sm90 tile": {"gated": True, "residual": True},
    "gates are columns of": {"gated": True, "tile": Sm90Tile((64, 32, 128), swapped=True)},
    "gates are columns": {"gated": True, "tile": Sm80Tile((64, 64, 64), (32, 32), 5)},
    "1 elements cannot be copied": {"tile": Sm80Tile((64, 64, 64), (32, 32), 5), "alignment": 1},
}


@pytest.mark.parametrize("message", WRONG)
def test_what_templates_cannot_be_is_refused(message: str) -> None:
    good = GemmConfig(Sm90Tile((64, 128, 64)), "float16", "float16", 8)
    with pytest.raises(ValueError, match=message):
        replace(good, **WRONG[message])  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", TYPES)
def test_every_alignment_that_can_be_copied_has_kernels(dtype: str) -> None:
    size, out = ELEMENTS[dtype].size, TYPES[dtype].outputs[0]
    for alignment in (16 // size, 8 // size, 4 // size, 2 // size):
        tiles = portfolio("sm80", dtype, out, alignment=alignment) if alignment else ()
        assert bool(tiles) == (alignment > 0)
        assert bool(portfolio("sm90", dtype, out, alignment=max(alignment, 1))) == (
            alignment * size == 16 and dtype != "float32"
        )


class Problem(ctypes.Structure):
    """As pk_gemm_t."""

    _fields_ = (
        *[(name, ctypes.c_uint64) for name in ("a", "b", "bias", "c", "d", "workspace")],
        *[(name, ctypes.c_int64) for name in ("m", "n", "k", "batch", "lda", "ldb", "ldc", "ldd")],
        *[(f"batch_{name}", ctypes.c_int64) for name in "abcd"],
        ("alpha", ctypes.c_float),
        ("beta", ctypes.c_float),
        ("counters", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class Built:
    """A kernel's configuration, and what the host has of it."""

    config: GemmConfig
    host: HostKernel

    def fill(self, encoded: bool = True, **values: int | float) -> Launch | None:
        """Return the launch of a problem of m = 100, n = 192, k = 256, with other values; None if it is refused."""
        problem = Problem(0x1000, 0x2000, 0, 0x3000, 0x4000, 0x100000, 100, 192, 256, 1, 256, 256, 192, 192)
        problem.alpha, problem.beta, problem.counters = 1.0, 1.0, 0x8000
        for name, value in values.items():
            setattr(problem, name, value)
        return self.host.fill(problem, refused=0 if encoded else EVERY)


COMPILED = {
    "sm90": GemmConfig(Sm90Tile((64, 64, 64), (2, 1)), "float16", "float16", 8, activation="gelu", residual=True),
    "sm80": GemmConfig(Sm80Tile((64, 64, 64), (32, 32), 3, 0), "bfloat16", "float32", 4, residual=True),
}


# Kernels that test_cutlass_bundles.py has as well, and those above: nvcc takes half a minute for each.
BY_NVCC = [
    (
        GemmConfig(Sm90Tile((64, 96, 64), (1, 1), "plain"), "float16", "float32", 8, residual=True, early=True),
        "sm_90a",
        90,
    ),
    (GemmConfig(Sm80Tile((64, 64, 64), (32, 32), 5), "float16", "float16", 8), "sm_80", 0),
    *(pytest.param((config, "sm_90a", 90), marks=pytest.mark.thorough) for config in COMPILED.values()),
]


@pytest.fixture(scope="module", params=COMPILED)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    config = COMPILED[request.param]
    return Built(config, build_host(config, tmp_path_factory.mktemp("kernels")))


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.slow
def test_host_objects_need_nothing_but_the_runtime_and_libgcc(built: Built) -> None:
    undefined = subprocess.run(
        ["nm", "-u", built.host.object], capture_output=True, text=True, check=True
    ).stdout.split()
    assert set(undefined) <= {"U", "pk_tensor_map_encode", "__udivti3", "memcpy", "memset"}
    sections = subprocess.run(["readelf", "-SW", built.host.object], capture_output=True, text=True, check=True).stdout
    assert not re.search(r"\.(init_array|ctors|gcc_except_table)", sections)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", BY_NVCC, ids=lambda kernel: kernel[0].name)
def test_both_compilers_lay_out_the_parameter_alike(kernel: tuple[GemmConfig, str, int], tmp_path: Path) -> None:
    config, arch, least = kernel
    kernels, toolkit = [(config.source((arch,)), least)], find_cuda_toolkit("")
    (made,) = compile_kernels(kernels, find_cutlass(), toolkit, make_context(tmp_path))
    host = link_host(config.name, made.host, tmp_path)
    files = importlib.metadata.files("nvidia-cuda-cuobjdump") or []
    (tool,) = [str(file.locate()) for file in files if file.name == "cuobjdump"]
    usage = subprocess.run([tool, "-res-usage", made.fatbin], capture_output=True, text=True, check=True).stdout
    (line,) = re.findall(rf"Function {config.name}:\n(.*)", usage)
    (bank,) = re.findall(r"CONSTANT\[0\]:(\d+)", line)
    assert int(bank) - PARAMETERS[config.tile.family, arch] == host.bytes
    assert re.search(r"STACK:0 .*LOCAL:0 ", line)  # nothing is spilled


@pytest.mark.slow
def test_fill_takes_problems_and_refuses_others(built: Built) -> None:
    launch = built.fill()
    assert launch is not None
    assert launch.shared_bytes == built.host.shared_bytes
    assert launch.grid[0] * launch.grid[1] * launch.grid[2] > 0
    assert built.fill(bias=0x5000) is not None
    assert built.fill(batch=3, batch_a=25600, batch_b=0, batch_c=19200, batch_d=19200) is not None
    refused: tuple[dict[str, int], ...] = (
        *({name: 0} for name in ("m", "n", "k", "batch", "a", "b", "c", "d")),
        *({name: 0x1002} for name in ("a", "b", "bias", "c", "d")),
        *({name: 1 << 31} for name in ("m", "batch")),
        *({name: 100} for name in ("lda", "ldb", "ldd")),  # less than a row
        *({name: 1025} for name in ("lda", "ldb", "ldc", "ldd")),
        {"k": 255},
        {"n": 191},
        {"batch": 2, "batch_a": 25601},
    )
    for values in refused:
        assert built.fill(**values) is None, values


@pytest.mark.slow
def test_fill_tells_of_what_it_lacks(built: Built) -> None:
    tma = isinstance(built.config.tile, Sm90Tile)
    assert (built.fill(encoded=False) is None) == tma
    # Stream-K has no partial sums where each tile has its block.
    for lacking in ("workspace", "counters"):
        assert (built.fill(k=4096, lda=4096, ldb=4096, **{lacking: 0}) is None) == (not tma)
    assert built.fill(workspace=0, m=11 * 64, n=12 * 64, ldc=768, ldd=768) is not None


@pytest.mark.slow
def test_gates_are_columns_of_b_and_none_of_d(tmp_path: Path) -> None:
    config = GemmConfig(Sm90Tile((64, 64, 64)), "float16", "float16", 8, activation="silu", early=True, gated=True)
    built = Built(config, build_host(config, tmp_path))
    launch = built.fill(c=0, beta=0)
    assert launch is not None
    assert launch.grid[0] * launch.grid[1] * launch.grid[2] == 2 * 6  # tiles of 100 rows and 384 columns
    maps = (ctypes.c_uint64 * 8 * 8).in_dll(built.host.library, "recorded")
    assert [tuple(each[:3]) for each in maps[:3]] == [(0x1000, 256, 100), (0x2000, 256, 384), (0x4000, 192, 100)]
    assert built.fill(c=0, beta=0, bias=0x5000) is not None
    for values in ({"n": 188}, {"bias": 0x5002}, {"ldd": 100}, {"n": 1 << 30, "ldd": 1 << 30}):
        assert built.fill(c=0, beta=0, **values) is None, values
