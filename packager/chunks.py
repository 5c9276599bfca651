"""The bytes of an array in row-major order, piece by piece: views of large weights are never copied whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What is copied at once, in bytes: small beside any weights that matter, large beside the cost of a call.
CHUNK_BYTES = 1 << 24


def chunks(array: NDArray[Any]) -> Iterator[memoryview]:
    """Yield the bytes of ``array``; no more than one piece of at most ``CHUNK_BYTES`` is copied at a time."""
    if array.flags.c_contiguous or array.nbytes <= CHUNK_BYTES:
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        return
    rows = CHUNK_BYTES * len(array) // array.nbytes
    if rows == 0:
        for part in array:
            yield from chunks(part)
        return
    for start in range(0, len(array), rows):
        yield np.ascontiguousarray(array[start : start + rows]).reshape(-1).view(np.uint8).data
