"""The configurations of convolution kernels, and what the host code of each form makes of problems."""

from __future__ import annotations

import ctypes
import itertools
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from cutlass_kernel_builder import HostKernel, host_builds

from packager.backends.cutlass.conv.cost_model import ConvShape, rank_conv
from packager.backends.cutlass.conv.groups import STEP, WIDTHS, group_width, pack_groups, part_channels
from packager.backends.cutlass.conv.kernels import ConvConfig, group_portfolio, portfolio, volume_portfolio
from packager.backends.cutlass.conv.problem import conv_shape
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.cost_model import GemmForm
from packager.backends.cutlass.gemm.tilings import Family, Sm80Tile, Sm90Tile
from packager.graph.products.conv2d import Convolution

FAMILIES: tuple[Family, ...] = ("sm90", "sm80")
SIZES = ((3, 64), (4, 64), (8, 64), (16, 32), (64, 64), (96, 40), (256, 1000), (512, 512), (6, 6), (7, 9))
# Channels, filters, groups: ResNeXt, RegNet, ShuffleNet, filters that are more or fewer than channels, odd widths.
GROUPS = [
    *((128, 128, 32), (1024, 1024, 32), (288, 288, 18), (896, 896, 16), (2016, 2016, 9), (240, 240, 3)),
    *((64, 128, 4), (256, 64, 8), (48, 48, 6), (1392, 1392, 6), (104, 104, 13), (512, 512, 2)),
]


def all_kernels() -> set[ConvConfig]:
    kernels = {
        kernel
        for family, dtype, (channels, filters) in itertools.product(
            FAMILIES, ("float16", "bfloat16", "float32", "tfloat32"), SIZES
        )
        for kernel in portfolio(family, dtype, channels, filters, (3, 3))
    }
    kernels |= {ConvConfig(Sm90Tile((64, 64, depth)), "float16", 8, 8, rows=True) for depth in (32, 64)}
    kernels |= set(group_portfolio("float16", 512, 512, 32)) | set(group_portfolio("bfloat16", 512, 512, 2))
    kernels |= {kernel for dtype in ("float16", "bfloat16") for kernel in volume_portfolio(dtype, 64, 64)}
    kernels |= {replace(kernel, residual=True) for kernel in kernels}
    return kernels | {replace(kernel, activation=form) for kernel in kernels for form in ("relu", "silu")}


def test_a_name_says_all_that_the_code_depends_on() -> None:
    kernels = all_kernels()
    texts = {kernel.name: kernel.source(("sm_90a",)).text.replace(kernel.name, "") for kernel in kernels}
    assert len(texts) == len(kernels)
    assert all(re.fullmatch("[a-z][a-z0-9_]*", name) for name in texts)
    assert len(set(texts.values())) == len(texts)


@pytest.mark.parametrize(("channels", "filters"), SIZES)
def test_every_window_has_kernels_for_every_gpu(channels: int, filters: int) -> None:
    for dtype in ("float16", "bfloat16", "float32"):
        kernels = portfolio("sm80", dtype, channels, filters, (3, 3))
        assert kernels
        for kernel in kernels:
            assert kernel.family == "sm80"
            assert channels % kernel.alignment == 0
            assert filters % kernel.out_alignment == 0
            assert not kernel.fixed or kernel.alignment == channels


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "tfloat32"])
def test_tma_takes_sixteen_bytes(dtype: str) -> None:
    kernels = portfolio("sm90", dtype, 128, 64, (3, 3))
    assert kernels
    assert all(kernel.family == "sm90" for kernel in kernels)
    assert any(isinstance(kernel.tile, Sm90Tile) for kernel in kernels) == (dtype != "float32")
    assert portfolio("sm90", dtype, 65, 64, (3, 3)) == ()
    assert portfolio("sm90", dtype, 64, 65, (3, 3)) == ()


def test_few_channels_have_a_form_of_their_own() -> None:
    for channels in (4, 8):
        assert all(kernel.fixed for kernel in portfolio("sm80", "float16", channels, 64, (7, 7)))
    assert not any(kernel.fixed for kernel in portfolio("sm80", "float16", 16, 64, (7, 7)))


