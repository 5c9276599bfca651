"""GEMMs with their epilogues: from a chain of a model to a problem and its kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from packager.backends.cutlass.core.drafts import GroupDraft, Most, Ranking
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
    return problem if _rank(problem, options, _known) else None


def add_gemm(
    problem: MatmulProblem, arguments: IdentityMap[int], group: GroupDraft, options: CutlassOptions, most: Most
) -> None:
    """Add the function of a problem to its partition's group; ``arguments`` are the indices of the arguments."""
    chain = problem.chain
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
    draft.set(batch_a=problem.batch_a, batch_b=(n, k), batch_d=(*m, n))
    draft.set_float(alpha=chain.scale)


def _known(extents: Sequence[Any]) -> int:
    return math.prod(extent for extent in extents if isinstance(extent, int))


def _rank(problem: MatmulProblem, options: CutlassOptions, most: Most) -> Ranking:
    numbers = [problem.depth, problem.columns]
    known = [extent for extent in numbers if isinstance(extent, int)]
    divisor = math.gcd(*known) if len(known) == len(numbers) else 1
    shape = GemmShape(
        most(problem.rows),
        most((problem.columns,)),
        most((problem.depth,)),
        most(problem.batch),
        all(isinstance(extent, int) for extent in problem.rows),
    )
    activation, residual = problem.chain.activation or "none", problem.chain.residual is not None
    form = GemmForm(problem.dtype, problem.out, not problem.constant, activation, residual, problem.constant)
    return rank_gemm(shape, form, divisor, options)
