"""Read the geometry of a convolution of an NHWC image with OHWI filters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from packager.graph.dataflow import Dataflow, shape_of


@dataclass(frozen=True)
class Convolution:
    """A convolution of an image [batch, height, width, channels]; pairs are of height and width."""

    dtype: str
    batch: Any
    image: tuple[int, int]
    channels: int
    filters: int
    result: tuple[int, int]
    window: tuple[int, int]
    padding: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def is_product(self) -> bool:
        """Whether it is a GEMM of the image's pixels and the filters."""
        return self.window == self.stride == (1, 1) and self.padding == (0, 0)


def read_geometry(flow: Dataflow, anchor: Any) -> Convolution | None:
    """Return the convolution that a variable is bound to, of any types; None if its layout or size is another."""
    call = flow.value(anchor)
    data, weight = call.args
    attrs = call.attrs
    image, filters, result = shape_of(data), shape_of(weight), shape_of(anchor)
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != ("NHWC", "OHWI", "NHWC") or attrs.groups != 1:
        return None
    if not image or not filters or not result or not flow.is_constant(weight):
        return None
    top, left, bottom, right = (int(extent) for extent in attrs.padding)
    known = all(isinstance(extent, int) and extent > 0 for extent in (*image[1:], *filters, *result[1:]))
    if not known or (top, left) != (bottom, right):
        return None
    return Convolution(
        str(data.ty.dtype),
        image[0],
        (image[1], image[2]),
        image[3],
        filters[0],
        (result[1], result[2]),
        (filters[1], filters[2]),
        (top, left),
        _pair(attrs.strides),
        _pair(attrs.dilation),
    )


def most_rows(conv: Convolution, flops: int) -> int:
    """Return the pixels of the result at the largest batch, of which a call takes ``flops``."""
    work = 2 * math.prod(conv.result) * conv.filters * math.prod(conv.window) * conv.channels
    batch = conv.batch if isinstance(conv.batch, int) else max(1, flops // work)
    return batch * math.prod(conv.result)


def _pair(values: Any) -> tuple[int, int]:
    first, second = (int(value) for value in values)
    return first, second
