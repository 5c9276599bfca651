"""Gated products with constant matrices: from a match in a model to a problem and its kernels.

Those of more than few rows are for sm_90a alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from packager.backends.cutlass.core.drafts import GroupDraft, Most, Ranking
from packager.backends.cutlass.core.options import SM90A, CutlassOptions
from packager.backends.cutlass.gemm.cost_model import GemmForm, GemmShape, rank_few_rows, rank_gemm, rank_rows
from packager.backends.cutlass.gemm.few_rows import EIGHT, MOST_ROWS, has_few_rows
from packager.backends.cutlass.gemm.normed import add_rows, pack_with_gains
from packager.bundle.dtypes import HALVES, storage_dtype
from packager.graph.dataflow import Dataflow, known_product, operator_of
from packager.graph.identity import IdentityMap
from packager.graph.products.conv2d import read_geometry
from packager.graph.products.epilogues import Chain
from packager.graph.products.gated import Gated
from packager.graph.products.matmul import pack_columns, read_matmul
from packager.graph.products.row_norms import RowNorm
from packager.ir.primitives import Packing, Parameter

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

# Of tiles; fewer rows have kernels of their own, whose time is that of reading the weights.
FEWEST_ROWS = MOST_ROWS + 1


@dataclass(frozen=True)
class GatedProblem:
    """``a`` [rows, depth] times gates and factors of ``columns`` columns each, which ``matrices`` hold.

    ``rows`` are extents to multiply. The matrices, one or two, are [depth, columns], of ``filters`` [columns, depth].
    """

    gated: Gated
    a: Any
    matrices: tuple[Any, ...]
    dtype: str
    rows: tuple[Any, ...]
    columns: int
    depth: int
    filters: bool


def read_gated(flow: Dataflow, gated: Gated, options: CutlassOptions) -> GatedProblem | None:
    """Return the problem of a gated product, or None if no kernel supports it."""
    a = flow.value(gated.anchor).args[0]
    dtype = str(a.ty.dtype)
    read = _read_filters if operator_of(flow.value(gated.anchor)) == "nn.conv2d" else _read_matrix
    extents = read(flow, gated.products[0])
    if extents is None or str(gated.result.ty.dtype) != dtype:
        return None
    rows, columns, depth = extents
    if options.arch != (SM90A,) and not has_few_rows(rows):
        return None
    columns = columns if len(gated.products) == 2 else columns // 2
    matrices = tuple(flow.value(product.anchor).args[1] for product in gated.products)
    biases = [product.bias for product in gated.products if product.bias is not None]
    if not all(map(flow.is_constant, (*matrices, *biases))) or columns % EIGHT:
        return None
    filters = read is _read_filters
    problem = GatedProblem(gated, a, matrices, dtype, rows, columns, depth, filters)
    return problem if _rank(problem, options, _fewest(problem)) else None


def can_norm_gated(problem: GatedProblem, options: CutlassOptions) -> bool:
    """Whether there is a kernel that normalizes the rows, too."""
    return has_few_rows(problem.rows) and bool(_rank(problem, options, _fewest(problem), normed=True))


def _fewest(problem: GatedProblem) -> int:
    return math.prod(problem.rows) if has_few_rows(problem.rows) else FEWEST_ROWS


def add_gated(
    problem: GatedProblem,
    arguments: IdentityMap[int],
    group: GroupDraft,
    options: CutlassOptions,
    most: Most,
    norm: RowNorm | None = None,
) -> None:
    """Add the function of a problem to its partition's group; ``arguments`` are the indices of the arguments.

    ``norm`` is what its few rows are normalized by.
    """
    ranking = _rank(problem, options, most(problem.rows), normed=norm is not None)
    draft = add_rows(group, arguments, problem.a, ranking, norm)
    layout = f"{'nk' if problem.filters else 'kn'}_gate{problem.gated.gate}"

    pack = partial(_pack_filters if problem.filters else _pack_matrices, problem.gated.gate)
    draft.pointer("b", group.packed(pack_with_gains(arguments, problem.matrices, layout, pack, norm)))
    biases = tuple(product.bias for product in problem.gated.products if product.bias is not None)
    if biases:
        draft.pointer("bias", group.packed(pack_biases(arguments, biases, problem.dtype, problem.gated.gate)))
    draft.pointer("d", Parameter("argument", len(arguments), written=True))
    n, k = problem.columns, problem.depth
    draft.set(m=problem.rows, n=n, k=k, batch=1, lda=k, ldb=k, ldd=n)
    draft.set_float(alpha=problem.gated.products[0].scale)


def interleave(gate: int, rows: Array) -> Array:
    """Return rows of gates and of factors, of whose halves ``gate`` is the index of the first, in turns of eight."""
    half = len(rows) // 2
    halves = rows.reshape(2, half // EIGHT, EIGHT, *rows.shape[1:])
    return np.stack([halves[gate], halves[1 - gate]], axis=1).reshape(rows.shape)


def _pack_matrices(gate: int, *matrices: Array) -> Array:
    return interleave(gate, np.concatenate([pack_columns(matrix) for matrix in matrices]))


def _pack_filters(gate: int, *filters: Array) -> Array:
    return interleave(gate, np.concatenate([each.reshape(len(each), -1) for each in filters]))


def pack_biases(arguments: IdentityMap[int], biases: Sequence[Any], dtype: str, gate: int) -> Packing:
    """Return the packing of the vectors of gates and factors, one or two, as the matrices are."""

    def packed(*arrays: Array) -> Array:
        return interleave(gate, np.concatenate([each.reshape(-1) for each in arrays]).astype(storage_dtype(dtype)))

    return Packing(tuple(arguments[bias] for bias in biases), f"{dtype}_gate{gate}", packed)


def _read_matrix(flow: Dataflow, chain: Chain) -> tuple[tuple[Any, ...], int, int] | None:
    """Return the rows, columns and depth of a product with a constant matrix."""
    product = read_matmul(flow, replace(chain, bias=None))
    if product is None or not product.constant or product.dtype not in HALVES:
        return None
    return product.rows, product.columns, product.depth


def _read_filters(flow: Dataflow, chain: Chain) -> tuple[tuple[Any, ...], int, int] | None:
    """Return those of a convolution of single pixels."""
    conv = read_geometry(flow, chain.anchor)
    if conv is None or not conv.is_product or conv.dtype not in HALVES or chain.scale != 1.0:
        return None
    return (conv.batch, *conv.result), conv.filters, conv.channels


def _rank(problem: GatedProblem, options: CutlassOptions, rows: int, *, normed: bool = False) -> Ranking:
    fixed = all(isinstance(extent, int) for extent in problem.rows)
    shape = GemmShape(rows, 2 * problem.columns, problem.depth, 1, fixed)
    form = GemmForm(problem.dtype, problem.dtype, activation=problem.gated.activation, constant=True, gated=True)
    if has_few_rows(problem.rows):
        return rank_few_rows(shape, replace(form, normed=normed), options)
    divisors = problem.depth, problem.columns
    return rank_rows(
        shape, known_product(problem.rows), partial(rank_gemm, form=form, divisors=divisors, options=options)
    )
