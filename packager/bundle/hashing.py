"""SHA-256 of values, files, folders and arrays; arrays are hashed in chunks, since weights are large views."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packager.progress import counted_bytes

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

# Bytes per copy: small next to the weights, large enough to hide the cost of a call.
CHUNK_BYTES = 1 << 24
_READ_BYTES = 1 << 20


def chunks(array: Array) -> Iterator[memoryview]:
    """Yield the bytes of ``array``: in place if contiguous, else in copies of up to ``CHUNK_BYTES``."""
    import numpy as np  # the deploy side hashes files without it

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


def sha256(parts: Iterable[bytes | memoryview]) -> str:
    """Return the hex SHA-256 of the concatenated parts."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()


def sha256_of_array(array: Array) -> str:
    """Return the hex SHA-256 of the bytes of an array."""
    return sha256(chunks(array))


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON-serializable value."""
    return sha256([json.dumps(value, sort_keys=True).encode()])


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file, counted_bytes(f"hashing {path.name}", os.fstat(file.fileno()).st_size) as used:
        return sha256(used(iter(partial(file.read, _READ_BYTES), b"")))


def digest_of_folder(folder: Path, pattern: str) -> str:
    """Return the SHA-256 of the names and contents of all files that match ``pattern`` below a folder."""
    files = sorted(path for path in folder.rglob(pattern) if path.is_file() and "__pycache__" not in path.parts)
    contents = ((path, path.read_bytes()) for path in files)
    return sha256(f"{path.relative_to(folder)}\0{len(data)}\0".encode() + data for path, data in contents)
