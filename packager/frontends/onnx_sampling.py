"""Sampling of images at computed places: ``GridSample``, ``RoiAlign`` and ``DeformConv`` as gathers.

ONNX operators GridSample (version 22), RoiAlign (22), DeformConv (22). A place that is no number or far outside reads
as outside; no index leaves the image.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax, te, tirx

from packager.frontends.onnx_quantized import Convert, Converter
from packager.frontends.onnx_values import dtype_of, optional, static_extents, text

CUBIC_A = -0.75
OPAQUE = 8  # OpPatternKind::kOpaque of TVM: is fused with nothing


def _bounded(x: Any, low: float, high: float, dtype: str) -> Any:
    """Return ``x`` within bounds; what is no number is the lower one."""
    least, most = tirx.const(low, dtype), tirx.const(high, dtype)
    x = tirx.Select(x > least, x, least)
    return tirx.Select(x < most, x, most)


def _reflected(x: Any, low: float, high: float, dtype: str) -> Any:
    """Return ``x`` reflected at two borders until it lies between them."""
    span = high - low
    if span <= 0:
        return tirx.const(low, dtype)
    away = tirx.abs(x - tirx.const(low, dtype))
    turns = tirx.floor(away / tirx.const(span, dtype))
    rest = away - turns * tirx.const(span, dtype)
    even = turns - tirx.const(2.0, dtype) * tirx.floor(turns / tirx.const(2.0, dtype)) == tirx.const(0.0, dtype)
    return tirx.Select(even, rest, tirx.const(span, dtype) - rest) + tirx.const(low, dtype)


def _mirrored(index: Any, extent: int, *, corners: bool) -> Any:
    """Return an index reflected into [0, extent): at the first and last element, or beside them."""
    if extent == 1:
        return tirx.const(0, "int32")
    period = 2 * (extent - 1) if corners else 2 * extent
    turn = tirx.floormod(index, period)
    return tirx.Select(turn < extent, turn, (period if corners else period - 1) - turn)


def _cubic_weights(t: Any, dtype: str) -> list[Any]:
    """Source: Keys 1981, "Cubic convolution interpolation for digital image processing", equation 4."""
    a = CUBIC_A

    def near(x: Any) -> Any:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Any) -> Any:
        return ((x - 5) * x + 8) * x * a - 4 * a

    one = tirx.const(1.0, dtype)
    return [far(t + one), near(t), near(one - t), far(tirx.const(2.0, dtype) - t)]


def _grid_sample(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    data, grid = inputs
    spatial = static_extents(data, "the image of GridSample")[2:]
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(m := text(attributes, "mode", "linear"), m)
    padding, corners = text(attributes, "padding_mode", "zeros"), bool(attributes.get("align_corners", 0))
    rank, dtype = len(spatial), dtype_of(data)
    work = "float64" if "float64" in (dtype, dtype_of(grid)) else "float32"
    borders = [(0.0, extent - 1.0) if corners else (-0.5, extent - 0.5) for extent in spatial]

    def place(g: Any, n: Any, at: Sequence[Any], axis: int) -> Any:
        """Return a coordinate in elements."""
        given = g(n, *at, rank - 1 - axis).astype(work)
        extent = spatial[axis]
        one = tirx.const(1.0, work)
        if corners:
            x = (given + one) / tirx.const(2.0, work) * tirx.const(extent - 1.0, work)
        else:
            x = ((given + one) * tirx.const(float(extent), work) - one) / tirx.const(2.0, work)
        if mode == "nearest":
            x = tirx.nearbyint(x)
        low, high = borders[axis]
        if padding == "border":
            x = _bounded(x, 0.0, extent - 1.0, work)
        elif padding == "reflection":
            outside = tirx.any(x < tirx.const(low, work), x > tirx.const(high, work))
            x = tirx.Select(outside, _reflected(x, low, high, work), x)
        return _bounded(x, -4.0, extent + 4.0, work)

    def element(x: Any, n: Any, c: Any, at: Sequence[Any]) -> Any:
        """Return an element of the image, or what the padding says."""
        inside = tirx.all(*(tirx.all(a >= 0, a < extent) for a, extent in zip(at, spatial, strict=True)))
        safe = []
        for axis, a in enumerate(at):
            if padding == "reflection":
                a = _mirrored(a, spatial[axis], corners=corners)
            safe.append(tirx.max(tirx.min(a, spatial[axis] - 1), 0))
        value = x(n, c, *safe).astype(work)
        return tirx.Select(inside, value, tirx.const(0.0, work)) if padding == "zeros" else value

    def all_places(g: Any) -> Any:
        return te.compute(
            (*g.shape[:-1], rank),
            lambda n, *at: _chosen(at[-1], [place(g, n, at[:-1], axis) for axis in range(rank)]),
            name="places",
        )

    def compute(x: Any, g: Any, places: Any) -> Any:
        def sample(n: Any, c: Any, *at: Any) -> Any:
            where = [places(n, *at, axis) for axis in range(rank)]
            if mode == "nearest":
                return element(x, n, c, [w.astype("int32") for w in where]).astype(dtype)
            base = [tirx.floor(w) for w in where]
            ratios = [w - b for w, b in zip(where, base, strict=True)]
            if mode == "linear":
                weights = [[tirx.const(1.0, work) - t, t] for t in ratios]
            else:
                weights = [_cubic_weights(t, work) for t in ratios]
            first = 0 if mode == "linear" else -1
            total = tirx.const(0.0, work)
            for taps in itertools.product(range(len(weights[0])), repeat=rank):
                picked = [b.astype("int32") + (first + tap) for b, tap in zip(base, taps, strict=True)]
                weight = math.prod((weights[a][tap] for a, tap in enumerate(taps)), start=tirx.const(1.0, work))
                total = total + element(x, n, c, picked) * weight
            return total.astype(dtype)

        return te.compute((x.shape[0], x.shape[1], *g.shape[1:-1]), sample, name="grid_sample")

    if mode not in ("nearest", "linear", "cubic"):
        raise ValueError(f"GridSample has no mode {mode!r}")
    # On their own: inlined into the taps of all channels, they would be computed again for each.
    found = builder.call_te(all_places, grid, primfunc_name_hint="places", primfunc_attrs={"op_pattern": OPAQUE})
    return builder.call_te(compute, data, grid, builder.emit(found), primfunc_name_hint="grid_sample")


def _chosen(index: Any, values: Sequence[Any]) -> Any:
    result = values[-1]
    for number, value in reversed(list(enumerate(values[:-1]))):
        result = tirx.Select(index == number, value, result)
    return result


def _bilinear(read: Callable[[Any, Any], Any], y: Any, x: Any, height: int, width: int, dtype: str) -> list[Any]:
    """Return the four weighted neighbours of a place as RoiAlign has them: zero beyond one element outside."""
    inside = tirx.all(y >= tirx.const(-1.0, dtype), y <= tirx.const(float(height), dtype))
    inside = tirx.all(inside, x >= tirx.const(-1.0, dtype), x <= tirx.const(float(width), dtype))
    y, x = _bounded(y, 0.0, height - 1.0, dtype), _bounded(x, 0.0, width - 1.0, dtype)
    low_y, low_x = tirx.floor(y), tirx.floor(x)
    ly, lx, one = y - low_y, x - low_x, tirx.const(1.0, dtype)
    y0, x0 = low_y.astype("int32"), low_x.astype("int32")
    y1, x1 = tirx.min(y0 + 1, height - 1), tirx.min(x0 + 1, width - 1)
    parts = [
        (one - ly) * (one - lx) * read(y0, x0),
        (one - ly) * lx * read(y0, x1),
        ly * (one - lx) * read(y1, x0),
        ly * lx * read(y1, x1),
    ]
    return [tirx.Select(inside, part, tirx.const(0.0, dtype)) for part in parts]


def _deform_conv(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """Sample columns at the offset places, [N, C, kernel, output], and multiply them with the weights by group."""
    data, weight, offset = inputs[:3]
    bias, mask = optional(inputs, 3), optional(inputs, 4)
    batch, channels, height, width = static_extents(data, "the image of DeformConv")
    filters, per_group, kh, kw = static_extents(weight)
    oh, ow = static_extents(offset)[2:]
    groups, offset_groups = attributes.get("group", 1), attributes.get("offset_group", 1)
    pads, strides = attributes.get("pads", [0] * 4), attributes.get("strides", [1, 1])
    dilations, dtype = attributes.get("dilations", [1, 1]), dtype_of(data)
    shared = channels // offset_groups

    def compute(x: Any, moved: Any, *masks: Any) -> Any:
        def column(n: Any, c: Any, k: Any, p: Any) -> Any:
            i, j, oy, ox = k // kw, k % kw, p // ow, p % ow
            number = (c // shared * (kh * kw) + k) * 2
            y = (oy * strides[0] - pads[0] + i * dilations[0]).astype(dtype) + moved(n, number, oy, ox)
            z = (ox * strides[1] - pads[1] + j * dilations[1]).astype(dtype) + moved(n, number + 1, oy, ox)
            y, z = _bounded(y, -2.0, height + 1.0, dtype), _bounded(z, -2.0, width + 1.0, dtype)
            low_y, low_x = tirx.floor(y), tirx.floor(z)
            total = tirx.const(0.0, dtype)
            for dy, dx in itertools.product((0, 1), repeat=2):
                wy = y - low_y if dy else tirx.const(1.0, dtype) - (y - low_y)
                wx = z - low_x if dx else tirx.const(1.0, dtype) - (z - low_x)
                row, col = low_y.astype("int32") + dy, low_x.astype("int32") + dx
                inside = tirx.all(row >= 0, row < height, col >= 0, col < width)
                safe = x(n, c, tirx.max(tirx.min(row, height - 1), 0), tirx.max(tirx.min(col, width - 1), 0))
                total = total + tirx.Select(inside, wy * wx * safe, tirx.const(0.0, dtype))
            return total * masks[0](n, c // shared * (kh * kw) + k, oy, ox) if masks else total

        return te.compute((batch, channels, kh * kw, oh * ow), column, name="columns")

    operands = [data, offset, *([] if mask is None else [mask])]
    columns = builder.emit(builder.call_te(compute, *operands, primfunc_name_hint="deformed_columns"))
    rows = builder.emit(relax.op.reshape(columns, [batch, groups, per_group * kh * kw, oh * ow]))
    matrix = builder.emit(relax.op.reshape(weight, [1, groups, filters // groups, per_group * kh * kw]))
    product = builder.emit(relax.op.matmul(matrix, rows))
    result = relax.op.reshape(product, [batch, filters, oh, ow])
    if bias is None:
        return result
    return relax.op.add(builder.emit(result), builder.emit(relax.op.reshape(bias, [1, filters, 1, 1])))


SAMPLING: Mapping[str, Converter] = {"GridSample": _grid_sample, "DeformConv": _deform_conv}
