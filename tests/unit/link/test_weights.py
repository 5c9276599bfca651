from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from packager.errors import UsageError
from packager.ir.model import NamedArray
from packager.link.weights import MAX_ARCHIVE_BYTES, are_external


def model_of(nbytes: int) -> Any:
    """What a lowered model has that counts here: one constant of this size, which takes no memory."""
    return SimpleNamespace(constants={"w": NamedArray(np.broadcast_to(np.uint8(0), (nbytes,)), ("w",))})


@pytest.mark.parametrize("nbytes", [1, MAX_ARCHIVE_BYTES, MAX_ARCHIVE_BYTES + 1, 6 * 10**9])
def test_a_library_holds_weights_of_any_size(nbytes: int) -> None:
    assert not are_external(model_of(nbytes), None, static=False)
    assert not are_external(model_of(nbytes), "embedded", static=False)
    assert are_external(model_of(nbytes), "external", static=False)


def test_an_archive_holds_what_relative_addresses_reach() -> None:
    assert not are_external(model_of(MAX_ARCHIVE_BYTES), None, static=True)
    assert are_external(model_of(MAX_ARCHIVE_BYTES + 1), None, static=True)
    with pytest.raises(UsageError, match=r"an archive cannot hold 5\.6 GiB") as caught:
        are_external(model_of(6 * 10**9), "embedded", static=True)
    assert "external" in (caught.value.hint or "")
