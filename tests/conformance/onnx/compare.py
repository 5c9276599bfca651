"""What a model should give, and how what it gave differs from that; needs numpy alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

# The runner grants bfloat16 two units in the last place, as the standard's reference rounds after each step. The same
# holds for float16: sums in float32, as ours are, are nearer to the exact result than it.
TWO_ULPS = {"bfloat16": 2**-6, "float16": 2**-9}


class Expected(Protocol):
    """A case: what its outputs should be, in order, within which tolerances."""

    @property
    def outputs(self) -> Sequence[Any]:
        """The arrays."""

    @property
    def rtol(self) -> float:
        """The part of a value that it may be off by."""

    @property
    def atol(self) -> float:
        """What any value may be off by beside that."""


def difference(case: Expected, made: Sequence[Any]) -> str:
    """Return how outputs differ from what they should be, "" if they do not: shapes, types, values within tolerance;
    no values if the tolerance is infinite.

    The comparison is that of ``onnx.backend.test.runner``.
    """
    if len(made) != len(case.outputs):
        return f"{len(made)} outputs, expected {len(case.outputs)}"
    for number, (have, expected) in enumerate(zip(made, case.outputs, strict=True)):
        want = np.asarray(expected)
        if have.shape != want.shape:
            return f"output {number} has shape {list(have.shape)}, expected {list(want.shape)}"
        if have.dtype != want.dtype:
            return f"output {number} is {have.dtype}, expected {want.dtype}"
        if case.atol == np.inf:
            continue
        exact = want.dtype.kind in "biu"
        left, right = (have, want) if exact else (have.astype(np.float64), want.astype(np.float64))
        rtol, atol = (0.0, 0.0) if exact else (max(case.rtol, TWO_ULPS.get(want.dtype.name, 0)), case.atol)
        if not np.allclose(left, right, rtol=rtol, atol=atol, equal_nan=not exact):
            with np.errstate(all="ignore"):
                worst = np.nanmax(np.abs(left.astype(np.float64) - right.astype(np.float64)), initial=0)
            return f"output {number} is off by {worst:.3g}"
    return ""
