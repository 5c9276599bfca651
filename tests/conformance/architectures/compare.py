"""How far a result is from torch's; needs numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np

RTOL = ATOL = 1e-4


def compare(result: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Return the largest difference, and the largest part of the tolerance; infinite where shapes or NaNs differ.

    The absolute part of the tolerance is relative to the size of the whole tensor: random weights make some outputs
    far smaller than 1.
    """
    if result.shape != wanted.shape or result.dtype != wanted.dtype:
        return np.inf, np.inf
    difference = np.where(result == wanted, 0.0, np.abs(result.astype(np.float64) - wanted))
    size = np.sqrt(np.mean(np.square(wanted, dtype=np.float64))) if wanted.size else 0.0
    if not np.isfinite(difference).all() or not size > 0:
        return np.inf, np.inf
    return float(difference.max() / size), float((difference / (ATOL * size + RTOL * np.abs(wanted))).max())
