"""Which kernels a product with weights in blocks has, by the rows that it may have, and what it needs of the arena."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import relax, tirx

from packager.backends.cutlass.core.drafts import FunctionDraft, GroupDraft
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.block_problem import FEW_ROWS, SLICE_BYTES, BlockProblem, add_block_gemm
from packager.backends.cutlass.gemm.block_weights import pack_numbers, pack_weights
from packager.backends.cutlass.gemm.gated import interleave
from packager.backends.cutlass.gemm.kernels import GemmConfig
from packager.graph.block_weights import BlockFormat
from packager.graph.identity import IdentityMap
from packager.graph.products.epilogues import Chain
from packager.graph.products.gated import Gated
from packager.graph.products.row_norms import RowNorm
from packager.ir.primitives import Parameter

HOPPER = CutlassOptions(arch=("sm_90a",))
FORM = BlockFormat(4, 32, 256, has_zeros=True)
ROWS = tirx.Var("rows", "int64")


def drafted(
    rows: Any, most: int, columns: int = 384, form: BlockFormat = FORM, options: CutlassOptions = HOPPER, **others: str
) -> tuple[FunctionDraft, GroupDraft]:
    """Return the function of a product, and its group."""
    kinds = {"dtype": "float16", "out": "float16", **others}
    operands = [relax.Var(name, relax.TensorType((1,), "float16")) for name in ("data", "packed", "scales", "zeros")]
    result = relax.Var("y", relax.TensorType((rows, columns), kinds["out"]))
    chain = Chain(result, (result,), activation="silu")
    data, packed, scales, zeros = operands
    problem = BlockProblem((data, packed, scales, zeros), chain, rows=(rows,), columns=columns, form=form, **kinds)
    group = GroupDraft(name="part")
    add_block_gemm(problem, IdentityMap((each, index) for index, each in enumerate(operands)), group, options, most)
    return group.functions[0], group


def roles(draft: FunctionDraft) -> dict[str, str]:
    """Return the kernels by their roles; of a function that launches one alone its role is empty."""
    first = draft.ranking.candidates[0].choices[0].kernel.name
    if draft.steps is None:
        return {"": first}
    return {**{role: kernel.name for role, kernel in draft.steps.kernels}, draft.steps.role: first}


BY_BITS = "pk_gemm_blocks_f16_f16_{}_w4zb2_silu"
OF_1, OF_8, OF_16 = ({f"of_{rows}": BY_BITS.format(rows)} for rows in (1, 8, 16))


@pytest.mark.parametrize(
    ("rows", "most", "kernels"),
    [
        (1, 1, {"": BY_BITS.format(1)}),
        (3, 3, {"": BY_BITS.format(8)}),
        (16, 16, {"": BY_BITS.format(16)}),
        (17, 17, OF_1 | OF_16),
        (20, 20, OF_8 | OF_16),
        (32, 32, OF_16),
        (30, 30, OF_16),
        (ROWS, 7, OF_1 | OF_8),
        (ROWS, FEW_ROWS, OF_1 | OF_8 | OF_16),
    ],
)
def test_few_rows_are_multiplied_by_packed_bits_alone(rows: Any, most: int, kernels: dict[str, str]) -> None:
    draft, group = drafted(rows, most)
    assert roles(draft) == kernels
    assert group.workspaces == []


@pytest.mark.parametrize("rows", [100, ROWS])
def test_floats_that_a_kernel_makes_are_not_read_before_it_is_complete(rows: Any) -> None:
    draft, _ = drafted(rows, 100, options=CutlassOptions(arch=("sm_90a",), packed_weights=2))
    kernels = [choice.kernel for candidate in draft.ranking.candidates for choice in candidate.choices]
    assert kernels
    assert all(isinstance(kernel, GemmConfig) and not kernel.early for kernel in kernels)


@pytest.mark.parametrize(("rows", "by_bits"), [(100, {}), (ROWS, OF_1 | OF_8 | OF_16)])
def test_more_rows_have_floats_in_a_workspace(rows: Any, by_bits: dict[str, str]) -> None:
    draft, group = drafted(rows, 100)
    found = roles(draft)
    assert found.pop("multiply").startswith("pk_gemm_sm90_f16_f16_tn_")
    assert found == {**by_bits, "dequantize": "pk_dequantize_f16_w4zb2"}
    assert group.workspaces == [384 * 256 * 2]


def test_the_workspace_has_a_bound() -> None:
    _, group = drafted(ROWS, 2048, columns=128256, form=BlockFormat(4, 32, 2048, has_zeros=False))
    (nbytes,) = group.workspaces
    assert SLICE_BYTES // 2 <= nbytes <= SLICE_BYTES
    # A long sum has columns enough for all multiprocessors.
    _, group = drafted(ROWS, 2048, columns=4096, form=BlockFormat(4, 32, 11008, has_zeros=False))
    assert group.workspaces == [2048 * 11008 * 2]
    # Of one slice, no more than there is: 16 columns are a tile of the weights.
    _, group = drafted(ROWS, 2048, columns=40)
    assert group.workspaces == [48 * 256 * 2]


def test_all_gpus_of_a_bundle_have_the_kernels() -> None:
    draft, _ = drafted(ROWS, 2048, options=CutlassOptions(arch=("sm_80", "sm_90a")))
    shipped = draft.ranking.candidates[:1]
    assert [choice.arch for choice in draft.choices(shipped)] == [90, 0, 0, 0, 0, 0]


def test_bfloat16_has_kernels_of_its_own() -> None:
    draft, _ = drafted(ROWS, 100, dtype="bfloat16", out="bfloat16", form=BlockFormat(8, 16, 256, has_zeros=False))
    found = roles(draft)
    assert found.pop("multiply").startswith("pk_gemm_sm90_bf16_bf16_tn_")
    assert found == {
        "of_8": "pk_gemm_blocks_bf16_bf16_8_w8b2_silu",
        "of_16": "pk_gemm_blocks_bf16_bf16_16_w8b2_silu",
        "dequantize": "pk_dequantize_bf16_w8b2",
    }


def test_gates_and_a_norm_are_stated_for_the_kernel() -> None:
    """Columns of gates and factors take turns of eight; gains are at most 1, and results are so many times as large."""
    names = ("rows", "normed", "packed", "scales", "zeros", "gains")
    rows, normed, packed, scales, zeros, gains = (relax.Var(n, relax.TensorType((2, 256), "float16")) for n in names)
    result = relax.Var("y", relax.TensorType((2, 384), "float16"))
    chain = Chain(result, (result,), scale=0.5)
    gated = Gated(result, (result,), (chain,), "silu", gate=1)
    operands = (normed, packed, scales, zeros)
    problem = BlockProblem(operands, chain, "float16", "float16", (2,), 384, FORM, gated)
    group = GroupDraft(name="part")
    arguments = IdentityMap((each, index) for index, each in enumerate((rows, packed, scales, zeros, gains)))
    add_block_gemm(problem, arguments, group, HOPPER, 2, RowNorm(rows, gains, 3, 1e-5, (normed,)))
    (draft,) = group.functions
    assert roles(draft) == {"": "pk_gemm_blocks_f16_f16_8_w4zb2_silu_gated_normed"}
    fields = dict(draft.fields)
    assert fields["epsilon"] == "1e-05f"
    assert float(fields["blocks.gemm.alpha"].removesuffix("f")) == 0.5 * 2**3
    assert (fields["blocks.gemm.n"], fields["blocks.gemm.k"], fields["blocks.block"]) == ("384", "256", "32")
    assert fields["blocks.gemm.a"] == f"p{draft.parameters.index(Parameter('argument', 0))}"

    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(0, 256, (768, 8, 16)).astype(np.uint8),
        rng.random((768, 8)).astype(np.float16),
        rng.integers(0, 16, (768, 8)).astype(np.uint8),
        rng.uniform(-8, 8, (256,)).astype(np.float16),
    ]
    packs = {each.argument: each.pack for each in group.packings}
    turned = interleave(1, np.arange(768))
    np.testing.assert_array_equal(packs[1](arrays[0]), pack_weights(arrays[0][turned], FORM))
    np.testing.assert_array_equal(packs[2](arrays[1]), pack_numbers(arrays[1][turned], FORM))
    np.testing.assert_array_equal(packs[3](arrays[2]), pack_numbers(arrays[2][turned], FORM))
    np.testing.assert_array_equal(packs[4](arrays[3]), arrays[3] / 8)