def test_windows_that_no_kernel_takes() -> None:
    assert portfolio("sm80", "float16", 64, 64, (33, 1)) == ()
    assert {type(each.tile) for each in portfolio("sm90", "float16", 512, 512, (1, 39))} == {Sm90Tile}
    assert portfolio("sm80", "int32", 64, 64, (3, 3)) == ()


def test_blocks_that_share_a_tile_are_a_cluster() -> None:
    sliced = [kernel for kernel in portfolio("sm90", "float16", 512, 512, (3, 3)) if kernel.tile.slices > 1]
    assert sliced
    for kernel in sliced:
        assert f"__cluster_dims__(1, 1, {kernel.tile.slices})" in kernel.source(("sm_90a",)).text
    assert "__cluster_dims__" not in portfolio("sm80", "float16", 512, 512, (3, 3))[0].source(("sm_80",)).text


def test_what_no_kernel_can_be() -> None:
    with pytest.raises(ValueError, match="TMA takes 16 bytes"):
        ConvConfig(Sm90Tile((128, 64, 64)), "float16", 4, 8)
    with pytest.raises(ValueError, match="1 elements cannot be copied"):
        ConvConfig(Sm80Tile((64, 64, 64), (32, 32), 4), "float16", 1, 8)
    with pytest.raises(ValueError, match="slices need 4 filters"):
        ConvConfig(Sm80Tile((64, 64, 64), (32, 32), 4, 4), "float16", 8, 2)


BUILT = {
    "tma": ConvConfig(Sm90Tile((64, 64, 64)), "float16", 8, 8, activation="relu", residual=True),
    "rows": ConvConfig(Sm90Tile((128, 64, 32)), "bfloat16", 8, 8, rows=True),
    "groups": ConvConfig(Sm90Tile((128, 64, 64)), "float16", 8, 8, groups=True),
    "sliced": ConvConfig(Sm80Tile((64, 64, 64), (32, 32), 8, 8), "float16", 8, 8),
    "fixed": ConvConfig(Sm80Tile((128, 64, 32), (64, 32), 4), "float16", 4, 8, fixed=True),
    "single": ConvConfig(Sm80Tile((64, 64, 32), (32, 32), 2), "float16", 1, 1),
}


class Problem(ctypes.Structure):
    """As pk_conv_t."""

    _fields_ = (
        *[(name, ctypes.c_uint64) for name in ("x", "w", "bias", "residual", "y", "workspace")],
        *[(name, ctypes.c_int64) for name in ("batch", "height", "width", "channels", "filters")],
        *[(name, ctypes.c_int64) for name in ("out_height", "out_width")],
        *[(name, ctypes.c_int64 * 2) for name in ("window", "padding", "stride", "dilation")],
        *[(name, ctypes.c_int64) for name in ("groups", "part")],
    )


def problem(channels: int = 64, filters: int = 128, window: int = 3, stride: int = 1, **other: int) -> Problem:
    """Return a convolution of two 28 x 30 images."""
    padding = window // 2
    made = Problem(x=4096, w=8192, bias=1024, y=1 << 20, batch=2, height=28, width=30)
    made.channels, made.filters = channels, filters
    made.out_height, made.out_width = ((n + 2 * padding - window) // stride + 1 for n in (28, 30))
    made.window[:], made.padding[:], made.stride[:], made.dilation[:] = (
        (number, number) for number in (window, padding, stride, 1)
    )
    for name, value in other.items():
        setattr(made, name, value)
    return made


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], HostKernel]:
    return host_builds(BUILT, tmp_path_factory)


@pytest.mark.sampled(5, every_value=False)
@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT)
def test_host_objects_need_nothing_but_encoders(name: str, build: Callable[[str], HostKernel]) -> None:
    file = build(name).object
    symbols = subprocess.run(["nm", "-u", file], check=True, capture_output=True, text=True).stdout.split()
    runtime = {"pk_tensor_map_encode", "pk_tensor_map_encode_im2col", "memcpy", "memset", "__udivti3"}
    assert set(symbols[1::2]) <= runtime
    sections = subprocess.run(["readelf", "-S", file], check=True, capture_output=True, text=True).stdout
    assert "init_array" not in sections


