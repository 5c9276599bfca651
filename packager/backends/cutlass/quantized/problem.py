"""Products and convolutions of 8-bit operands: from a chain of a model to a problem and its kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from packager.backends.cutlass.conv.cost_model import ConvShape
from packager.backends.cutlass.conv.problem import Convolution, most_places, read_geometry, set_geometry
from packager.backends.cutlass.core.drafts import FunctionDraft, GroupDraft, Ranking
from packager.backends.cutlass.core.element_types import same, shape_of
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.cost_model import GemmShape
from packager.backends.cutlass.quantized.cost_model import QuantizedForm, rank_quantized_conv, rank_quantized_gemm
from packager.backends.cutlass.quantized.epilogues import FLOAT8, RANGES, QuantizedChain
from packager.backends.cutlass.quantized.kernels import QUANTIZED
from packager.graph.dataflow import Dataflow
from packager.graph.identity import IdentityMap
from packager.ir.primitives import Packing, Parameter

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

Problem = tuple[tuple[Any, ...], int, int] | Convolution
"""The extents whose product is a matrix product's rows, its columns and its depth; or a convolution."""


def takes_quantized(flow: Dataflow, chain: QuantizedChain, options: CutlassOptions) -> bool:
    """Whether there are kernels for a chain."""
    problem = _read(flow, chain)
    return problem is not None and bool(_rank(flow, problem, chain, options, 1))


def add_quantized(
    flow: Dataflow,
    chain: QuantizedChain,
    arguments: IdentityMap[int],
    group: GroupDraft,
    options: CutlassOptions,
    flops: int,
) -> None:
    """Add the function of a chain to its partition's group; ``arguments`` numbers the arguments."""
    problem = _read(flow, chain)
    assert problem is not None  # the pattern has checked it
    rows = _most_rows(problem, flops)
    convolves = isinstance(problem, Convolution) and not problem.is_product
    draft = group.add("quantized_conv" if convolves else "quantized_gemm", _rank(flow, problem, chain, options, rows))
    data, weight = flow.value(chain.anchor).args
    draft.member = "conv." if convolves else "gemm."
    x, w, residual, y = ("x", "w", "residual", "y") if convolves else ("a", "b", "c", "d")
    draft.pointer(x, Parameter("argument", arguments[data]))
    if isinstance(problem, Convolution):
        draft.pointer(w, Parameter("argument", arguments[weight]))
    else:
        draft.pointer(w, group.packed(Packing(arguments[weight], "nk", _columns)))
    if chain.residual is not None:
        draft.pointer(residual, Parameter("argument", arguments[chain.residual]))
    draft.pointer(y, Parameter("argument", len(arguments), written=True))
    if isinstance(problem, Convolution):
        columns = problem.filters
        set_geometry(draft, problem)
    else:
        factors, columns, depth = problem
        draft.set("m", *factors)
        draft.set("n", columns)
        draft.set("k", depth)
        draft.set("batch", 1)
        for name, extent in (("lda", depth), ("ldb", depth), ("ldc", columns), ("ldd", columns)):
            draft.set(name, extent)
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
            draft.set("offset_of_all", int(number))
        else:
            draft.set_float(f"{name}_of_all", float(number))
    if chain.residual is not None:
        draft.set_float("beta", chain.beta)
    if chain.dtype in RANGES:
        least, most = RANGES[chain.dtype]
        low, high = max(chain.low, least), min(chain.high, most)
        if chain.activation == "relu":
            low = max(low, chain.zero)
        for name, value in (("gain", chain.gain), ("zero", chain.zero), ("low", low), ("high", high)):
            draft.set_float(name, float(value))


def _row(columns: int, number: float, dtype: str, combine: Callable[..., Any]) -> Callable[[Array], Array]:
    """Return what makes a row of a constant, and of the number that goes with it."""

    def pack(array: Array) -> Array:
        wide = np.float64 if dtype == "float32" else np.int64
        row = combine(np.broadcast_to(array.reshape(-1), (columns,)).astype(wide), number)
        return np.ascontiguousarray(row.astype(dtype))

    return pack


def _columns(array: Array) -> Array:
    """Return [k, n] as [n, k]; of 8-bit floats their bytes, for which bundles have a type."""
    columns = array.reshape(array.shape[-2:]).transpose()
    return columns if array.dtype == np.int8 else np.ascontiguousarray(columns).view(np.uint8)


def _read(flow: Dataflow, chain: QuantizedChain) -> Problem | None:
    """Return what a chain is a problem of, or None if it is none that a kernel solves."""
    data, weight = flow.value(chain.anchor).args
    dtype, out = str(data.ty.dtype), chain.dtype
    wanted = FLOAT8 if dtype == FLOAT8 else "int8"
    if str(weight.ty.dtype) != wanted or not flow.is_constant(weight) or out not in QUANTIZED[dtype].outputs:
        return None
    if str(chain.anchor.ty.dtype) not in (("float32", "float16", "bfloat16") if dtype == FLOAT8 else ("int32",)):
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
    return left[:-1], right[-1], right[-2]


def _most_rows(problem: Problem, flops: int) -> int:
    if isinstance(problem, Convolution):
        return most_places(problem, flops)
    factors, columns, depth = problem
    if all(isinstance(extent, int) for extent in factors):
        return math.prod(factors)
    return max(1, flops // (2 * columns * depth))


def _rank(flow: Dataflow, problem: Problem, chain: QuantizedChain, options: CutlassOptions, rows: int) -> Ranking:
    dtype = str(flow.value(chain.anchor).args[0].ty.dtype)
    # Bounds do what ReLU does where there are any.
    activation = "none" if chain.activation == "relu" and chain.dtype in RANGES else chain.activation or "none"
    form = QuantizedForm(dtype, chain.dtype, activation, chain.residual is not None)
    if not isinstance(problem, Convolution):
        _, columns, depth = problem
        return rank_quantized_gemm(GemmShape(rows, columns, depth, 1), form, options)
    if problem.is_product:
        return rank_quantized_gemm(GemmShape(rows, problem.filters, problem.channels, 1), form, options)
    extents = (problem.window, problem.padding, problem.stride, problem.dilation)
    return rank_quantized_conv(ConvShape(rows, problem.channels, problem.filters, *extents), form, options)
