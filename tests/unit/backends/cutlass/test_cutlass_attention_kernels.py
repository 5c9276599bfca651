"""The configurations of attention kernels, and that a plain C++ compiler turns each form into a host object."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest

from packager.backends.cutlass.attention.kernels import (
    AttentionForm,
    AttentionKernel,
    Bias,
    Sm90Attention,
    portfolio,
)
from packager.backends.cutlass.gemm.tilings import Family

FAMILIES: tuple[Family, ...] = ("sm90", "sm80")
ARCHS = ("sm_90a",)
BIASES: tuple[Bias, ...] = ("none", "keys", "dense")


def all_kernels() -> list[AttentionKernel]:
    return [
        kernel
        for family, dtype, depth, causal, bias in itertools.product(
            FAMILIES, ("float16", "bfloat16", "float32"), (32, 48, 64, 96, 128, 160, 192, 256), (False, True), BIASES
        )
        for kernel in portfolio(family, dtype, depth, causal, bias)
    ]


def test_a_name_says_all_that_the_code_depends_on() -> None:
    kernels = set(all_kernels())
    tma = [kernel for kernel in kernels if isinstance(kernel, Sm90Attention) and kernel.schedule == "tma"]
    kernels |= {replace(kernel, blocks=4) for kernel in tma}
    texts = {kernel.name: kernel.source(ARCHS).text.replace(kernel.name, "") for kernel in kernels}
    assert len(texts) == len(kernels)
    assert all(re.fullmatch("[a-z][a-z0-9_]*", name) for name in texts)
    assert len(set(texts.values())) == len(texts)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("depth", [8, 32, 40, 64, 80, 96, 128])
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("causal", [False, True])
def test_the_portfolio_takes_what_it_is_asked_for(family: Family, depth: int, bias: Bias, causal: bool) -> None:
    kernels = portfolio(family, "bfloat16", depth, causal, bias)
    assert kernels
    form = AttentionForm("bfloat16", depth, depth, causal, 8, bias, 8)
    for kernel in kernels:
        assert kernel.takes(form)
        assert not kernel.takes(replace(form, causal=not causal))
        assert not kernel.takes(replace(form, dtype="float16"))
        assert not kernel.takes(replace(form, depth=136, value_depth=136))
        assert not kernel.takes(replace(form, alignment=2))


def test_tensors_off_sixteen_bytes_take_the_other_form() -> None:
    form = AttentionForm("float16", 36, 36, False, 4)
    assert portfolio("sm90", "float16", 36, False) == ()
    (kernel,) = portfolio("sm80", "float16", 36, False)
    assert kernel.takes(form)
    assert "align4" in kernel.name


def test_a_bias_of_any_alignment_needs_sm_90a() -> None:
    form = AttentionForm("float16", 64, 64, False, 8, "dense", 1)
    assert all(kernel.takes(form) for kernel in portfolio("sm90", "float16", 64, False, "dense"))
    assert not any(kernel.takes(form) for kernel in portfolio("sm80", "float16", 64, False, "dense"))


def test_a_dense_bias_includes_one_of_keys() -> None:
    form = AttentionForm("float16", 64, 64, False, 8, "keys", 1)
    dense, *_ = portfolio("sm90", "float16", 64, False, "dense")
    assert dense.takes(form)
    keys, *_ = portfolio("sm90", "float16", 64, False, "keys")
    assert not keys.takes(replace(form, bias="dense"))


@pytest.mark.parametrize("head_dim", [264, 30])
def test_other_head_dims_have_no_kernel(head_dim: int) -> None:
    assert not portfolio("sm90", "float16", head_dim, False)
    assert not portfolio("sm80", "float16", head_dim, False)


@pytest.mark.parametrize("head_dim", [136, 160, 192, 256])
def test_wide_heads_without_masks_have_a_kernel_on_sm_90a(head_dim: int) -> None:
    (kernel,) = portfolio("sm90", "float16", head_dim, False)
    assert kernel.takes(AttentionForm("float16", head_dim, head_dim, False, 8, "none"))
    assert not portfolio("sm90", "float16", head_dim, True)
    assert not any(portfolio("sm90", "float16", head_dim, False, bias) for bias in BIASES if bias != "none")
    assert not portfolio("sm80", "float16", head_dim, False)


def test_float32_has_kernels_of_one_form() -> None:
    assert not portfolio("sm90", "float32", 64, False)
    (kernel,) = portfolio("sm80", "float32", 64, False)
    assert kernel.takes(AttentionForm("float32", 64, 64, False, 4))
    assert not kernel.takes(AttentionForm("float32", 64, 64, False, 2))