@pytest.mark.slow
def test_tma_loads_windows(build: Callable[[str], HostKernel]) -> None:
    kernel = build("tma")
    launch = kernel.fill(problem(stride=2, residual=2048))
    assert launch is not None
    # 2 x 14 x 15 rows in tiles of 64, two tiles of filters.
    assert sorted(launch.grid) == [1, 1, 14]
    assert launch.shared_bytes == kernel.shared_bytes
    assert launch.flags == 1
    # The padding after the last row is not needed.
    assert kernel.window() == [64, 30, 28, 128, 30 * 128, 28 * 30 * 128, -1, -1, -2, -2, 2, 2]


@pytest.mark.slow
def test_what_tma_does_not_take(build: Callable[[str], HostKernel]) -> None:
    kernel = build("tma")
    assert kernel.fill(problem(residual=2048)) is not None
    others = [problem(), problem(channels=60, residual=2048), problem(filters=60, residual=2048)]
    others += [problem(**{name: 8200, "residual": 2048}) for name in ("x", "w", "bias", "y")]
    others += [problem(residual=2056), problem(residual=2048, out_height=20), problem(residual=2048, batch=0)]
    others += [problem(residual=2048, batch=1 << 20)]
    assert [kernel.fill(other) for other in others] == [None] * len(others)
    for address in (4096, 8192, 2048, 1 << 20):
        assert kernel.fill(problem(residual=2048), refused=address) is None


@pytest.mark.slow
def test_rows_become_pixels(build: Callable[[str], HostKernel]) -> None:
    kernel = build("rows")
    made = problem(channels=4, window=7, stride=2, bias=0)
    made.width, made.window[1], made.padding[1] = 36, 8, 0
    assert kernel.fill(made) is not None
    assert kernel.window() == [32, 15, 28, 16, 36 * 8, 28 * 36 * 8, 0, -3, 0, -4, 1, 2]
    for name, value in (("width", 35), ("width", 34), ("channels", 3)):
        other = Problem.from_buffer_copy(made)
        setattr(other, name, value)
        assert kernel.fill(other) is None
    for name, value in (("padding", 1), ("stride", 1), ("dilation", 2)):
        other = Problem.from_buffer_copy(made)
        getattr(other, name)[1] = value
        assert kernel.fill(other) is None


