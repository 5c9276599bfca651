"""Names of activations that graphs are matched for and kernels are made of."""

from __future__ import annotations

LEAKY_RELU = "leaky_relu_"
"""What names of leaky ReLUs start with; the bits of the slope as a float32 follow, in hexadecimal."""

CLIP = "clip_"
"""What names of clips start with, such as ReLU6; the bits of both bounds follow likewise, with ``_`` between."""
