"""Products with weights that are quantized in blocks: from a chain of a model to a problem and its kernels.

Few rows are multiplied by the packed bits, more by weights that a kernel makes floats of a workspace, some columns at a
time: ``templates/cutlass/gemm/block_launch.h`` decides by the rows of a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

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
from packager.backends.cutlass.gemm.few_rows import EIGHT, RowsForm, has_few_rows
from packager.backends.cutlass.gemm.gated import interleave, pack_biases
from packager.backends.problem_calls import bias_parameter
from packager.graph.block_weights import BlockFormat, format_of
from packager.graph.dataflow import Dataflow, shape_of
from packager.graph.identity import IdentityMap
from packager.graph.products.epilogues import Chain
from packager.graph.products.gated import Gated
from packager.graph.products.matmul import bias_fits
from packager.graph.products.row_norms import RowNorm
from packager.ir.primitives import Packing, Parameter

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

# So many rows are multiplied by the packed bits, 16 at a time: on an H100 48 take 0.6 to 1.2 of what they take by
# floats, 64 take 0.8 to 1.7 (benchmarks/results/gpu_decoder.txt).
FEW_ROWS = 48
# Of the floats of a slice, with slices of these columns at least, without which multiprocessors would be idle. Over the
# 49 products there both choices are 2 % slower than the best of 16, 32 and 64 MiB and all columns (at most 24 %).
SLICE_BYTES, LEAST_COLUMNS = 32 << 20, 2048
SLICE_COLUMNS = 256  # columns of a slice are a multiple, as of tiles


@dataclass(frozen=True)
class BlockProblem:
    """``operands`` are data [*rows, depth], packed weights, scales and zero points, with the epilogue of ``chain``.

    ``gated``: half of its columns are gates of the others, which few rows have alone; ``columns`` are those of results.
    """

    operands: tuple[Any, Any, Any, Any]
    chain: Chain
    dtype: str
    out: str
    rows: tuple[Any, ...]
    columns: int
    form: BlockFormat
    gated: Gated | None = None

    @property
    def a(self) -> Any:
        """The data."""
        return self.operands[0]

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


def read_block_gemm(
    flow: Dataflow, chain: Chain, options: CutlassOptions, gated: Gated | None = None
) -> BlockProblem | None:
    """Return the problem of a chain, or of its columns as gates of each other; None if no kernel supports it."""
    call = flow.value(chain.anchor)
    data, *weights = call.args
    result = chain.result if gated is None else gated.result
    dtype, out, form = str(data.ty.dtype), str(result.ty.dtype), format_of(call.attrs)
    extents, wanted = shape_of(data), shape_of(result)
    if not extents or not wanted or out not in OUTPUTS.get(dtype, ()):
        return None
    if not all(map(flow.is_constant, weights)):
        return None
    if chain.residual is not None and str(chain.residual.ty.dtype) != out:
        return None
    if not bias_fits(flow, chain, out):
        return None
    columns = int((shape_of(chain.anchor) or ())[-1]) // (1 if gated is None else 2)
    problem = BlockProblem((data, *weights), chain, dtype, out, extents[:-1], columns, form, gated)
    constant = chain.bias is None or flow.is_constant(chain.bias)
    if gated is not None and not (columns % EIGHT == 0 and has_few_rows(problem.rows) and constant):
        return None
    return problem if _plan(problem, options, problem.known_rows or FEW_ROWS + 1)[0] else None


def can_norm_blocks(problem: BlockProblem, options: CutlassOptions) -> bool:
    """Whether there is a kernel that normalizes the rows, too."""
    return has_few_rows(problem.rows) and bool(_plan(problem, options, problem.known_rows or 0, normed=True)[0])


def add_block_gemm(
    problem: BlockProblem,
    arguments: IdentityMap[int],
    group: GroupDraft,
    options: CutlassOptions,
    most: int,
    norm: RowNorm | None = None,
) -> None:
    """Add the function of a problem to its partition's group; ``arguments`` are the indices of the arguments.

    There are ``most`` rows at most; ``norm`` is what few are normalized by.
    """
    chain, form, gated = problem.chain, problem.form, problem.gated
    data, packed, scales, zeros = problem.operands
    m, n, k = problem.rows, problem.columns, form.depth
    ranking, steps = _plan(problem, options, most, normed=norm is not None)
    draft = group.add("block_gemm" if norm is None else "normed_block_gemm", ranking, steps)
    layout = f"{form.bits}x{form.block}" + (f"_gate{gated.gate}" if gated else "")

    def packing(constant: Any, name: str, pack: Callable[..., Array]) -> Parameter:
        turned = partial(_interleaved, gated.gate, pack) if gated else pack
        return group.packed(Packing(arguments[constant], f"{name}{layout}", turned))

    if norm is not None:
        draft.set_float(epsilon=norm.epsilon)
        if norm.gains is not None:
            shrunk = Packing(arguments[norm.gains], f"{problem.dtype}_gains", partial(_shrunk, norm.doublings))
            draft.pointer("gains", group.packed(shrunk))
        data, draft.member = norm.data, "blocks."
    numbers = partial(pack_numbers, form=form)
    draft.pointer("scales", packing(scales, "scales", numbers))
    if form.has_zeros:
        draft.pointer("zeros", packing(zeros, "zeros", numbers))
    draft.set(block=form.block)
    if steps is not None and steps.role == "multiply":
        width = min(problem.slice, ceil_div(n, COLUMNS) * COLUMNS)
        workspace = group.workspace(width * k * ELEMENTS[problem.dtype].size)
        draft.pointer("floats", Parameter("workspace", workspace, written=True))
        draft.set(slice=problem.slice)
    draft.member += "gemm."
    draft.pointer("a", Parameter("argument", arguments[data]))
    draft.pointer("b", packing(packed, "blocks", partial(pack_weights, form=form)))
    if chain.bias is not None and gated:
        draft.pointer("bias", group.packed(pack_biases(arguments, (chain.bias,), problem.out, gated.gate)))
    elif chain.bias is not None:
        draft.pointer("bias", bias_parameter(chain.bias, problem.out, arguments, group))
    if chain.residual is not None:
        draft.pointer("c", Parameter("argument", arguments[chain.residual]))
        draft.set(ldc=n)
        draft.set_float(beta=1.0)
    draft.pointer("d", Parameter("argument", len(arguments), written=True))
    draft.set(m=m, n=n, k=k, batch=1, lda=k, ldb=k, ldd=n)
    draft.set_float(alpha=chain.scale * 2.0 ** (0 if norm is None else norm.doublings))


def _interleaved(gate: int, pack: Callable[..., Array], columns: Array) -> Array:
    return pack(interleave(gate, columns))


def _shrunk(doublings: int, gains: Array) -> Array:
    """Return gains of at most 1: rows times these have no elements beyond the range of theirs."""
    wide: Array = gains.reshape(-1).astype(np.float32) * np.float32(2.0**-doublings)
    return wide.astype(gains.dtype)


def _plan(
    problem: BlockProblem, options: CutlassOptions, most_rows: int, *, normed: bool = False
) -> tuple[Ranking, Steps | None]:
    """Return the kernels of which one is chosen, and the others; None where that one is all. There may be none."""
    chain, form, known = problem.chain, problem.form, problem.known_rows
    activation, residual = chain.activation or "none", chain.residual is not None
    if problem.gated is not None:
        activation = problem.gated.activation
    rows_form = RowsForm(problem.out, activation, residual, problem.gated is not None, normed)
    weights = f"{form.bits} bits in blocks of {form.block}{' with zeros' * form.has_zeros}"
    size = f"{problem.columns}x{form.depth} {rows_form.epilogue}"
    described = f"gemm {problem.dtype}->{problem.out} {weights} {known or f'{most_rows} or fewer '}x{size}"

    def few(rows: int) -> list[Any]:
        fast, columns = options.use_fast_math, problem.columns * (2 if problem.gated else 1)
        return [*block_kernels(rows, columns, form, rows_form, fast_math=fast, dtype=problem.dtype)]

    if known is not None and known <= ROWS[-1]:
        return rank(described, options.arch, [], few(known)), None
    numbers = (("few", FEW_ROWS), ("d_bytes", ELEMENTS[problem.out].size))
    function = partial(Steps, "pk_multiply_blocks", "pk_block_kernels_t", numbers=numbers)
    by_bits = {rows: few(rows) for rows in (1, *ROWS) if rows > 1 or few(1) != few(ROWS[0])}
    if most_rows <= FEW_ROWS:
        most = next((rows for rows in ROWS if most_rows <= rows), ROWS[-1])
        last = few(min(most_rows, most))
        needed = [rows for rows in by_bits if rows < most]
        if known is not None:  # launches of the most, and one of the rest
            rest = (known - 1) % ROWS[-1] + 1
            needed = [rows for rows in needed if rest <= rows][:1]
        kernels = _kernels([(f"of_{rows}", by_bits[rows]) for rows in needed])
        return rank(described, options.arch, [], last), function(role=f"of_{most}", kernels=kernels)
    made = DequantizeBlocks(problem.dtype, form.bits, max(1, blocks_of_unit(form)), form.has_zeros)
    columns = min(problem.slice, problem.columns)
    shape = GemmShape(most_rows, columns, form.depth, 1)
    gemm_form = GemmForm(problem.dtype, problem.out, False, activation, residual)
    whole = replace(options, split_k_slices=1)
    ranking = rank_gemm(shape, gemm_form, (form.depth, problem.columns), whole)
    if not all(by_bits.values()):
        return replace(ranking, candidates=()), None
    few_rows = [(f"of_{rows}", kernels) for rows, kernels in by_bits.items() if known is None]
    steps = function(role="multiply", kernels=_kernels([*few_rows, ("dequantize", [made])]))
    return replace(ranking, problem=described), steps


def _kernels(members: Sequence[tuple[str, list[Any]]]) -> tuple[tuple[str, KernelConfig], ...]:
    return tuple((role, kernel) for role, kernels in members for kernel in kernels)
