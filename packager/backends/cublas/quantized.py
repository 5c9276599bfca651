"""Products of 8 bits that cuBLASLt computes: int8 with sums of 32 bits, and e4m3 with what follows it."""

from __future__ import annotations

import math
from typing import Any

from packager.backends.cublas.options import CublasOptions
from packager.backends.cublas.problem import ACTIVATIONS, CublasProblem
from packager.bundle.dtypes import FLOATS, HALVES
from packager.graph.dataflow import Dataflow, same, shape_of
from packager.graph.products.conv2d import read_geometry
from packager.graph.products.epilogues import Chain
from packager.graph.products.matmul import bias_fits
from packager.graph.products.quantized import FLOAT8, RANGES, QuantizedChain

DEPTH = 16
"""The library reads 16 bytes at a time: the depth is a multiple of it."""
COLUMNS = {"int8": 4, FLOAT8: 16}
"""Of these the columns are multiples: results of int32 and of 8 bits are then 16 bytes."""


def read_quantized(flow: Dataflow, chain: QuantizedChain, options: CublasOptions) -> CublasProblem | None:
    """Return the problem of a chain, or None if the library does not compute it.

    Of int8 it computes the sums alone. Of e4m3 it adds biases and residuals of half precision to results of half
    precision or, biases alone, of e4m3. It scales each column of results of half precision; others have a kernel
    after them anyhow, which adds a bias and quantizes.
    """
    data, weight = flow.value(chain.anchor).args
    dtype = str(data.ty.dtype)
    narrow = "float8" if chain.scale_row is None else "float8_columns"
    group = {"int8": "int8", FLOAT8: narrow}.get(dtype)
    if group not in options.operators or str(weight.ty.dtype) != dtype or not flow.is_constant(weight):
        return None
    plain = Chain(
        chain.anchor,
        chain.variables,
        scale=chain.scale,
        bias=chain.bias_row,
        residual=chain.residual,
        activation=chain.activation,
    )
    fits = _is_sum(chain) if dtype == "int8" else _is_scaled(flow, chain, plain, options)
    size = _size(flow, chain) if fits else None
    if size is None or size[1] % COLUMNS[dtype] or size[2] % DEPTH:
        return None
    rows, columns, depth, layout = size
    sizes = ((), rows, columns, depth)
    return CublasProblem(data, weight, plain, dtype, chain.dtype, *sizes, layout, chain.gain, chain.scale_row)


def _is_sum(chain: QuantizedChain) -> bool:
    return chain.dtype == "int32" and chain.offset == 0 and chain.offset_row is None


def _is_scaled(flow: Dataflow, chain: QuantizedChain, plain: Chain, options: CublasOptions) -> bool:
    """Return whether the library computes what follows a product of e4m3, as exactly as its result is."""
    out = chain.dtype
    if str(chain.anchor.ty.dtype) not in FLOATS or out not in (*FLOATS, FLOAT8) or chain.bias or chain.is_rounded:
        return False
    if chain.activation not in ACTIVATIONS or (chain.scale_row is not None and out not in HALVES):
        return False
    _, is_rough = ACTIVATIONS[chain.activation]
    if is_rough and (out == "float32" or not (options.gelu_tanh or chain.activation == "gelu_tanh")):
        return False
    # Of float32 results the library would round a bias to bfloat16.
    if plain.bias is not None and (out == "float32" or not _is_row(plain) or not bias_fits(flow, plain, out)):
        return False
    if chain.residual is not None and (out == FLOAT8 or str(chain.residual.ty.dtype) != out):
        return False
    return out != FLOAT8 or _saturates(chain)


def _is_row(chain: Chain) -> bool:
    """Return whether a bias has an element for each column, not one for all."""
    extents, wanted = shape_of(chain.bias), shape_of(chain.result)
    return bool(extents and wanted and same(extents[-1], wanted[-1]))


def _saturates(chain: QuantizedChain) -> bool:
    """Return whether results of 8 bits are bounded by the type alone, as the library does, and by ReLU."""
    least, most = RANGES[FLOAT8]
    low = 0.0 if chain.activation == "relu" else least
    return chain.zero == 0.0 and chain.gain > 0 and chain.low <= low and chain.high >= most


def _size(flow: Dataflow, chain: QuantizedChain) -> tuple[tuple[Any, ...], int, int, str] | None:
    """Return the rows (extents to multiply), columns, depth and layout of the weights; None if they are not known."""
    data, weight = flow.value(chain.anchor).args
    left, right, result = shape_of(data), shape_of(weight), shape_of(chain.result)
    if not left or not right or not result or not all(isinstance(extent, int) for extent in right):
        return None
    if flow.call(chain.anchor, "nn.conv2d") is not None:
        conv = read_geometry(flow, chain.anchor)
        if conv is None or not conv.is_product or len(result) != 4:
            return None
        return (conv.batch, *conv.result), conv.filters, conv.channels, "nk"
    if len(left) < 2 or len(right) < 2 or math.prod(right[:-2]) != 1 or 0 in (*left, *right):
        return None
    return left[:-1], right[-1], right[-2], "packed"
