"""Rules of weights that are quantized in blocks: those of MatMulNBits, and of DequantizeLinear with ``block_size``,
stay packed as far as backends take them, of GatherBlockQuantized those are dequantized that a run takes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import TensorProto

from packager.bundle.arrays import Array
from packager.frontends.onnx.graph.contrib.body import Body, NotYetError, Rule
from packager.graph.block_weights import BITS, BlockFormat, pack, unpack

# An operator of packager's own: ``ops.quantization.block_weights`` converts it.
DEQUANTIZE_BLOCKS = "DequantizeBlocks"
# The bits of the types of DequantizeLinear, and what is added to make them unsigned.
_STORED = {
    TensorProto.UINT8: (8, 0),
    TensorProto.INT8: (8, 128),
    TensorProto.UINT4: (4, 0),
    TensorProto.INT4: (4, 8),
    **({TensorProto.UINT2: (2, 0), TensorProto.INT2: (2, 2)} if hasattr(TensorProto, "INT2") else {}),
}
# By accuracy_level: float16 and bfloat16 are within what two bytes hold of the largest number of a block, int8 is one.
_DATA_BYTES = {2: 2, 3: 2, 4: 1}


def _matmul(b: Body) -> list[str]:
    if b.input(4):
        raise ValueError("its input g_idx is not supported")
    rows, depth, bits, block = b.required("N"), b.required("K"), b.flag("bits", 4), b.required("block_size")
    if bits not in BITS:
        raise ValueError(f"weights of {bits} bits are not supported")
    form = BlockFormat(bits, block, depth, has_zeros=bool(b.input(3)))
    b.constant_of(b.input(1), "the weight")
    b.constant_of(b.input(2), "the scales")
    kind = b.type_of(b.input(0))
    operands = [b.input(1), b.input(2)]
    if b.input(3):
        given = b.constant_of(b.input(3), "the zero points")
        whole = given if given.dtype.kind == "f" else unpack(given.reshape(rows, -1), bits, form.blocks)
        operands.append(b.array(whole, np.float32))
    data_bytes = _DATA_BYTES.get(b.flag("accuracy_level", 0), 3)
    weights = b(DEQUANTIZE_BLOCKS, *operands, bits=bits, block=block, depth=depth, rows=rows, data_bytes=data_bytes)
    b.declare(weights, TensorProto.FLOAT, (rows, depth))
    turned = b("Transpose", weights, perm=[1, 0])
    wide = turned if kind == TensorProto.FLOAT else b("Cast", turned, to=kind)
    product = b("MatMul", b.input(0), wide)
    return [b("Add", product, b.input(5)) if b.input(5) else product]


def dequantize_linear(b: Body) -> list[str]:
    """Pack a constant matrix that DequantizeLinear (version 21) scales by blocks. Raises NotYetError for any other."""
    block, kind = b.flag("block_size"), b.type_of(b.input(1))
    if not block or b.flag("output_dtype") not in (0, kind) or len(b.extents(b.input(0))) != 2:
        raise NotYetError
    stored, depth_axis = _STORED.get(b.type_of(b.input(0))), b.flag("axis", 1) % 2
    constants = [b.find_constant(name) for name in (b.input(0), b.input(1), b.input(2)) if name]
    if stored is None or any(array is None for array in constants):
        raise NotYetError
    bits, shift = stored
    matrix, scales, *zeros = (_rows_first(array, depth_axis) for array in constants if array is not None)
    numbers = (matrix.astype(np.int16) + shift).astype(np.uint8)
    rows, depth = numbers.shape
    form = BlockFormat(bits, block, depth, has_zeros=bool(zeros) or not shift)
    operands = [b.array(pack(numbers, form), np.uint8), b.array(scales, np.float32)]
    if form.has_zeros:
        whole = zeros[0].astype(np.float32) + shift if zeros else np.zeros_like(scales, np.float32)
        operands.append(b.array(whole, np.float32))
    weights = b(DEQUANTIZE_BLOCKS, *operands, bits=bits, block=block, depth=depth, rows=rows)
    b.declare(weights, TensorProto.FLOAT, (rows, depth))
    turned = weights if depth_axis else b("Transpose", weights, perm=[1, 0])
    return [turned if kind == TensorProto.FLOAT else b("Cast", turned, to=kind)]


def _rows_first(array: Array, depth_axis: int) -> Array:
    return array if depth_axis else array.T


def _gather(b: Body) -> list[str]:
    """Inputs: data [rows, .., width] in 4 bits, two in a byte, or in 8; indices; scales and zero points by block of the
    last axis. Only the rows that are taken are unpacked."""
    data, indices, scales, zeros = map(b.input, range(4))
    bits, block = b.flag("bits", 4), b.flag("block_size", 128)
    rank = len(b.extents(data))
    if b.flag("gather_axis") != 0 or b.flag("quantize_axis", 1) % rank != rank - 1 or bits not in (4, 8):
        raise ValueError("only rows (gather_axis 0) of 4 or 8 bits, quantized along the last axis, are supported")
    kind, packed = b.type_of(scales), b.type_of(data) == TensorProto.UINT8
    wide = b("Cast", _rows(b, data, indices, bits if packed else 8), to=kind)
    default = 1 << bits - 1 if packed else 0
    zero = b("Cast", _rows(b, zeros, indices, bits if packed else 8), to=kind) if zeros else b.number(default, scales)
    taken = b("Gather", scales, indices, axis=0)
    blocks = b.unsqueezed(taken, rank_of_result := rank + len(b.extents(indices)) - 1)
    split = b("Reshape", wide, b.integers(*[0] * (rank_of_result - 1), -1, block))
    if zeros:
        zero = b("Slice", zero, b.integers(0), b("Slice", b("Shape", taken), b.integers(-1), b.integers(1 << 31)),
                 b.integers(-1))  # fmt: skip
        zero = b.unsqueezed(zero, rank_of_result)
    result = b("Mul", b("Sub", split, zero), blocks)
    return [b("Reshape", result, b.integers(*[0] * (rank_of_result - 1), -1))]


def _rows(b: Body, data: str, indices: str, bits: int) -> str:
    """Take rows, and unpack their last axis, the low bits first."""
    taken = b("Gather", data, indices, axis=0)
    if bits == 8:
        return taken
    parts = [
        b("BitwiseAnd", taken, b.array(15, np.uint8)),
        b("BitShift", taken, b.array(4, np.uint8), direction="RIGHT"),
    ]
    rank = len(b.extents(data)) + len(b.extents(indices)) - 1
    both = b("Concat", *(b.unsqueezed(part, rank) for part in parts), axis=rank)
    return b("Reshape", both, b.integers(*[0] * (rank - 1), -1))


RULES: Mapping[str, Rule] = {"MatMulNBits": _matmul, "GatherBlockQuantized": _gather}
