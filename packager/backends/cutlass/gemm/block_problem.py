"""Products with weights that are quantized in blocks: from a chain of a model to a problem and its kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from packager.backends.cutlass.core.drafts import GroupDraft, Ranking, rank
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.block_weights import OUTPUTS, block_kernels, pack_numbers, pack_weights
from packager.backends.problem_calls import bias_parameter
from packager.graph.block_weights import BlockFormat, format_of
from packager.graph.dataflow import Dataflow, shape_of
from packager.graph.identity import IdentityMap
from packager.graph.products.epilogues import Chain
from packager.graph.products.matmul import bias_fits
from packager.ir.primitives import Packing, Parameter


@dataclass(frozen=True)
class BlockProblem:
    """``operands`` are data [rows, depth], packed weights, scales and zero points, with the epilogue of ``chain``."""

    operands: tuple[Any, Any, Any, Any]
    chain: Chain
    out: str
    rows: int
    columns: int
    form: BlockFormat


def read_block_gemm(flow: Dataflow, chain: Chain, options: CutlassOptions) -> BlockProblem | None:
    """Return the problem of a chain, or None if no kernel supports it."""
    call = flow.value(chain.anchor)
    data, *weights = call.args
    out, form = str(chain.result.ty.dtype), format_of(call.attrs)
    extents, wanted = shape_of(data), shape_of(chain.result)
    if not extents or not wanted or str(data.ty.dtype) != "float16" or out not in OUTPUTS:
        return None
    if not all(isinstance(extent, int) for extent in extents) or not all(map(flow.is_constant, weights)):
        return None
    if chain.residual is not None and str(chain.residual.ty.dtype) != out:
        return None
    if not bias_fits(flow, chain, out):
        return None
    rows, columns = math.prod(extents[:-1]), int((shape_of(chain.anchor) or ())[-1])
    problem = BlockProblem((data, *weights), chain, out, rows, columns, form)
    return problem if _rank(problem, options) else None


def add_block_gemm(
    problem: BlockProblem, arguments: IdentityMap[int], group: GroupDraft, options: CutlassOptions
) -> None:
    """Add the function of a problem to its partition's group; ``arguments`` are the indices of the arguments."""
    chain, form = problem.chain, problem.form
    data, packed, scales, zeros = problem.operands
    m, n, k = problem.rows, problem.columns, form.depth
    draft = group.add("block_gemm", _rank(problem, options))
    layout = f"{form.bits}x{form.block}"
    packing = Packing(arguments[packed], f"blocks{layout}", partial(pack_weights, form=form))
    numbers = partial(pack_numbers, form=form)
    draft.pointer("scales", group.packed(Packing(arguments[scales], f"scales{layout}", numbers)))
    if form.has_zeros:
        draft.pointer("zeros", group.packed(Packing(arguments[zeros], f"zeros{layout}", numbers)))
    draft.set(block=form.block)
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


def _rank(problem: BlockProblem, options: CutlassOptions) -> Ranking:
    chain, form = problem.chain, problem.form
    activation, residual = chain.activation or "none", chain.residual is not None
    kernels = block_kernels(problem.rows, form, problem.out, activation, residual, fast_math=options.use_fast_math)
    weights = f"{form.bits} bits in blocks of {form.block}{' with zeros' * form.has_zeros}"
    size = f"{problem.rows}x{problem.columns}x{form.depth} {activation}{' residual' * residual}"
    return rank(f"gemm float16->{problem.out} {weights} {size}", options.arch, [], kernels)
