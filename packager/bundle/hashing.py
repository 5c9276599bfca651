"""The bytes of an array in row-major order, piece by piece: views of large weights are never copied whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What is copied at once, in bytes: small beside any weights that matter, large beside the cost of a call.
CHUNK_BYTES = 1 << 24


def chunks(array: NDArray[Any]) -> Iterator[memoryview]:
    """Yield the bytes of ``array``: a contiguous one as it is, of another one copies of up to ``CHUNK_BYTES``."""
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


def sha256_of_array(array: NDArray[Any]) -> str:
    """Return the hex SHA-256 of the bytes of an array."""
    digest = hashlib.sha256()
    for part in chunks(array):
        digest.update(part)
    return digest.hexdigest()
