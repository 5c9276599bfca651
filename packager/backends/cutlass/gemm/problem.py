"""GEMMs with their epilogues: from a chain of a model to a problem and its kernels."""

from __future__ import annotations

import math

from packager.backends.cutlass.core.drafts import GroupDraft, Ranking
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.cost_model import GemmForm, GemmShape, rank_gemm
from packager.backends.cutlass.gemm.kernels import TYPES
from packager.backends.problem_calls import bias_parameter
from packager.graph.dataflow import Dataflow
from packager.graph.identity import IdentityMap
from packager.graph.products.epilogues import Chain
from packager.graph.products.matmul import MatmulProblem, pack_columns, read_matmul
from packager.ir.primitives import Packing, Parameter


def read_gemm(flow: Dataflow, chain: Chain, options: CutlassOptions) -> MatmulProblem | None:
    """Return the problem of a chain, or None if no kernel supports it.

    Products with one column are sums of rows, which fuse with whatever comes after: a tile would compute many columns.
    """
    problem = read_matmul(flow, chain)
    if problem is None or problem.columns == 1 or problem.out not in TYPES[problem.dtype].outputs:
        return None
    return problem if _rank(problem, options, most_rows=1) else None


def add_gemm(
    problem: MatmulProblem, arguments: IdentityMap[int], group: GroupDraft, options: CutlassOptions, flops: int
) -> None:
    """Add the function of a problem to its partition's group; ``arguments`` are the indices of the arguments."""
    chain = problem.chain
    factors = (*problem.rows, problem.columns, problem.depth)
    known = math.prod(extent for extent in factors if isinstance(extent, int))
    rows = math.prod(extent for extent in problem.rows if isinstance(extent, int))
    most = rows if all(isinstance(e, int) for e in factors) else max(1, rows * flops // max(1, 2 * known))
    draft = group.add("gemm", _rank(problem, options, most))
    m, n, k = problem.rows, problem.columns, problem.depth
    draft.pointer("a", Parameter("argument", arguments[problem.a]))
    if problem.constant:
        draft.pointer("b", group.packed(Packing(arguments[problem.b], "nk", pack_columns)))
    else:
        draft.pointer("b", Parameter("argument", arguments[problem.b]))
    if chain.bias is not None:
        draft.pointer("bias", bias_parameter(chain.bias, problem.out, arguments, group))
    if chain.residual is not None:
        draft.pointer("c", Parameter("argument", arguments[chain.residual]))
        draft.set(ldc=n, batch_c=(*m, n))
        draft.set_float(beta=1.0)
    draft.pointer("d", Parameter("argument", len(arguments), written=True))
    draft.set(m=m, n=n, k=k, batch=problem.batch, lda=k, ldb=k if problem.constant else n, ldd=n)
    draft.set(batch_a=(*m, k), batch_b=(n, k), batch_d=(*m, n))
    draft.set_float(alpha=chain.scale)


def _rank(problem: MatmulProblem, options: CutlassOptions, most_rows: int) -> Ranking:
    numbers = [problem.depth, problem.columns]
    known = [extent for extent in numbers if isinstance(extent, int)]
    divisor = math.gcd(*known) if len(known) == len(numbers) else 1
    shape = GemmShape(
        most_rows,
        problem.columns if isinstance(problem.columns, int) else 512,
        problem.depth if isinstance(problem.depth, int) else 512,
        math.prod(extent if isinstance(extent, int) else 8 for extent in problem.batch),
        all(isinstance(extent, int) for extent in problem.rows),
    )
    activation, residual = problem.chain.activation or "none", problem.chain.residual is not None
    form = GemmForm(problem.dtype, problem.out, not problem.constant, activation, residual, problem.constant)
    return rank_gemm(shape, form, divisor, options)
