"""Converter of RoiAlign, with a number of samples that is given or follows from the size of each region.

ONNX operator RoiAlign (versions 10 to 22): the mean of all samples of a bin, or, as in onnx's reference, the maximum
over their weighted neighbors. TVM's makes small regions larger where the standard does so for ``output_half_pixel``
only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.frontends.onnx.ops.operands import Convert, Converter, dtype_of, extents, opset, text
from packager.lower.tir_loops import emit_rows

# Of a position on an axis: whether it is inside, the neighbor before it, the distance to it, the last index.
_Point = tuple[Any, Any, Any, Any]


@dataclass(frozen=True)
class _Axis:
    """An axis of the image: coordinates ``first`` and ``first + 2`` of a region, ``bins`` of the output."""

    first: int
    bins: int
    scale: float
    dtype: str
    old: bool  # no shift by half a pixel, and a region is a pixel at least

    def number(self, value: float) -> Any:
        """Return a constant of the element type."""
        return tirx.const(value, self.dtype)

    def span(self, corner: Callable[[int], Any]) -> tuple[Any, Any]:
        """Return the start and the length of a region; ``corner`` reads its coordinates."""
        offset = self.number(0.0 if self.old else 0.5)
        start = corner(self.first) * self.number(self.scale) - offset
        length = corner(self.first + 2) * self.number(self.scale) - offset - start
        return start, tirx.max(length, self.number(1.0)) if self.old else length

    def point(self, span: tuple[Any, Any], bin_index: Any, sample: Any, samples: Any, extent: Any) -> _Point:
        """Return the position of a sample of a bin."""
        start, length = span
        step, size = length / self.number(float(self.bins)), extent.astype(self.dtype)
        at = start + bin_index.astype(self.dtype) * step
        at = at + (sample.astype(self.dtype) + self.number(0.5)) * step / samples.astype(self.dtype)
        inside = tirx.all(at >= self.number(-1.0), at <= size)
        at = tirx.min(tirx.Select(at > self.number(0.0), at, self.number(0.0)), size - self.number(1.0))
        low = tirx.floor(at)
        return inside, low.astype("int64"), at - low, extent.astype("int64") - tirx.const(1, "int64")


def _roi_align(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    dtype, channels = dtype_of(inputs[0]), extents(inputs[0])[1]
    if not isinstance(channels, int):
        raise ValueError("RoiAlign of a symbolic number of channels: fix the dim with --dim")
    old = (
        opset(attributes) < 16
        or text(attributes, "coordinate_transformation_mode", "half_pixel") == "output_half_pixel"
    )
    scale = float(attributes.get("spatial_scale", 1.0))
    axes = [
        _Axis(first, int(attributes.get(name, 1)), scale, dtype, old)
        for first, name in ((1, "output_height"), (0, "output_width"))
    ]
    mean = text(attributes, "mode", "avg") != "max"
    if (samples := int(attributes.get("sampling_ratio", 0))) > 0:
        return _fixed(builder, inputs, axes, samples, mean=mean)
    return _adaptive(builder, inputs, axes, channels, mean=mean)


def _fixed(builder: Any, inputs: Sequence[Any], axes: Sequence[_Axis], samples: int, *, mean: bool) -> Any:
    """Return the result with ``samples`` by ``samples`` of each bin.

    Neighbors and their weights are computed once for all channels, which are last meanwhile: vectors run along them.
    """
    data, *regions = inputs

    def compute(x: Any, roi: Any, batch: Any) -> Any:
        pairs = [_tables(axis, roi, samples, extent) for axis, extent in zip(axes, x.shape[1:3], strict=True)]
        (down, weight_down), (right, weight_right) = pairs
        sy, sx = (te.reduce_axis((0, 2 * samples), name=name) for name in ("sy", "sx"))

        def element(r: Any, oy: Any, ox: Any, c: Any) -> Any:
            weight, place = weight_down(r, oy, sy) * weight_right(r, ox, sx), (down(r, oy, sy), right(r, ox, sx))
            # Whatever is read of a sample that is outside, it is no part of the bin.
            part = tirx.Select(weight == 0, axes[0].number(0.0), weight * x(batch(r), *place, c))
            return (te.sum if mean else te.max)(part, axis=[sy, sx])

        shape = (roi.shape[0], axes[0].bins, axes[1].bins, x.shape[3])
        result = te.compute(shape, element, name="samples")
        if not mean:
            return result
        total = axes[0].number(float(samples * samples))
        return te.compute(result.shape, lambda *i: result(*i) / total, name="roi_align")

    last = builder.emit(relax.op.permute_dims(data, [0, 2, 3, 1]))
    result = builder.emit(builder.call_te(compute, last, *regions, primfunc_name_hint="roi_align"))
    return relax.op.permute_dims(result, [0, 3, 1, 2])


def _tables(axis: _Axis, roi: Any, samples: int, extent: Any) -> tuple[Any, Any]:
    """Return the neighbors of all samples along an axis, [regions, bins, 2 * samples], and their weights; those of a
    sample that is outside are 0."""
    shape = (roi.shape[0], axis.bins, 2 * samples)
    count, one, zero = tirx.const(samples, "int32"), axis.number(1.0), axis.number(0.0)

    def at(r: Any, index: Any, neighbor: Any) -> _Point:
        return axis.point(axis.span(lambda place: roi(r, place)), index, neighbor // 2, count, extent)

    def place(r: Any, index: Any, neighbor: Any) -> Any:
        _, low, _, most = at(r, index, neighbor)
        return tirx.min(low + (neighbor % 2).astype("int64"), most)

    def weight(r: Any, index: Any, neighbor: Any) -> Any:
        inside, _, rest, _ = at(r, index, neighbor)
        return tirx.Select(inside, tirx.Select(neighbor % 2 == 1, rest, one - rest), zero)

    return te.compute(shape, place, name="neighbors"), te.compute(shape, weight, name="weights")


def _neighbor(y: _Point, z: _Point, down: Any, right: Any, read: Callable[..., Any], axis: _Axis) -> Any:
    """Return one of the four neighbors of a sample, weighted; 0 of a sample that is outside."""
    one = axis.number(1.0)
    value = read(tirx.min(y[1] + down, y[3]), tirx.min(z[1] + right, z[3]))
    weight = tirx.Select(down == 1, y[2], one - y[2]) * tirx.Select(right == 1, z[2], one - z[2])
    return tirx.Select(tirx.all(y[0], z[0]), weight * value, axis.number(0.0))


def _adaptive(builder: Any, inputs: Sequence[Any], axes: Sequence[_Axis], channels: int, *, mean: bool) -> Any:
    """Return the result with as many samples of a bin on each axis as it has pixels, rounded up."""
    rows, columns = axes
    bins = rows.bins * columns.bins

    def body(given: Sequence[Any], shapes: Sequence[Any], row: Any) -> None:
        x, roi, batch, result, total = given
        _, _, height, width = shapes[0]
        region, channel = row // channels, row % channels
        image = (batch[region].astype("int64") * channels + channel) * height
        spans = [axis.span(lambda at: roi[region * 4 + at]) for axis in axes]
        counts = [tirx.ceil(span[1] / axis.number(float(axis.bins))).astype("int64")
                  for span, axis in zip(spans, axes, strict=True)]  # fmt: skip
        with T.serial(0, rows.bins) as oy, T.serial(0, columns.bins) as ox:
            total[row] = rows.number(0.0 if mean else -np.inf)
            with T.serial(0, counts[0]) as sy, T.serial(0, counts[1]) as sx:
                y = rows.point(spans[0], oy, sy, counts[0], height)
                z = columns.point(spans[1], ox, sx, counts[1], width)
                parts = [
                    _neighbor(y, z, tirx.const(down, "int64"), tirx.const(right, "int64"),
                              lambda v, h: x[(image + v) * width + h], rows)
                    for down in (0, 1) for right in (0, 1)
                ]  # fmt: skip
                for part in parts:
                    total[row] = total[row] + part if mean else tirx.max(total[row], part)
            product = tirx.max(counts[0], tirx.const(0, "int64")) * tirx.max(counts[1], tirx.const(0, "int64"))
            place = row * bins + oy.astype("int64") * columns.bins + ox.astype("int64")
            if mean:
                result[place] = total[row] / tirx.max(product, tirx.const(1, "int64")).astype(rows.dtype)
            else:
                result[place] = tirx.Select(product > tirx.const(0, "int64"), total[row], rows.number(0.0))

    def shapes(_image: Any, roi: Any, _batch: Any) -> tuple[Any, list[tuple[Sequence[Any], str]]]:
        regions = roi.shape[0]
        count = regions * channels
        return count, [((regions, channels, rows.bins, columns.bins), rows.dtype), ((count,), rows.dtype)]

    return emit_rows(builder, "roi_align", inputs, shapes, body)[0]


CONVERTERS: Mapping[str, Converter] = {"RoiAlign": _roi_align}
