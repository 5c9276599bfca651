"""A third party's backend that is installed for the tests of loaded libraries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from packager.backends import registry as backends

THIRD_PARTY = Path(__file__).parents[2] / "third_party"


@pytest.fixture(scope="session", autouse=True)
def installed_loader() -> Iterator[None]:
    """Make the distribution in tests/third_party one of those that are installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(THIRD_PARTY))
        backends._third_party.cache_clear()
        yield
    backends._third_party.cache_clear()
