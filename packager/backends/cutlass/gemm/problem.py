"""Matrix products with what follows them: from a chain of a model to a problem and its kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from packager.backends.cutlass.core.drafts import GroupDraft, Ranking
from packager.backends.cutlass.core.element_types import same, shape_of
from packager.backends.cutlass.core.epilogues import Chain
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.cost_model import ITEMSIZE, GemmForm, GemmShape, rank_gemm
from packager.backends.cutlass.gemm.kernels import TYPES
from packager.graph.dataflow import Dataflow
from packager.graph.identity import IdentityMap
from packager.ir.primitives import Packing, Parameter

if TYPE_CHECKING:
    from packager.bundle.arrays import Array


@dataclass(frozen=True)
class Product:
    """``[batch, rows, depth] x [batch, depth, columns]``; ``batch`` 1 with the same matrix for all rows."""

    dtype: str
    out: str
    batch: Any
    rows: tuple[Any, ...]
    columns: Any
    depth: Any
    constant: bool


def read_product(flow: Dataflow, chain: Chain) -> Product | None:
    """Return the product of a chain, or None if it is none that a kernel solves."""
    a, b = flow.value(chain.anchor).args
    left, right, result = shape_of(a), shape_of(b), shape_of(chain.result)
    dtype, out = str(a.ty.dtype), str(chain.result.ty.dtype)
    if not left or not right or not result or len(left) < 2 or len(right) < 2 or str(b.ty.dtype) != dtype:
        return None
    if dtype not in ITEMSIZE or out not in TYPES[dtype].outputs:
        return None
    shared = all(same(extent, 1) for extent in right[:-2])
    if not shared and not same(left[:-2], right[:-2]):
        return None
    others = [operand for operand in (chain.bias, chain.residual) if operand is not None]
    if any(str(other.ty.dtype) != out and not _converted(flow, chain, other) for other in others):
        return None
    if any(isinstance(extent, int) and extent == 0 for extent in (*left, *right)):
        return None
    rows = left[:-1] if shared else left[-2:-1]
    batch: Any = 1 if shared else left[:-2]
    constant = flow.is_constant(b) and all(isinstance(extent, int) for extent in right) and shared
    return Product(dtype, out, batch, rows, right[-1], left[-1], constant)


def _converted(flow: Dataflow, chain: Chain, operand: Any) -> bool:
    """Whether an operand of another type is a bias that is converted at build time."""
    return chain.bias is operand and flow.is_constant(operand)


def takes_product(flow: Dataflow, chain: Chain, options: CutlassOptions) -> bool:
    """Whether there are kernels for a chain."""
    product = read_product(flow, chain)
    return product is not None and bool(_rank(product, chain, options, most_rows=1))


def add_gemm(
    flow: Dataflow, chain: Chain, arguments: IdentityMap[int], group: GroupDraft, options: CutlassOptions, flops: int
) -> None:
    """Add the function of a chain to its partition's group; ``arguments`` numbers the arguments."""
    product = read_product(flow, chain)
    assert product is not None  # the pattern has checked it
    a, b = flow.value(chain.anchor).args
    factors = (*product.rows, product.columns, product.depth)
    known = math.prod(extent for extent in factors if isinstance(extent, int))
    rows = math.prod(extent for extent in product.rows if isinstance(extent, int))
    most = rows if all(isinstance(e, int) for e in factors) else max(1, rows * flops // max(1, 2 * known))
    draft = group.add("gemm", _rank(product, chain, options, most))
    batch = product.batch if isinstance(product.batch, tuple) else (product.batch,)
    m, n, k = product.rows, product.columns, product.depth
    draft.pointer("a", Parameter("argument", arguments[a]))
    if product.constant:
        draft.pointer("b", group.packed(Packing(arguments[b], "nk", _columns)))
    else:
        draft.pointer("b", Parameter("argument", arguments[b]))
    if chain.bias is not None:
        draft.pointer("bias", bias_parameter(chain.bias, product.out, arguments, group))
    if chain.residual is not None:
        draft.pointer("c", Parameter("argument", arguments[chain.residual]))
        draft.set("ldc", n)
        draft.set("batch_c", *m, n)
        draft.set_float("beta", 1.0)
    draft.pointer("d", Parameter("argument", len(arguments), written=True))
    draft.set("m", *m)
    draft.set("n", n)
    draft.set("k", k)
    draft.set("batch", *batch)
    draft.set("lda", k)
    draft.set("ldb", k if product.constant else n)
    draft.set("ldd", n)
    draft.set("batch_a", *m, k)
    draft.set("batch_b", n, k)
    draft.set("batch_d", *m, n)
    draft.set_float("alpha", chain.scale)


def bias_parameter(bias: Any, dtype: str, arguments: IdentityMap[int], group: GroupDraft) -> Parameter:
    """Return a bias in the type of the result: a constant is converted at build time."""
    index = arguments[bias]
    if str(bias.ty.dtype) == dtype:
        return Parameter("argument", index)
    return group.packed(Packing(index, dtype, lambda array: array.reshape(-1).astype(numpy_type(dtype))))


def numpy_type(dtype: str) -> Any:
    """Return numpy's type of this name, those of machine learning included."""
    if dtype == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.dtype(dtype)


def _columns(array: Array) -> Array:
    """Return [k, n] as [n, k]."""
    return array.reshape(array.shape[-2:]).transpose()


def _rank(product: Product, chain: Chain, options: CutlassOptions, most_rows: int) -> Ranking:
    numbers = [product.depth, product.columns]
    known = [extent for extent in numbers if isinstance(extent, int)]
    divisor = math.gcd(*known) if len(known) == len(numbers) else 1
    batch = product.batch if isinstance(product.batch, tuple) else (product.batch,)
    shape = GemmShape(
        most_rows,
        product.columns if isinstance(product.columns, int) else 512,
        product.depth if isinstance(product.depth, int) else 512,
        math.prod(extent if isinstance(extent, int) else 8 for extent in batch),
    )
    form = GemmForm(
        product.dtype, product.out, not product.constant, chain.activation or "none", chain.residual is not None
    )
    return rank_gemm(shape, form, divisor, options)
