"""3-D convolutions: which the backend takes and as what, and what the host code of their kernels makes of problems."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from cutlass_kernel_builder import EVERY, HostKernel, host_builds

from benchmarks.cutlass.operator_cases.volumes import volume, volumes
from packager.backends.cutlass.conv.cost_model import ConvShape, rank_conv
from packager.backends.cutlass.conv.kernels import ConvConfig, volume_portfolio
from packager.backends.cutlass.conv.problem import ConvProblem
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.cost_model import GemmForm
from packager.backends.cutlass.gemm.tilings import Sm80Tile, Sm90Tile
from tests.stages import placed_file, problems

ONES, THREES = (1, 1, 1), (3, 3, 3)


def taken(tmp_path: Path, *targets: str, **options: Any) -> list[Any]:
    """Return the problems that the backend takes of a model of one convolution."""
    case = volume("case", [1, 3], *options.pop("sizes", (16, 32, 6, 8, 10)), **options)
    path = tmp_path / "model.onnx"
    onnx.save(case.model(), path)
    model = placed_file(
        path, targets=targets or ("cuda -arch=sm_90a", "cutlass"), dims=case.dims, precision=case.precision
    )
    return problems(model)


@pytest.mark.parametrize(
    ("options", "image", "window"),
    [
        ({"window": ONES}, (6, 80), (1, 1)),
        ({"window": (1, 3, 3), "residual": True}, (8, 10), (3, 3)),
        ({"window": (3, 1, 1)}, (6, 80), (3, 1)),
        ({"window": (3, 1, 1), "dtype": "float"}, (6, 80), (3, 1)),
        ({"window": THREES, "residual": True}, (6, 8, 10), THREES),
        ({"window": THREES, "stride": (2, 2, 2)}, (6, 8, 10), THREES),
        ({"window": ONES, "stride": (2, 2, 2)}, (6, 8, 10), ONES),
        ({"window": (1, 3, 3), "stride": (2, 1, 1)}, (6, 8, 10), (1, 3, 3)),
    ],
    ids=str,
)
def test_convolutions_of_volumes(tmp_path: Path, options: Any, image: tuple[int, ...], window: tuple[int, ...]) -> None:
    (problem,) = taken(tmp_path, **options)
    assert isinstance(problem, ConvProblem)
    assert problem.chain.bias is not None
    assert problem.chain.activation == "relu"
    assert (problem.chain.residual is not None) == options.get("residual", False)
    assert (problem.conv.image, problem.conv.window) == (image, window)


@pytest.mark.parametrize("window", [ONES, (1, 3, 3), (3, 1, 1)], ids=str)
def test_views_are_taken_on_every_gpu(tmp_path: Path, window: Any) -> None:
    (problem,) = taken(tmp_path, "cuda -arch=sm_80", "cutlass", window=window, sizes=(10, 21, 5, 6, 7))
    assert len(problem.conv.image) == 2


@pytest.mark.parametrize(
    ("options", "arch"),
    [
        ({}, "sm_80"),
        ({}, "sm_80,sm_90a"),
        ({"dtype": "float"}, "sm_90a"),
        ({"sizes": (20, 32, 6, 8, 10)}, "sm_90a"),
        ({"sizes": (16, 12, 6, 8, 10)}, "sm_90a"),
        ({"dilation": (8, 1, 1), "sizes": (16, 32, 20, 8, 10)}, "sm_90a"),
        ({"padding": (1, 1, 1, 17, 1, 1)}, "sm_90a"),
    ],
    ids=str,
)
def test_what_is_left(tmp_path: Path, options: Any, arch: str) -> None:
    assert taken(tmp_path, f"cuda -arch={arch}", "cutlass", **options) == []


def test_few_channels_are_products(tmp_path: Path) -> None:
    (problem,) = taken(tmp_path, sizes=(1, 16, 6, 8, 10))
    assert problem.depth == 32


def test_models_of_the_benchmark_are_valid() -> None:
    cases = list(volumes())
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        onnx.checker.check_model(case.model())


def test_names_and_keys_are_their_own() -> None:
    flat = ConvConfig(Sm90Tile((64, 64, 64)), "float16", 8, 8)
    deep = replace(flat, volumes=True)
    assert deep.name == flat.name.replace("pk_conv", "pk_conv3d")
    places = ((3, 3), (1, 1), (1, 1), (1, 1))
    shape = ConvShape(1000, 64, 64, *((*pair, pair[0]) for pair in places))
    ranking = rank_conv(shape, GemmForm("float16", "float16"), CutlassOptions(arch=("sm_90a",)))
    assert ranking.problem.startswith("conv3d float16 1000x64x64 window 3x3x3 padding 1x1x1 ")
    assert all("pk_conv3d_sm90" in candidate.name for candidate in ranking.candidates)
    for options in ({"rows": True}, {"groups": True}, {"tile": Sm80Tile((64, 64, 64), (32, 32), 4)}):
        with pytest.raises(ValueError, match="no kernel"):
            replace(deep, **options)


@pytest.mark.parametrize(("channels", "filters"), [(8, 8), (16, 16), (32, 64), (64, 320), (200, 40)])
def test_every_size_that_tma_reads_has_kernels(channels: int, filters: int) -> None:
    for dtype in ("float16", "bfloat16"):
        assert volume_portfolio(dtype, channels, filters)
    assert not volume_portfolio("float32", channels, filters)
    assert not volume_portfolio("float16", channels + 1, filters)
    assert not volume_portfolio("float16", channels, filters + 4)


class Problem(ctypes.Structure):
    """As pk_conv3d_t."""

    _fields_ = (
        *[(name, ctypes.c_uint64) for name in ("x", "w", "bias", "residual", "y")],
        *[(name, ctypes.c_int64) for name in ("batch", "channels", "filters")],
        *[(name, ctypes.c_int64 * 3) for name in ("image", "result", "window", "padding", "stride", "dilation")],
    )


def made(**other: Any) -> Problem:
    """Return a convolution of two volumes of 9 x 28 x 30 by windows of 3 x 3 x 5, with strides 1, 2 and 3."""
    values = {"x": 4096, "w": 8192, "bias": 1024, "residual": 2048, "y": 1 << 20}
    values |= {"batch": 2, "channels": 64, "filters": 128}
    triples = {"image": (9, 28, 30), "result": (9, 14, 10), "window": (3, 3, 5), "padding": (1, 1, 2)}
    triples |= {"stride": (1, 2, 3), "dilation": (1, 1, 1)}
    problem = Problem(**{**values, **{name: value for name, value in other.items() if name not in triples}})
    for name, triple in triples.items():
        getattr(problem, name)[:] = other.get(name, triple)
    return problem


BUILT = {"tma": ConvConfig(Sm90Tile((64, 64, 64)), "float16", 8, 8, activation="relu", residual=True, volumes=True)}


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], HostKernel]:
    return host_builds(BUILT, tmp_path_factory)


@pytest.mark.slow
def test_tma_loads_windows(build: Callable[[str], HostKernel]) -> None:
    kernel = build("tma")
    launch = kernel.fill(made())
    assert launch is not None
    # 2 x 9 x 14 x 10 rows in tiles of 64, two tiles of filters.
    assert launch.grid[0] * launch.grid[1] == min(132, 40 * 2)
    assert launch.shared_bytes == kernel.shared_bytes
    assert launch.flags == 1
    extents, strides = [64, 30, 28, 9], [128, 30 * 128, 28 * 30 * 128, 9 * 28 * 30 * 128]
    # The padding behind is what the last window needs: none after the last row, and two columns are not reached.
    assert kernel.volume() == [*extents, *strides, -2, -1, -1, -4, -2, -1, 3, 2, 1]


@pytest.mark.slow
def test_what_tma_does_not_take(build: Callable[[str], HostKernel]) -> None:
    kernel = build("tma")
    others = [made(**{name: 8200}) for name in ("x", "w", "bias", "residual", "y")]
    others += [made(channels=60), made(filters=60), made(residual=0), made(batch=0), made(batch=1 << 20)]
    others += [made(result=(9, 12, 10)), made(window=(3, 3, 0)), made(stride=(1, 2, 9))]
    others += [made(padding=(-1, 1, 2)), made(dilation=(0, 1, 1)), made(image=(0, 28, 30))]
    others += [made(window=(3, 3, 33), padding=(1, 1, 16))]
    assert [kernel.fill(other) for other in others] == [None] * len(others)
    for address in (4096, 8192, 2048, 1 << 20, EVERY):
        assert kernel.fill(made(), refused=address) is None
