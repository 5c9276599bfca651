"""Products with weights that are quantized in blocks: from a chain of a model to a problem and its kernels.

Few rows are multiplied by the packed bits, more by weights that a kernel makes floats of a workspace, some columns at a
time: ``templates/cutlass/gemm/block_launch.h`` decides by the rows of a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from packager.backends.cutlass.core.drafts import GroupDraft, Ranking, Steps, rank
from packager.backends.cutlass.core.element_types import ELEMENTS
from packager.backends.cutlass.core.kernel import KernelConfig
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.block_weights import (
    COLUMNS,
    OUTPUTS,
    ROWS,
    DequantizeBlocks,
    block_kernels,
    blocks_of_unit,
    pack_numbers,
    pack_weights,
)
from packager.backends.cutlass.gemm.cost_model import GemmForm, GemmShape, ceil_div, rank_gemm
from packager.backends.problem_calls import bias_parameter
from packager.graph.block_weights import BlockFormat, format_of
from packager.graph.dataflow import Dataflow, shape_of
from packager.graph.identity import IdentityMap
from packager.graph.products.epilogues import Chain
from packager.graph.products.matmul import bias_fits
from packager.ir.primitives import Packing, Parameter

# So many rows are multiplied by the packed bits, 16 at a time: on an H100 48 take 0.6 to 1.2 of what they take by
# floats, 64 take 0.8 to 1.7 (benchmarks/results/gpu_decoder.txt).
FEW_ROWS = 48
# Of the floats of a slice, with slices of these columns at least, without which multiprocessors would be idle. Over the
# 49 products there both choices are 2 % slower than the best of 16, 32 and 64 MiB and all columns (at most 24 %).
SLICE_BYTES, LEAST_COLUMNS = 32 << 20, 2048
SLICE_COLUMNS = 256  # columns of a slice are a multiple, as of tiles


@dataclass(frozen=True)
class BlockProblem:
    """``operands`` are data [*rows, depth], packed weights, scales and zero points, with the epilogue of ``chain``."""

    operands: tuple[Any, Any, Any, Any]
    chain: Chain
    dtype: str
    out: str
    rows: tuple[Any, ...]
    columns: int
    form: BlockFormat

    @property
    def known_rows(self) -> int | None:
        """The number of rows, None if it is symbolic."""
        return math.prod(self.rows) if all(isinstance(extent, int) for extent in self.rows) else None

    @property
    def slice(self) -> int:
        """Columns that are made floats at a time."""
        return slice_columns(self.columns, self.form.depth, ELEMENTS[self.dtype].size)


def slice_columns(columns: int, depth: int, itemsize: int) -> int:
    """Return how many columns are made floats at a time."""
    slices = max(1, min(ceil_div(columns * depth * itemsize, SLICE_BYTES), columns // LEAST_COLUMNS))
    return ceil_div(ceil_div(columns, slices), SLICE_COLUMNS) * SLICE_COLUMNS


def read_block_gemm(flow: Dataflow, chain: Chain, options: CutlassOptions) -> BlockProblem | None:
    """Return the problem of a chain, or None if no kernel supports it."""
    call = flow.value(chain.anchor)
    data, *weights = call.args
    dtype, out, form = str(data.ty.dtype), str(chain.result.ty.dtype), format_of(call.attrs)
    extents, wanted = shape_of(data), shape_of(chain.result)
    if not extents or not wanted or out not in OUTPUTS.get(dtype, ()):
        return None
    if not all(map(flow.is_constant, weights)):
        return None
    if chain.residual is not None and str(chain.residual.ty.dtype) != out:
        return None
    if not bias_fits(flow, chain, out):
        return None
    columns = int((shape_of(chain.anchor) or ())[-1])
    problem = BlockProblem((data, *weights), chain, dtype, out, extents[:-1], columns, form)
    return problem if _plan(problem, options, problem.known_rows or FEW_ROWS + 1)[0] else None


def add_block_gemm(
    problem: BlockProblem, arguments: IdentityMap[int], group: GroupDraft, options: CutlassOptions, most: int
) -> None:
    """Add the function of a problem to its partition's group; ``arguments`` are the indices of the arguments.

    There are ``most`` rows at most.
    """
    chain, form = problem.chain, problem.form
    data, packed, scales, zeros = problem.operands
    m, n, k = problem.rows, problem.columns, form.depth
    ranking, steps = _plan(problem, options, most)
    draft = group.add("block_gemm", ranking, steps)
    layout = f"{form.bits}x{form.block}"
    packing = Packing(arguments[packed], f"blocks{layout}", partial(pack_weights, form=form))
    numbers = partial(pack_numbers, form=form)
    draft.pointer("scales", group.packed(Packing(arguments[scales], f"scales{layout}", numbers)))
    if form.has_zeros:
        draft.pointer("zeros", group.packed(Packing(arguments[zeros], f"zeros{layout}", numbers)))
    draft.set(block=form.block)
    if steps is not None and steps.role == "multiply":
        width = min(problem.slice, ceil_div(n, COLUMNS) * COLUMNS)
        workspace = group.workspace(width * k * ELEMENTS[problem.dtype].size)
        draft.pointer("floats", Parameter("workspace", workspace, written=True))
        draft.set(slice=problem.slice)
    draft.member = "gemm."
    draft.pointer("a", Parameter("argument", arguments[data]))
    draft.pointer("b", group.packed(packing))
    if chain.bias is not None:
        draft.pointer("bias", bias_parameter(chain.bias, problem.out, arguments, group))
    if chain.residual is not None:
        draft.pointer("c", Parameter("argument", arguments[chain.residual]))
        draft.set(ldc=n)
        draft.set_float(beta=1.0)
    draft.pointer("d", Parameter("argument", len(arguments), written=True))
    draft.set(m=m, n=n, k=k, batch=1, lda=k, ldb=k, ldd=n)
    draft.set_float(alpha=chain.scale)


def _plan(problem: BlockProblem, options: CutlassOptions, most_rows: int) -> tuple[Ranking, Steps | None]:
    """Return the kernels of which one is chosen, and the others; None where that one is all. There may be none."""
    chain, form, known = problem.chain, problem.form, problem.known_rows
    activation, residual = chain.activation or "none", chain.residual is not None
    weights = f"{form.bits} bits in blocks of {form.block}{' with zeros' * form.has_zeros}"
    size = f"{problem.columns}x{form.depth} {activation}{' residual' * residual}"
    described = f"gemm {problem.dtype}->{problem.out} {weights} {known or f'{most_rows} or fewer '}x{size}"

    def few(rows: int) -> list[Any]:
        fast, dtype = options.use_fast_math, problem.dtype
        return [*block_kernels(rows, form, problem.out, activation, residual, fast_math=fast, dtype=dtype)]

    if known is not None and known <= ROWS[-1]:
        return rank(described, options.arch, [], few(known)), None
    numbers = (("few", FEW_ROWS), ("d_bytes", ELEMENTS[problem.out].size))
    function = partial(Steps, "pk_multiply_blocks", "pk_block_kernels_t", numbers=numbers)
    by_bits = [("of_8", few(ROWS[0])), ("of_16", few(ROWS[1]))]
    if most_rows <= FEW_ROWS:
        last = few(min(most_rows, ROWS[1]))
        first = by_bits[:1] if most_rows > ROWS[0] and (known is None or 1 <= known % ROWS[1] <= ROWS[0]) else []
        steps = function(role="of_8" if most_rows <= ROWS[0] else "of_16", kernels=_kernels(first))
        return rank(described, options.arch, [], last), steps
    made = DequantizeBlocks(problem.dtype, form.bits, max(1, blocks_of_unit(form)), form.has_zeros)
    columns = min(problem.slice, problem.columns)
    shape = GemmShape(most_rows, columns, form.depth, 1)
    gemm_form = GemmForm(problem.dtype, problem.out, False, activation, residual)
    whole = replace(options, split_k_slices=1)
    ranking = rank_gemm(shape, gemm_form, math.gcd(problem.columns, form.depth), whole)
    if not all(kernels for _, kernels in by_bits):
        return replace(ranking, candidates=()), None
    kernels = _kernels([*(by_bits if known is None else []), ("dequantize", [made])])
    return replace(ranking, problem=described), function(role="multiply", kernels=kernels)


def _kernels(members: Sequence[tuple[str, list[Any]]]) -> tuple[tuple[str, KernelConfig], ...]:
    return tuple((role, kernel) for role, kernels in members for kernel in kernels)
