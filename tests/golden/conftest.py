"""``pytest tests/golden --rewrite-golden`` writes what is generated now as what is expected from now on."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag; it is there when this folder is named on the command line."""
    parser.addoption("--rewrite-golden", action="store_true", help="rewrite the files in tests/golden/expected")


@pytest.fixture(scope="session")
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether to write the expected files and not to compare with them."""
    return bool(request.config.getoption("--rewrite-golden", default=False))
