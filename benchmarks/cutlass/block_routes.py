"""The ways to launch products with weights in blocks, and their kernels.

More than 16 rows are multiplied by the bits, 16 rows at a time, or by floats of some columns at a time. A route is
written ``few:KERNEL``, ``COLUMNS:DEQUANTIZE:GEMM`` or, of weights that are floats already, ``floats:GEMM``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.cutlass.block_products import BlockProduct
from benchmarks.cutlass.trial import DTYPE
from packager.backends.cutlass.core.kernel import KernelConfig
from packager.backends.cutlass.core.options import SM90A, CutlassOptions
from packager.backends.cutlass.gemm.block_problem import FEW_ROWS, slice_columns
from packager.backends.cutlass.gemm.block_weights import DequantizeBlocks, block_kernels, blocks_of_unit
from packager.backends.cutlass.gemm.cost_model import GemmForm, GemmShape, ceil_div, rank_gemm
from packager.backends.cutlass.gemm.few_rows import RowsForm
from packager.graph.block_weights import BlockFormat

OPTIONS = CutlassOptions(arch=(SM90A,))
MOST_FEW = 96
SLICES = (16 << 20, 32 << 20, 64 << 20, 1 << 40)
"""Bytes of the floats of a slice of columns."""
COLUMNS = 256  # of a slice, a multiple


def slices_of(problem: BlockProduct) -> list[int]:
    """Return the columns of each of the slices, the smallest first; packager's are among them."""
    counts = [ceil_div(problem.n * problem.k * 2, nbytes) for nbytes in SLICES]
    found = {ceil_div(ceil_div(problem.n, count), COLUMNS) * COLUMNS for count in counts}
    return sorted(found | {slice_columns(problem.n, problem.k, 2)})


def routes(problem: BlockProduct, few: str, dequantize: str, gemms: Sequence[str]) -> Iterator[str]:
    """Yield the routes of a problem; ``gemms`` are the kernels of its slices, in their order."""
    yield from [f"few:{few}"] if problem.m <= MOST_FEW else []
    yield from (f"{columns}:{dequantize}:{gemm}" for columns, gemm in zip(slices_of(problem), gemms, strict=True))
    yield f"floats:{gemms[-1]}"


def kernels_of(problem: BlockProduct) -> tuple[KernelConfig, KernelConfig, list[KernelConfig]]:
    """Return the kernel of few rows, what makes floats of the weights, and what multiplies each size of slices."""
    form = BlockFormat(problem.bits, problem.block, problem.k, problem.zeros)
    (few,) = block_kernels(min(problem.m, 16), problem.n, form, RowsForm(DTYPE), fast_math=False)
    floats = DequantizeBlocks(DTYPE, form.bits, blocks_of_unit(form), form.has_zeros)
    shapes = [GemmShape(problem.m, min(columns, problem.n), problem.k, 1) for columns in slices_of(problem)]
    ranked = [rank_gemm(each, GemmForm(DTYPE, DTYPE), (problem.k, problem.n), OPTIONS) for each in shapes]
    return few, floats, [ranking.candidates[0].choices[0].kernel for ranking in ranked]


def block_plan(problem: BlockProduct) -> list[str]:
    """Return how a product with weights in blocks is launched, what packager does first."""
    few, floats, gemms = kernels_of(problem)
    if problem.m <= 16:
        return [few.name]
    chosen = "few" if problem.m <= FEW_ROWS else str(slice_columns(problem.n, problem.k, 2))
    found = routes(problem, few.name, floats.name, [each.name for each in gemms])
    return sorted(found, key=lambda route: route.partition(":")[0] != chosen)
