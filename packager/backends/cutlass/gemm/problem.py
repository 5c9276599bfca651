"""GEMMs with their epilogues: from a chain of a model to a problem and its kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packager.backends.cutlass.core.drafts import GroupDraft, Ranking
from packager.backends.cutlass.core.element_types import FLOATS
from packager.backends.cutlass.core.epilogues import Chain
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.cost_model import GemmForm, GemmShape, rank_gemm
from packager.backends.cutlass.gemm.kernels import TYPES
from packager.bundle.dtypes import storage_dtype
from packager.graph.dataflow import Dataflow, same, shape_of
from packager.graph.identity import IdentityMap
from packager.ir.primitives import Packing, Parameter

if TYPE_CHECKING:
    from packager.bundle.arrays import Array


@dataclass(frozen=True)
class GemmProblem:
    """``a`` [batch, rows, depth] times ``b`` [batch, depth, columns], with the epilogue of ``chain``.

    ``batch`` and ``rows`` are extents to multiply; ``batch`` is empty if all rows share one matrix. ``constant`` is
    whether b is a constant with known extents.
    """

    a: Any
    b: Any
    chain: Chain
    dtype: str
    out: str
    batch: tuple[Any, ...]
    rows: tuple[Any, ...]
    columns: Any
    depth: Any
    constant: bool


def read_gemm(flow: Dataflow, chain: Chain, options: CutlassOptions) -> GemmProblem | None:
    """Return the problem of a chain, or None if no kernel supports it."""
    a, b = flow.value(chain.anchor).args
    left, right, result = shape_of(a), shape_of(b), shape_of(chain.result)
    dtype, out = str(a.ty.dtype), str(chain.result.ty.dtype)
    if not left or not right or not result or len(left) < 2 or len(right) < 2 or str(b.ty.dtype) != dtype:
        return None
    if dtype not in FLOATS or out not in TYPES[dtype].outputs:
        return None
    shared = all(same(extent, 1) for extent in right[:-2])
    if not shared and not same(left[:-2], right[:-2]):
        return None
    if chain.residual is not None and str(chain.residual.ty.dtype) != out:
        return None
    if not bias_fits(flow, chain, out):
        return None
    if any(isinstance(extent, int) and extent == 0 for extent in (*left, *right)):
        return None
    rows = left[:-1] if shared else left[-2:-1]
    constant = flow.is_constant(b) and all(isinstance(extent, int) for extent in right) and shared
    batch = () if shared else left[:-2]
    problem = GemmProblem(a, b, chain, dtype, out, batch, rows, right[-1], left[-1], constant)
    return problem if _rank(problem, options, most_rows=1) else None


def add_gemm(
    problem: GemmProblem, arguments: IdentityMap[int], group: GroupDraft, options: CutlassOptions, flops: int
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
        draft.pointer("b", group.packed(Packing(arguments[problem.b], "nk", _columns)))
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


def bias_fits(flow: Dataflow, chain: Chain, dtype: str) -> bool:
    """Return whether a bias has the type of the result, or is a constant, which is converted at build time."""
    return chain.bias is None or str(chain.bias.ty.dtype) == dtype or flow.is_constant(chain.bias)


def bias_parameter(bias: Any, dtype: str, arguments: IdentityMap[int], group: GroupDraft) -> Parameter:
    """Return the parameter of a bias in the type of the result; a constant is converted at build time."""
    index = arguments[bias]
    if str(bias.ty.dtype) == dtype:
        return Parameter("argument", index)
    return group.packed(Packing(index, dtype, lambda array: array.reshape(-1).astype(storage_dtype(dtype))))


def _columns(array: Array) -> Array:
    """Return [k, n] as [n, k]."""
    return array.reshape(array.shape[-2:]).transpose()


def _rank(problem: GemmProblem, options: CutlassOptions, most_rows: int) -> Ranking:
    numbers = [problem.depth, problem.columns]
    known = [extent for extent in numbers if isinstance(extent, int)]
    divisor = math.gcd(*known) if len(known) == len(numbers) else 1
    shape = GemmShape(
        most_rows,
        problem.columns if isinstance(problem.columns, int) else 512,
        problem.depth if isinstance(problem.depth, int) else 512,
        math.prod(extent if isinstance(extent, int) else 8 for extent in problem.batch),
    )
    activation, residual = problem.chain.activation or "none", problem.chain.residual is not None
    form = GemmForm(problem.dtype, problem.out, not problem.constant, activation, residual)
    return rank_gemm(shape, form, divisor, options)
