"""Products and convolutions of 8 bits: from a chain of a model to a problem and its kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from packager.backends.cutlass.conv.problem import conv_shape, set_geometry
from packager.backends.cutlass.core.drafts import FunctionDraft, GroupDraft, Most, Ranking
from packager.backends.cutlass.core.element_types import FLOAT8
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.cost_model import GemmForm, GemmShape
from packager.backends.cutlass.quantized.cost_model import rank_quantized_conv, rank_quantized_gemm
from packager.backends.cutlass.quantized.kernels import OUTPUTS
from packager.bundle.dtypes import FLOATS
from packager.graph.dataflow import Dataflow, same, shape_of
from packager.graph.identity import IdentityMap
from packager.graph.products.conv2d import Convolution, read_geometry
from packager.graph.products.quantized import RANGES, QuantizedChain, pack_narrow_columns
from packager.ir.primitives import Packing, Parameter

if TYPE_CHECKING:
    from packager.bundle.arrays import Array


@dataclass(frozen=True)
class Product:
    """A matrix product; its rows are the product of extents."""

    rows: tuple[Any, ...]
    columns: int
    depth: int


@dataclass(frozen=True)
class QuantizedProblem:
    """A product or convolution of ``data`` with ``weight``, 8 bits each, with the epilogue of ``chain``."""

    data: Any
    weight: Any
    chain: QuantizedChain
    size: Product | Convolution


def read_quantized(flow: Dataflow, chain: QuantizedChain, options: CutlassOptions) -> QuantizedProblem | None:
    """Return the problem of a chain, or None if no kernel supports it."""
    size = _read_size(flow, chain)
    if size is None:
        return None
    data, weight = flow.value(chain.anchor).args
    problem = QuantizedProblem(data, weight, chain, size)
    return problem if _rank(problem, options, 1) else None


def add_quantized(
    problem: QuantizedProblem, arguments: IdentityMap[int], group: GroupDraft, options: CutlassOptions, most: Most
) -> None:
    """Add the function of a problem to its partition's group; ``arguments`` are the indices of the arguments."""
    chain, size = problem.chain, problem.size
    convolves = isinstance(size, Convolution) and not size.is_product
    rows = (size.batch, *size.result) if isinstance(size, Convolution) else size.rows
    ranking = _rank(problem, options, most(rows))
    draft = group.add("quantized_conv" if convolves else "quantized_gemm", ranking)
    draft.member = "conv." if convolves else "gemm."
    x, w, residual, y = ("x", "w", "residual", "y") if convolves else ("a", "b", "c", "d")
    draft.pointer(x, Parameter("argument", arguments[problem.data]))
    weight = arguments[problem.weight]
    if isinstance(size, Convolution):
        draft.pointer(w, Parameter("argument", weight))
    else:
        draft.pointer(w, group.packed(Packing(weight, "nk", pack_narrow_columns)))
    if chain.residual is not None:
        draft.pointer(residual, Parameter("argument", arguments[chain.residual]))
    draft.pointer(y, Parameter("argument", len(arguments), written=True))
    if isinstance(size, Convolution):
        columns = size.filters
        set_geometry(draft, size)
    else:
        columns, depth = size.columns, size.depth
        draft.set(m=size.rows, n=columns, k=depth, batch=1, lda=depth, ldb=depth, ldc=columns, ldd=columns)
    _set_scales(draft, chain, columns, arguments, group)


def _set_scales(
    draft: FunctionDraft, chain: QuantizedChain, columns: int, arguments: IdentityMap[int], group: GroupDraft
) -> None:
    draft.member = "scales."
    for name, row, number, dtype, combine in (
        ("offset", chain.offset_row, chain.offset, "int32", np.add),
        ("scale", chain.scale_row, chain.scale, "float32", np.multiply),
        ("bias", chain.bias_row, chain.bias, "float32", np.add),
    ):
        if row is not None:
            pack = _row(columns, number, dtype, combine)
            packing = Packing(arguments[row], f"{name}{columns}.{number!r}", pack)
            draft.pointer(name, group.packed(packing))
        elif name == "offset":
            draft.set(offset_of_all=int(number))
        else:
            draft.set_float(**{f"{name}_of_all": float(number)})
    if chain.residual is not None:
        draft.set_float(beta=chain.beta)
    if chain.dtype in RANGES:
        least, most = RANGES[chain.dtype]
        low, high = max(chain.low, least), min(chain.high, most)
        if chain.activation == "relu":
            low = max(low, chain.zero)
        draft.set_float(gain=float(chain.gain), zero=float(chain.zero), low=float(low), high=float(high))


def _row(columns: int, number: float, dtype: str, combine: Callable[..., Any]) -> Callable[[Array], Array]:
    """Return the packing of a row: a constant combined with the number beside it."""

    def pack(array: Array) -> Array:
        wide = np.float64 if dtype == "float32" else np.int64
        row = combine(np.broadcast_to(array.reshape(-1), (columns,)).astype(wide), number)
        return np.ascontiguousarray(row.astype(dtype))

    return pack


def _read_size(flow: Dataflow, chain: QuantizedChain) -> Product | Convolution | None:
    """Return the product or convolution of a chain, or None if no kernel supports it."""
    data, weight = flow.value(chain.anchor).args
    dtype, out = str(data.ty.dtype), chain.dtype
    wanted = FLOAT8 if dtype == FLOAT8 else "int8"
    if str(weight.ty.dtype) != wanted or not flow.is_constant(weight) or out not in OUTPUTS[dtype]:
        return None
    if str(chain.anchor.ty.dtype) not in (FLOATS if dtype == FLOAT8 else ("int32",)):
        return None
    if chain.residual is not None and str(chain.residual.ty.dtype) != out:
        return None
    if chain.activation and chain.gain < 0:
        return None
    if flow.call(chain.anchor, "nn.conv2d") is not None:
        conv = read_geometry(flow, chain.anchor)
        return conv if conv is not None and len(shape_of(chain.result) or ()) == 4 and dtype != FLOAT8 else None
    left, right = shape_of(data), shape_of(weight)
    if not left or not right or len(left) < 2 or len(right) < 2 or shape_of(chain.result) is None:
        return None
    known = all(isinstance(extent, int) for extent in right)
    if not known or any(not same(extent, 1) for extent in right[:-2]) or 0 in (*left, *right):
        return None
    return Product(left[:-1], right[-1], right[-2])


def _rank(problem: QuantizedProblem, options: CutlassOptions, rows: int) -> Ranking:
    chain, size = problem.chain, problem.size
    dtype = str(problem.data.ty.dtype)
    # The bounds of 8-bit results include those of ReLU.
    activation = "none" if chain.activation == "relu" and chain.dtype in RANGES else chain.activation or "none"
    form = GemmForm(dtype, chain.dtype, activation=activation, residual=chain.residual is not None)
    if isinstance(size, Product):
        return rank_quantized_gemm(GemmShape(rows, size.columns, size.depth, 1), form, options)
    if size.is_product:
        return rank_quantized_gemm(GemmShape(rows, size.filters, size.channels, 1), form, options)
    return rank_quantized_conv(conv_shape(size, rows), form, options)