@pytest.mark.slow
def test_rows_fit_where_kernels_take_them(build: Callable[[str], HostKernel]) -> None:
    """Windows of two of images that are padded by one column at the end, which some frameworks export, do not."""
    kernel, fitting = build("rows"), 0
    sizes = itertools.product((27, 28, 29, 32), (2, 3, 4), (0, 1), (0, 1, 2), (1, 2), (4, 8, 16))
    for width, window, before, behind, stride, channels in sizes:
        result = (width + before + behind - window) // stride + 1
        made = problem(channels=channels, window=window, stride=stride, width=width, out_width=result)
        made.padding[1] = before
        images = ((28, width), (made.out_height, result))
        pairs = ((window, window), (window // 2, before), (stride, stride), (1, 1))
        conv = Convolution("bfloat16", 2, images[0], channels, 128, images[1], *pairs)
        fits = conv_shape(conv, 1).fits_rows(2) and channels * window % 8 == 0
        assert fits == (kernel.fill(made) is not None), (width, window, before, behind, stride, channels)
        fitting += fits
    assert fitting > 20


@pytest.mark.slow
def test_a_tile_of_groups_reads_a_part_of_the_channels(build: Callable[[str], HostKernel]) -> None:
    kernel = build("groups")
    made = problem(channels=512, filters=512, groups=32, part=64)
    launch = kernel.fill(made)
    assert launch is not None
    # 2 x 28 x 30 rows in tiles of 128, eight tiles of filters.
    assert launch.grid[0] * launch.grid[1] == min(132, 14 * 8)
    # The window is of all channels; weights are those of a part.
    assert kernel.window()[:1] == [512]
    for name, value in (("groups", 0), ("groups", 7), ("groups", -1), ("part", 0), ("part", 60)):
        other = Problem.from_buffer_copy(made)
        setattr(other, name, value)
        assert kernel.fill(other) is None
    assert build("tma").fill(problem(residual=2048, groups=2, part=64)) is None


@pytest.mark.slow
def test_slices_are_a_dimension_of_the_grid(build: Callable[[str], HostKernel]) -> None:
    launch = build("sliced").fill(problem(channels=512))
    assert launch is not None
    assert launch.grid[2] == 8
    assert launch.grid[0] * launch.grid[1] == 27 * 2
    assert list(launch.block) == [128, 1, 1]


@pytest.mark.slow
def test_kernels_of_copies_take_their_alignment(build: Callable[[str], HostKernel]) -> None:
    assert build("fixed").fill(problem(channels=4, window=7, stride=2)) is not None
    assert build("fixed").fill(problem(channels=8, window=7, stride=2)) is None
    assert build("fixed").fill(problem(channels=4, window=7, stride=2, x=4100)) is None
    assert build("single").fill(problem(channels=3, filters=5, x=4098, w=8194, bias=0, y=4102)) is not None
    assert build("single").fill(problem(channels=3, filters=5, window=33)) is None


@pytest.mark.parametrize(("channels", "filters", "groups"), GROUPS)
def test_tiles_by_their_parts_are_the_grouped_product(channels: int, filters: int, groups: int) -> None:
    rng = np.random.default_rng(0)
    inner, outer = channels // groups, filters // groups
    x, weights = rng.standard_normal((3, channels)), rng.standard_normal((filters, 1, 1, inner))
    packed = pack_groups(weights, channels, groups)
    width = group_width(channels, filters, groups)
    part = part_channels(channels, filters, groups, width)
    assert width in WIDTHS
    assert part % STEP == 0
    assert packed.shape == (filters, 1, 1, part)

    padded = np.pad(x, ((0, 0), (0, part)))  # TMA reads zeros beyond the last channel
    got = np.empty((3, filters))
    for tile in range(0, filters, width):
        first = tile // outer * inner  # as GroupedWindows::load in conv_sm90.h
        got[:, tile : tile + width] = padded[:, first : first + part] @ packed[tile : tile + width, 0, 0].T
    rows = [x[:, f // outer * inner :][:, :inner] @ weights[f, 0, 0] for f in range(filters)]
    np.testing.assert_allclose(got, np.stack(rows, axis=1), atol=1e-12)


def test_small_groups_take_narrow_tiles_and_large_ones_wide() -> None:
    assert group_width(512, 512, 32) == 64
    assert group_width(512, 512, 4) == 128
    assert {kernel.tile.shape[1] for kernel in group_portfolio("float16", 512, 512, 4)} == {128}


@pytest.mark.parametrize(
    ("dtype", "channels", "filters", "groups"),
    [("float32", 512, 512, 32), ("float16", 60, 60, 3), ("float16", 96, 96, 96), ("float16", 64, 64, 32)],
)
def test_what_no_kernel_takes(dtype: str, channels: int, filters: int, groups: int) -> None:
    assert group_portfolio(dtype, channels, filters, groups) == ()


def test_records_of_groups_have_keys_of_their_own_and_less_to_multiply() -> None:
    pairs = ((3, 3), (1, 1), (1, 1), (1, 1))
    whole, groups = ConvShape(3136, 512, 512, *pairs), ConvShape(3136, 512, 512, *pairs, groups=32)
    form = GemmForm("float16", "float16")
    rankings = [rank_conv(shape, form, CutlassOptions(arch=("sm_90a",))) for shape in (whole, groups)]
    assert rankings[1].problem.split()[2:] != rankings[0].problem.split()[2:]
    assert all("_groups_" in candidate.name for candidate in rankings[1].candidates)
    assert groups.product.depth * 8 == whole.product.depth
    assert not rank_conv(groups, form, CutlassOptions(arch=("sm_80",)))
    assert not rank_conv(groups, form, CutlassOptions(arch=("sm_80", "sm_90a")))
