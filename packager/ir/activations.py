"""Names of activations that graphs are matched for and kernels are made of."""

from __future__ import annotations

LEAKY_RELU = "leaky_relu_"
"""What names of leaky ReLUs start with; the bits of the slope as a float32 follow, in hexadecimal."""

CLIP = "clip_"
"""What names of clips start with, such as ReLU6; the bits of both bounds follow likewise, with ``_`` between."""

SINE = "sine_"
"""Of the sine of a multiple, as in SIREN (Sitzmann et al., 2020); the bits of the factor follow likewise."""

SWISH = "swish_"
"""Of x sigmoid(beta x) with beta, such as 1.702 for the quick GELU of CLIP."""

ELU = "elu_"
"""Of low (exp(x) - 1) where x is negative, and slope x where not, with both: ELU, CELU of alpha 1, and SELU."""

STAR_RELU = "star_relu_"
"""Of scale relu(x)^2 + shift with both, as in MetaFormer (Yu et al., 2022)."""
