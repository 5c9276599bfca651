"""How far a result is from onnxruntime's; needs numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def differences(
    found: Array, expected: Array, tolerance: float, apart: float = 0.0, random: bool = False
) -> tuple[str, float]:
    """Return what differs, and the largest difference where 1 is the root mean square of ``expected``.

    ``tolerance`` is of that too; ``apart`` is the share of elements that may be further off. Of ``random`` results only
    the shapes are compared.
    """
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype}{list(found.shape)} for {expected.dtype}{list(expected.shape)}", 0.0
    if random or not expected.size:
        return "", 0.0
    if not np.issubdtype(expected.dtype, np.floating):
        # A label flips where two scores tie but for rounding.
        share = float(np.mean(found != expected))
        return (f"{share:.0%} of elements differ" if share > 10 * tolerance else ""), 0.0
    with np.errstate(invalid="ignore"):
        off = np.where(found == expected, 0.0, np.abs(found.astype(np.float64) - expected))
    off = np.where(np.isnan(found) & np.isnan(expected), 0.0, off)
    finite = expected[np.isfinite(expected)].astype(np.float64)
    size = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 1.0
    error = float(off.max()) / (size or 1.0)
    far = float(np.mean(~(off <= tolerance * (size or 1.0))))
    return (f"{far:.0%} of elements differ, by up to {error:.1e}" if far > apart else ""), error
