"""The configurations of convolution kernels, and that a plain C++ compiler turns each form into a host object."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest

from packager.backends.cutlass.conv_kernels import ConvConfig, Family, Sm80ConvTile, Sm90ConvTile, portfolio

FAMILIES: tuple[Family, ...] = ("sm90", "sm80")
SIZES = ((3, 64), (4, 64), (8, 64), (16, 32), (64, 64), (96, 40), (256, 1000), (512, 512), (6, 6), (7, 9))


def all_kernels() -> set[ConvConfig]:
    kernels = {
        kernel
        for family, dtype, (channels, filters) in itertools.product(
            FAMILIES, ("float16", "bfloat16", "float32", "tfloat32"), SIZES
        )
        for kernel in portfolio(family, dtype, channels, filters, (3, 3))
    }
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
        kernels = portfolio("sm80", dtype, channels, filters, (3, 3), activation="relu", residual=True)
        assert kernels
        for kernel in kernels:
            assert kernel.tile.family == "sm80"
            assert channels % kernel.alignment == 0
            assert filters % kernel.out_alignment == 0
            assert not kernel.fixed or kernel.alignment == channels
            assert kernel.residual
            assert kernel.activation == "relu"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "tfloat32"])
def test_tma_takes_sixteen_bytes(dtype: str) -> None:
    kernels = portfolio("sm90", dtype, 64, 64, (3, 3))
    assert kernels
    assert all(kernel.tile.family == "sm90" for kernel in kernels)
    assert any(isinstance(kernel.tile, Sm90ConvTile) for kernel in kernels) == (dtype != "float32")
    assert portfolio("sm90", dtype, 65, 64, (3, 3)) == ()
    assert portfolio("sm90", dtype, 64, 65, (3, 3)) == ()


def test_few_channels_have_a_form_of_their_own() -> None:
    for channels in (4, 8):
        assert all(kernel.fixed for kernel in portfolio("sm80", "float16", channels, 64, (7, 7)))
    assert not any(kernel.fixed for kernel in portfolio("sm80", "float16", 16, 64, (7, 7)))


def test_windows_that_no_kernel_takes() -> None:
    assert portfolio("sm80", "float16", 64, 64, (33, 1)) == ()
    assert portfolio("sm80", "int32", 64, 64, (3, 3)) == ()


def test_blocks_that_share_a_tile_are_a_cluster() -> None:
    sliced = [kernel for kernel in portfolio("sm90", "float16", 512, 512, (3, 3)) if kernel.tile.slices > 1]
    assert sliced
    for kernel in sliced:
        assert f"__cluster_dims__(1, 1, {kernel.tile.slices})" in kernel.source(("sm_90a",)).text
    assert "__cluster_dims__" not in portfolio("sm80", "float16", 512, 512, (3, 3))[0].source(("sm_80",)).text


def test_what_no_kernel_can_be() -> None:
    with pytest.raises(AssertionError):
        ConvConfig(Sm90ConvTile((128, 64, 64)), "float16", 4, 8)
    with pytest.raises(AssertionError):
        ConvConfig(Sm80ConvTile((64, 64, 64), (32, 32), 4), "float16", 1, 8)
    with pytest.raises(AssertionError):
        ConvConfig(Sm80ConvTile((64, 64, 64), (32, 32), 4, 4), "float16", 8, 2)
