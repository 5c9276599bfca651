"""Rules of weights that are quantized in blocks, and dequantized at build time: MatMulNBits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import helper

from packager.bundle.arrays import Array
from packager.frontends.onnx.graph.contrib.body import Body, Rule


def _unpacked(packed: Array, bits: int, count: int) -> Array:
    """Return the last axis of bytes as ``count`` unsigned numbers, the lowest bits first."""
    if bits == 8:
        return packed[..., :count]
    per_byte = 8 // bits
    shifts = np.arange(per_byte, dtype=np.uint8) * bits
    numbers = (packed[..., None] >> shifts) & ((1 << bits) - 1)
    return numbers.reshape(*packed.shape[:-1], -1)[..., :count]


def dequantized_rows(b: Body, rows: int, depth: int, bits: int, block: int) -> Array:
    """Return weights [rows, depth] in float32: (q - zero point) scale, with one scale per row and block."""
    if bits not in (2, 4, 8):
        raise ValueError(f"weights of {bits} bits are not supported")
    blocks = -(-depth // block)
    packed = b.constant_of(b.input(1), "the weight").reshape(rows, blocks, -1)
    numbers = _unpacked(packed, bits, block).astype(np.float32)
    scales = b.constant_of(b.input(2), "the scales").astype(np.float32).reshape(rows, blocks, 1)
    zero: Array = np.full((1, 1, 1), 1 << bits - 1, np.float32)
    if b.input(3):
        given = b.constant_of(b.input(3), "the zero points")
        whole = given if given.dtype.kind == "f" else _unpacked(given.reshape(rows, -1), bits, blocks)
        zero = whole.astype(np.float32).reshape(rows, blocks, 1)
    return np.ascontiguousarray(((numbers - zero) * scales).reshape(rows, blocks * block)[:, :depth])


def _matmul(b: Body) -> list[str]:
    if b.input(4):
        raise ValueError("its input g_idx is not supported")
    rows, depth = b.required("N"), b.required("K")
    weight = dequantized_rows(b, rows, depth, b.flag("bits", 4), b.required("block_size"))
    kind = helper.tensor_dtype_to_np_dtype(b.type_of(b.input(0)))
    product = b("MatMul", b.input(0), b.array(weight.T, kind))
    return [b("Add", product, b.input(5)) if b.input(5) else product]


RULES: Mapping[str, Rule] = {"MatMulNBits": _matmul}
