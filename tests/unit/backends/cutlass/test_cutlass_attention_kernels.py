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
        for dtype, depth, causal, bias, capped in itertools.product(
            ("float16", "bfloat16", "float32"),
            (32, 48, 64, 96, 128, 160, 192, 256),
            (False, True),
            BIASES,
            (False, True),
        )
        for family in FAMILIES
        for kernel in portfolio(family, AttentionForm(dtype, depth, depth, causal, 8, bias, 8, capped))
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
    form = AttentionForm("bfloat16", depth, depth, causal, 8, bias, 8)
    kernels = portfolio(family, form)
    assert kernels
    for kernel in kernels:
        assert kernel.takes(form)
        assert not kernel.takes(replace(form, causal=not causal))
        assert not kernel.takes(replace(form, dtype="float16"))
        assert not kernel.takes(replace(form, depth=136, value_depth=136))
        assert not kernel.takes(replace(form, alignment=2))
        assert not kernel.takes(replace(form, capped=True))


def test_tensors_off_sixteen_bytes_take_the_other_form() -> None:
    form = AttentionForm("float16", 36, 36, False, 4)
    assert portfolio("sm90", form) == ()
    (kernel,) = portfolio("sm80", form)
    assert "align4" in kernel.name


def test_a_bias_of_any_alignment_needs_sm_90a() -> None:
    form = AttentionForm("float16", 64, 64, False, 8, "dense", 1)
    assert portfolio("sm90", form)
    assert not portfolio("sm80", form)


def test_a_dense_bias_includes_one_of_keys() -> None:
    form = AttentionForm("float16", 64, 64, False, 8, "keys", 1)
    dense, *_ = portfolio("sm90", replace(form, bias="dense"))
    assert dense.takes(form)
    keys, *_ = portfolio("sm90", form)
    assert not keys.takes(replace(form, bias="dense"))


@pytest.mark.parametrize("head_dim", [264, 30])
def test_other_head_dims_have_no_kernel(head_dim: int) -> None:
    form = AttentionForm("float16", head_dim, head_dim, False, 8)
    assert not portfolio("sm90", form)
    assert not portfolio("sm80", form)


@pytest.mark.parametrize("head_dim", [136, 160, 192, 256])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", BIASES)
def test_wide_heads_have_a_kernel_on_sm_90a(head_dim: int, causal: bool, bias: Bias) -> None:
    """As those of Gemma, whose decoders are causal."""
    form = AttentionForm("float16", head_dim, head_dim, causal, 8, bias, 8)
    assert len(portfolio("sm90", form)) == 1
    assert not portfolio("sm80", form)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_capped_scores_have_kernels_on_sm_90a(head_dim: int) -> None:
    form = AttentionForm("float16", head_dim, head_dim, True, 8, "none", 8, capped=True)
    found = portfolio("sm90", form)
    assert found
    assert not any(kernel.takes(replace(form, capped=False)) for kernel in found)
    assert not portfolio("sm80", form)


def test_float32_has_kernels_of_one_form() -> None:
    form = AttentionForm("float32", 64, 64, False, 4)
    assert not portfolio("sm90", form)
    (kernel,) = portfolio("sm80", form)
    assert not kernel.takes(AttentionForm("float32", 64, 64, False, 2))
