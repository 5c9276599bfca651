"""Which channels a tile of filters of a grouped convolution reads, and its weights, beside the definition."""

from __future__ import annotations

import numpy as np
import pytest

from packager.backends.cutlass.conv.cost_model import ConvShape, rank_conv
from packager.backends.cutlass.conv.groups import STEP, WIDTHS, group_width, pack_groups, part_channels
from packager.backends.cutlass.conv.kernels import group_portfolio
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.cost_model import GemmForm

# Channels, filters, groups: ResNeXt, RegNet, ShuffleNet, filters that are more or fewer than channels, odd widths.
SIZES = [
    *((128, 128, 32), (1024, 1024, 32), (288, 288, 18), (896, 896, 16), (2016, 2016, 9), (240, 240, 3)),
    *((64, 128, 4), (256, 64, 8), (48, 48, 6), (1392, 1392, 6), (104, 104, 13), (512, 512, 2)),
]


@pytest.mark.parametrize(("channels", "filters", "groups"), SIZES)
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
