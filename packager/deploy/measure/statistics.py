"""Robust statistics of runs that are measured in turns."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

CERTAINTY = 3.0
"""Threshold of significance, in standard errors of a difference."""


def center(samples: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the median of each column, and its standard error from the median absolute deviation."""
    medians = np.median(samples, axis=0)
    deviations = 1.4826 * np.median(np.abs(samples - medians), axis=0)
    return medians, 1.2533 * deviations / math.sqrt(len(samples))


def significantly_less(first: NDArray[np.float64], second: NDArray[np.float64]) -> bool:
    """Whether the first of two series of turns is faster than the second beyond the noise, in the turns of both."""
    common = min(len(first), len(second))
    first, second = first[:common], second[:common]
    (difference,), (error,) = center((first - second)[:, None])
    return bool(difference < -CERTAINTY * error)
