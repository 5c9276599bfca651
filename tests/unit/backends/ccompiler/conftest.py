"""What the tests of the build side share."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep each n-th test where ``CCOMPILER_TEST_EVERY`` is n: test_ccompiler_target.py runs others that way."""
    every = int(os.environ.get("CCOMPILER_TEST_EVERY", "1"))
    items[:] = items[::every]
