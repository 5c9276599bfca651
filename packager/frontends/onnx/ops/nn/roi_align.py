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
from tvm import te, tirx
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
    """Return the result with ``samples`` by ``samples`` of each bin."""
    rows, columns = axes

    def compute(x: Any, roi: Any, batch: Any) -> Any:
        sy, sx = (te.reduce_axis((0, samples), name=name) for name in ("sy", "sx"))
        corner = te.reduce_axis((0, 4), name="corner")
        count = tirx.const(samples, "int32")

        def element(r: Any, c: Any, oy: Any, ox: Any) -> Any:
            y, z = (axis.point(axis.span(lambda at: roi(r, at)), index, sample, count, extent) for axis, index, sample,
                    extent in ((rows, oy, sy, x.shape[2]), (columns, ox, sx, x.shape[3])))  # fmt: skip
            part = _neighbor(y, z, corner // 2, corner % 2, lambda *at: x(batch(r), c, *at), rows)
            return (te.sum if mean else te.max)(part, axis=[sy, sx, corner])

        result = te.compute((roi.shape[0], x.shape[1], rows.bins, columns.bins), element, name="samples")
        if not mean:
            return result
        total = rows.number(float(samples * samples))
        return te.compute(result.shape, lambda *i: result(*i) / total, name="roi_align")

    return builder.call_te(compute, *inputs, primfunc_name_hint="roi_align")


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
