"""GEMMs with their epilogues: from a chain of a model to a problem and its kernels."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from packager.backends.cutlass.core.drafts import GroupDraft, Most, Ranking
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.cost_model import GemmForm, GemmShape, rank_few_rows, rank_gemm, rank_rows
from packager.backends.cutlass.gemm.few_rows import has_few_rows
from packager.backends.cutlass.gemm.kernels import TYPES
from packager.backends.cutlass.gemm.normed import add_rows, pack_with_gains
from packager.backends.problem_calls import bias_parameter
from packager.graph.dataflow import Dataflow, known_product
from packager.graph.identity import IdentityMap
from packager.graph.products.epilogues import Chain
from packager.graph.products.matmul import MatmulProblem, pack_columns, read_matmul
from packager.graph.products.row_norms import RowNorm
from packager.ir.primitives import Parameter


def read_gemm(flow: Dataflow, chain: Chain, options: CutlassOptions) -> MatmulProblem | None:
    """Return the problem of a chain, or None if no kernel supports it.

    Products with one column are sums of rows, which fuse with whatever comes after: a tile would compute many columns.
    """
    problem = read_matmul(flow, chain)
    if problem is None or problem.columns == 1 or problem.out not in TYPES[problem.dtype].outputs:
        return None
    return problem if _rank(problem, options, known_product) else None


def add_gemm(
    problem: MatmulProblem,
    arguments: IdentityMap[int],
    group: GroupDraft,
    options: CutlassOptions,
    most: Most,
    norm: RowNorm | None = None,
) -> None:
    """Add the function of a problem to its partition's group; ``arguments`` are the indices of the arguments.

    ``norm`` is what its few rows are normalized by.
    """
    chain = problem.chain
    draft = add_rows(group, arguments, problem.a, _rank(problem, options, most, normed=norm is not None), norm)
    m, n, k = problem.rows, problem.columns, problem.depth
    if problem.constant:
        draft.pointer("b", group.packed(pack_with_gains(arguments, (problem.b,), "nk", pack_columns, norm)))
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
    draft.set(batch_a=problem.batch_a, batch_b=(n, k), batch_d=(*m, n))
    draft.set_float(alpha=chain.scale)


def can_norm_gemm(problem: MatmulProblem, options: CutlassOptions) -> bool:
    """Whether there is a kernel that normalizes the rows, too."""
    return problem.constant and has_few_rows(problem.rows) and bool(_rank(problem, options, known_product, normed=True))


def _rank(problem: MatmulProblem, options: CutlassOptions, most: Most, *, normed: bool = False) -> Ranking:
    depth, columns = (extent if isinstance(extent, int) else 1 for extent in (problem.depth, problem.columns))
    divisors = (depth if problem.constant else math.gcd(depth, columns), columns)
    shape = GemmShape(
        most(problem.rows),
        most((problem.columns,)),
        most((problem.depth,)),
        most(problem.batch),
        all(isinstance(extent, int) for extent in problem.rows),
    )
    activation, residual = problem.chain.activation or "none", problem.chain.residual is not None
    form = GemmForm(problem.dtype, problem.out, not problem.constant, activation, residual, problem.constant)
    if normed:
        return rank_few_rows(shape, replace(form, normed=True), options)
    return rank_rows(
        shape, known_product(problem.rows), partial(rank_gemm, form=form, divisors=divisors, options=options)
    )
