"""The converter of weights that are quantized in blocks: an operator of packager's own, written by
``graph.contrib.blocks``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from packager.frontends.onnx.graph.contrib.blocks import DEQUANTIZE_BLOCKS
from packager.frontends.onnx.ops.operands import Convert, Converter, as_type, extents
from packager.graph.block_weights import BlockFormat, dequantize_blocks


def _dequantize(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    packed, *numbers = inputs
    bits, block, depth, rows = (int(attributes[name]) for name in ("bits", "block", "depth", "rows"))
    form = BlockFormat(bits, block, depth, len(numbers) > 1, int(attributes.get("data_bytes", 3)))
    packed = _shaped(builder, packed, (rows, form.blocks, block * bits // 8))
    scales, *zeros = (_shaped(builder, as_type(builder, n, "float32"), (rows, form.blocks)) for n in numbers)
    return dequantize_blocks(packed, scales, zeros[0] if zeros else scales, form)


def _shaped(builder: Any, value: Any, shape: tuple[int, ...]) -> Any:
    return value if tuple(extents(value)) == shape else builder.emit(relax.op.reshape(value, shape))


CONVERTERS: Mapping[str, Converter] = {DEQUANTIZE_BLOCKS: _dequantize}
