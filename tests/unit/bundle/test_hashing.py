from __future__ import annotations

import hashlib
import tracemalloc

import numpy as np
import pytest

from packager.bundle import hashing as chunks
from packager.bundle.hashing import sha256_of_array

WHOLE = np.arange(2 * 6 * 10 * 4, dtype=np.int16).reshape(2, 6, 10, 4)
FORMS = {
    "as it is": WHOLE,
    "transposed": WHOLE.transpose(3, 1, 0, 2),
    "sliced": WHOLE[:, ::2, 1:],
    "reversed": WHOLE[::-1],
    "broadcast": np.broadcast_to(WHOLE[:, :, :1], WHOLE.shape),
    "one row": WHOLE[:1].transpose(0, 3, 2, 1),
    "empty": WHOLE[:0].transpose(3, 2, 1, 0),
    "scalar": np.array(7.5),
}


@pytest.mark.parametrize("limit", [1, 8, 100, 1 << 20])
@pytest.mark.parametrize("form", FORMS)
def test_the_pieces_are_the_bytes_in_row_major_order(form: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", limit)
    array = FORMS[form]
    assert b"".join(chunks.chunks(array)) == array.tobytes()
    assert sha256_of_array(array) == hashlib.sha256(array.tobytes()).hexdigest()


def test_contiguous_arrays_are_not_copied() -> None:
    array = np.arange(12, dtype=np.float32)
    array.flags.writeable = False
    (piece,) = chunks.chunks(array)
    assert np.shares_memory(np.frombuffer(piece, np.uint8), array)


def test_a_view_is_not_copied_whole() -> None:
    view = np.broadcast_to(np.zeros(1 << 10, np.float32)[:, None], (1 << 10, 1 << 15))  # 128 MiB, in another order
    tracemalloc.start()
    sha256_of_array(view)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * chunks.CHUNK_BYTES
