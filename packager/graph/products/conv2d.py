"""Read the geometry of a convolution of an NHWC image with OHWI filters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from packager.graph.dataflow import Dataflow
from packager.graph.products.convolution import read_convolution


@dataclass(frozen=True)
class Convolution:
    """A convolution of an image [batch, height, width, channels]; pairs are of height and width.

    ``padding`` is that before the first row and column; behind the last there is as much as ``result`` needs.
    """

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
    groups: int = 1

    @property
    def is_product(self) -> bool:
        """Whether it is a GEMM of the image's pixels and the filters."""
        is_pixelwise = self.window == self.stride == (1, 1) and self.padding == (0, 0)
        return self.groups == 1 and is_pixelwise and self.result == self.image


def read_geometry(flow: Dataflow, anchor: Any, *, grouped: bool = False) -> Convolution | None:
    """Return the convolution that a variable is bound to, of any types; None if its layout or size is another.

    Those of several groups are taken where they may be ``grouped``.
    """
    conv = read_convolution(flow, anchor)
    if conv is None or conv.transposed or not (conv.channels_last and conv.weights_last):
        return None
    if conv.groups != 1 and not grouped:
        return None
    if len(conv.window) != 2 or min(conv.before) < 0 or not flow.is_constant(conv.weights):
        return None
    if not all(isinstance(extent, int) and extent > 0 for extent in (*conv.image, *conv.result)):
        return None
    pairs = (conv.image, conv.result, conv.window, conv.before, conv.stride, conv.dilation)
    image, result, window, padding, stride, dilation = ((pair[0], pair[1]) for pair in pairs)
    sizes = (conv.dtype, conv.batch, image, conv.channels, conv.filters)
    return Convolution(*sizes, result, window, padding, stride, dilation, conv.groups)


def most_rows(conv: Convolution, flops: int) -> int:
    """Return the pixels of the result at the largest batch, of which a call takes ``flops``."""
    work = 2 * math.prod(conv.result) * conv.filters * math.prod(conv.window) * conv.channels // conv.groups
    batch = conv.batch if isinstance(conv.batch, int) else max(1, flops // work)
    return batch * math.prod(conv.result)
