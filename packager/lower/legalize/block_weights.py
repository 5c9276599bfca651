"""Lower products with weights that are quantized in blocks, for any device: dequantize, then multiply.

The backends ``ccompiler`` and ``cutlass`` multiply by the packed bits.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tvm import relax, te, tirx

from packager.graph.block_weights import BlockFormat, format_of


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
