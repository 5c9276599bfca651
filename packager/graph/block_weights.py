"""Relax operators over weights that are quantized in blocks of a few bits.

``packager.dequantize_blocks`` returns such weights as floats. ``packager.block_matmul`` is a product with them: the
backends ``ccompiler`` and ``cutlass`` multiply by the packed bits, what no backend takes dequantizes them first.
Weights are packed as those of onnxruntime's MatMulNBits
(https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md): row ``n`` has the weights of column ``n``
of the result, in blocks along the depth, the lowest bits of a byte first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import Op

from packager.bundle.arrays import Array
from packager.graph.own_operators import register

DEQUANTIZE = "relax.packager.dequantize_blocks"
MATMUL = "relax.packager.block_matmul"
BITS = (2, 4, 8)


@dataclass(frozen=True)
class BlockFormat:
    """``depth`` weights a row, of ``bits`` each, in blocks of ``block``, the last one padded.

    With ``has_zeros`` each block has a zero point of its own, else all have half of the range. A product may round the
    numbers of a block of its data to integers of ``data_bytes`` with one scale: three are as exact as float32.
    """

    bits: int
    block: int
    depth: int
    has_zeros: bool
    data_bytes: int = 3

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return -(-self.depth // self.block)

    @property
    def middle(self) -> int:
        """Half of the range: the zero point where none is given."""
        return 1 << (self.bits - 1)


def dequantize_blocks(packed: Any, scales: Any, zeros: Any, form: BlockFormat) -> relax.Call:
    """Return the call: (q - zero) scale, float32 [rows, depth].

    ``packed`` is uint8 [rows, blocks, block * bits / 8], ``scales`` and ``zeros`` are float32 [rows, blocks]. Without
    ``form.has_zeros``, ``zeros`` is not read.
    """
    return relax.Call(Op.get(DEQUANTIZE), [packed, scales, zeros], _attributes(form))


def block_matmul(data: Any, packed: Any, scales: Any, zeros: Any, form: BlockFormat) -> relax.Call:
    """Return the call: ``data`` [..., depth] times the transposed weights, [..., rows], in the type of the data.

    With data of float32 scales and zero points are too. With data of 16-bit floats scales are float16, and zero points
    uint8.
    """
    return relax.Call(Op.get(MATMUL), [data, packed, scales, zeros], _attributes(form))


def _attributes(form: BlockFormat) -> Any:
    return tvm.ir.make_node(
        "ir.DictAttrs",
        bits=form.bits,
        block=form.block,
        depth=form.depth,
        has_zeros=int(form.has_zeros),
        data_bytes=form.data_bytes,
    )


def format_of(attrs: Any) -> BlockFormat:
    """Return the format by the attributes of a call."""
    bits, block, depth, data_bytes = (int(attrs[name]) for name in ("bits", "block", "depth", "data_bytes"))
    return BlockFormat(bits, block, depth, bool(int(attrs["has_zeros"])), data_bytes)


def unpack(packed: Array, bits: int, count: int) -> Array:
    """Return the last axis of bytes as ``count`` unsigned numbers, the lowest bits first."""
    if bits == 8:
        return packed[..., :count]
    shifts = np.arange(8 // bits, dtype=np.uint8) * np.uint8(bits)
    numbers: Array = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return numbers.reshape(*packed.shape[:-1], -1)[..., :count]


def pack(numbers: Array, form: BlockFormat) -> Array:
    """Return unsigned numbers [rows, depth] as the packed weights of a format; the last block is padded with zeros."""
    padded = np.zeros((len(numbers), form.blocks * form.block), np.uint8)
    padded[:, : form.depth] = numbers
    if form.bits != 8:
        shifts = np.arange(8 // form.bits, dtype=np.uint8) * np.uint8(form.bits)
        parts = padded.reshape(len(numbers), -1, 8 // form.bits) << shifts
        padded = np.bitwise_or.reduce(parts, axis=-1)
    return padded.reshape(len(numbers), form.blocks, -1)


def dequantized(packed: Array, scales: Array, zeros: Array, form: BlockFormat) -> Array:
    """Return what ``dequantize_blocks`` computes."""
    numbers: Array = unpack(packed, form.bits, form.block).astype(np.float32)
    zero = zeros[..., None] if form.has_zeros else np.float32(form.middle)
    whole = ((numbers - zero) * scales[..., None]).reshape(len(packed), -1)
    return np.ascontiguousarray(whole[:, : form.depth])


def legalize_dequantize_blocks(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.dequantize_blocks``."""
    compute = partial(_dequantize, form=format_of(call.attrs))
    return builder.call_te(compute, *call.args, primfunc_name_hint="dequantize_blocks")


def legalize_block_matmul(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.block_matmul``."""
    data, *weights = call.args
    compute = partial(_dequantize, form=format_of(call.attrs), transposed=True)
    turned = builder.emit(builder.call_te(compute, *weights, primfunc_name_hint="dequantize_blocks"))
    if (dtype := str(data.ty.dtype)) != "float32":
        turned = builder.emit(relax.op.astype(turned, dtype))
    product = builder.normalize(relax.op.matmul(data, turned))
    return product.op.get_attr("FLegalize")(builder, product)


def _dequantize(packed: Any, scales: Any, zeros: Any, form: BlockFormat, *, transposed: bool = False) -> Any:
    per_byte, mask = 8 // form.bits, (1 << form.bits) - 1

    def weight(row: Any, k: Any) -> Any:
        block, place = k // form.block, k % form.block
        byte = packed[row, block, place // per_byte].astype("int32")
        shift = (place % per_byte * form.bits).astype("int32")
        number = ((byte >> shift) & tirx.const(mask, "int32")).astype("float32")
        zero = zeros[row, block].astype("float32") if form.has_zeros else tirx.const(float(form.middle), "float32")
        return (number - zero) * scales[row, block].astype("float32")

    if transposed:
        return te.compute((form.depth, packed.shape[0]), lambda k, row: weight(row, k), name="dequantized")
    return te.compute((packed.shape[0], form.depth), weight, name="dequantized")


def _infer_weights(call: Any, _builder: Any) -> Any:
    return relax.TensorType([call.args[0].ty.shape.values[0], int(call.attrs["depth"])], "float32")


def _infer_matmul(call: Any, _builder: Any) -> Any:
    data, packed = call.args[0].ty, call.args[1].ty
    return relax.TensorType([*data.shape.values[:-1], packed.shape.values[0]], str(data.dtype))


WEIGHTS = ("packed", "scales", "zeros")
register(DEQUANTIZE, "Weights quantized in blocks, as floats", WEIGHTS, _infer_weights)
register(MATMUL, "A product with weights quantized in blocks", ("data", *WEIGHTS), _infer_matmul)
