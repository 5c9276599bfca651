"""Read the geometry of a convolution of NHWC or NDHWC data with OHWI or ODHWI filters."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from packager.graph.dataflow import Dataflow
from packager.graph.products.convolution import read_convolution


@dataclass(frozen=True)
class Convolution:
    """A convolution of images [batch, height, width, channels]; tuples are (height, width).

    Those of volumes are (depth, height, width). ``padding`` is that before the first row and column; behind the last
    there is as much as ``result`` needs.
    """

    dtype: str
    batch: Any
    image: tuple[int, ...]
    channels: int
    filters: int
    result: tuple[int, ...]
    window: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    @property
    def is_product(self) -> bool:
        """Whether it is a GEMM of the image's pixels and the filters."""
        return self.groups == 1 and all(map(self._is_pixelwise, range(len(self.image))))

    def _is_pixelwise(self, axis: int) -> bool:
        """Whether an element along an axis depends on the image at its own place alone."""
        plain = (self.window[axis], self.stride[axis], self.padding[axis]) == (1, 1, 0)
        return plain and self.result[axis] == self.image[axis]

    @property
    def behind(self) -> tuple[int, ...]:
        """The padding behind the last row and column that ``result`` needs."""
        needed = (
            (places - 1) * stride + (window - 1) * dilation + 1 - before - extent
            for places, stride, window, dilation, before, extent in zip(
                *(self.result, self.stride, self.window, self.dilation, self.padding, self.image), strict=True
            )
        )
        return tuple(max(0, width) for width in needed)

    @property
    def planar(self) -> Convolution:
        """The same convolution of a volume as one of images, if views of its tensors are such; else itself.

        A window of one plane is one of as many images more; one of a column of planes moves over rows that are planes.
        """
        if len(self.image) == 2:
            return self
        pixelwise = tuple(map(self._is_pixelwise, range(3)))
        if pixelwise[1] and pixelwise[2]:
            plane = math.prod(self.image[1:])
            row = {"image": plane, "result": plane, "window": 1, "padding": 0, "stride": 1, "dilation": 1}
            pairs: dict[str, Any] = {name: (getattr(self, name)[0], width) for name, width in row.items()}
            return replace(self, **pairs)
        if pixelwise[0]:
            names = ("image", "result", "window", "padding", "stride", "dilation")
            pairs = {name: getattr(self, name)[1:] for name in names}
            return replace(self, batch=self.batch * self.image[0], **pairs)
        return self


def read_geometry(flow: Dataflow, anchor: Any, *, grouped: bool = False, volumes: bool = False) -> Convolution | None:
    """Return the convolution that a variable is bound to, of any types; None if its layout or size is another.

    Those of several groups are taken where they may be ``grouped``. With ``volumes`` those of volumes in one group are
    taken too, as convolutions of images if views of their tensors are such.
    """
    conv = read_convolution(flow, anchor)
    if conv is None or conv.transposed or not (conv.channels_last and conv.weights_last):
        return None
    if conv.groups != 1 and (not grouped or len(conv.window) != 2):
        return None
    if (
        len(conv.window) not in ((2, 3) if volumes else (2,))
        or min(conv.before) < 0
        or not flow.is_constant(conv.weights)
    ):
        return None
    if not all(isinstance(extent, int) and extent > 0 for extent in (*conv.image, *conv.result)):
        return None
    sizes = (conv.dtype, conv.batch, conv.image, conv.channels, conv.filters, conv.result)
    return Convolution(*sizes, conv.window, conv.before, conv.stride, conv.dilation, conv.groups).planar
