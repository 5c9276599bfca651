"""``DeformConv`` by im2col at the offset positions, and matmul.

ONNX operator DeformConv (version 22). NaN and far positions read as outside; indices are clamped to the image.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax, te, tirx

from packager.frontends.onnx.ops.operands import Convert, Converter, dtype_of, optional, static_extents
from packager.ir.pattern_kinds import OPAQUE


def _deform_conv(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """Sample columns at the offset positions, [N, C, kernel, output], and multiply them with the weights by group."""
    data, weight, offset = inputs[:3]
    bias, mask = optional(inputs, 3), optional(inputs, 4)
    batch, channels, height, width = static_extents(data, "the image of DeformConv")
    filters, per_group, kh, kw = static_extents(weight)
    oh, ow = static_extents(offset)[2:]
    groups, offset_groups = attributes.get("group", 1), attributes.get("offset_group", 1)
    pads, strides = attributes.get("pads", [0] * 4), attributes.get("strides", [1, 1])
    dilations, dtype = attributes.get("dilations", [1, 1]), dtype_of(data)
    shared = channels // offset_groups

    def sampling_positions(moved: Any) -> Any:
        """Return the sampling positions: [N, offset groups, kernel, (row, column), output]."""

        def position(n: Any, g: Any, k: Any, axis: Any, p: Any) -> Any:
            offset = moved(n, (g * (kh * kw) + k) * 2 + axis, p // ow, p % ow)
            row = p // ow * strides[0] - pads[0] + k // kw * dilations[0]
            column = p % ow * strides[1] - pads[1] + k % kw * dilations[1]
            at = tirx.Select(axis == 0, row, column).astype(dtype) + offset
            extent = tirx.Select(axis == 0, tirx.const(height + 1.0, dtype), tirx.const(width + 1.0, dtype))
            at = tirx.Select(at > tirx.const(-2.0, dtype), at, tirx.const(-2.0, dtype))
            return tirx.Select(at < extent, at, extent)

        return te.compute((batch, offset_groups, kh * kw, 2, oh * ow), position, name="places")

    def compute(x: Any, at: Any, *masks: Any) -> Any:
        def column(n: Any, c: Any, k: Any, p: Any) -> Any:
            y, z = (at(n, c // shared, k, axis, p) for axis in range(2))
            low_y, low_x = tirx.floor(y), tirx.floor(z)
            total = tirx.const(0.0, dtype)
            for dy, dx in itertools.product((0, 1), repeat=2):
                wy = y - low_y if dy else tirx.const(1.0, dtype) - (y - low_y)
                wx = z - low_x if dx else tirx.const(1.0, dtype) - (z - low_x)
                row, col = low_y.astype("int32") + dy, low_x.astype("int32") + dx
                inside = tirx.all(row >= 0, row < height, col >= 0, col < width)
                safe = x(n, c, tirx.max(tirx.min(row, height - 1), 0), tirx.max(tirx.min(col, width - 1), 0))
                total = total + tirx.Select(inside, wy * wx * safe, tirx.const(0.0, dtype))
            return total * masks[0](n, c // shared * (kh * kw) + k, p // ow, p % ow) if masks else total

        return te.compute((batch, channels, kh * kw, oh * ow), column, name="columns")

    alone = {"op_pattern": OPAQUE}
    positions = builder.emit(
        builder.call_te(sampling_positions, offset, primfunc_name_hint="places", primfunc_attrs=alone)
    )
    operands = [data, positions, *([] if mask is None else [mask])]
    columns = builder.emit(
        builder.call_te(compute, *operands, primfunc_name_hint="deformed_columns", primfunc_attrs=alone)
    )
    rows = builder.emit(relax.op.reshape(columns, [batch, groups, per_group * kh * kw, oh * ow]))
    matrix = builder.emit(relax.op.reshape(weight, [1, groups, filters // groups, per_group * kh * kw]))
    product = builder.emit(relax.op.matmul(matrix, rows))
    result = relax.op.reshape(product, [batch, filters, oh, ow])
    if bias is None:
        return result
    return relax.op.add(builder.emit(result), builder.emit(relax.op.reshape(bias, [1, filters, 1, 1])))


CONVERTERS: Mapping[str, Converter] = {"DeformConv": _deform_conv}
