"""What backends require of a model before they see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preparation:
    """What a backend wants done to the whole model before any backend sees it; the wishes of all are fulfilled.

    ``channels_last``: on the CPU too 2-D convolutions and poolings come in NHWC, with weights in OHWI.
    ``integer_products``: what is quantized is computed by products of 8-bit integers, uint8 or int8 with constant int8
    weights, summed in int32. ``float8_products``: likewise of 8-bit floats (e4m3), summed in float32, where 16 divides
    the extents. ``window_products``: on the GPU convolutions of few channels become products of gathered windows.
    ``sink_reshapes``: on the CPU reshapes come after the elementwise operators that they can be swapped with; so it is
    wherever a backend takes partitions.
    """

    channels_last: bool = False
    integer_products: bool = False
    float8_products: bool = False
    window_products: bool = False
    sink_reshapes: bool = False

    def __or__(self, other: Preparation) -> Preparation:
        """Return what one of two wants."""
        return Preparation(
            *(mine or theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True))
        )
