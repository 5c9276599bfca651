"""What the tests of the build side share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# The CPU feature that a test with this parameter runs: a machine by its name, or an ``-march``.
FEATURES = {"avx512": "avx512vl", "x86-64-v4": "avx512vl", "vnni": "avx512_vnni"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep each n-th test where ``CCOMPILER_TEST_EVERY`` is n: test_ccompiler_target.py runs others that way."""
    every = int(os.environ.get("CCOMPILER_TEST_EVERY", "1"))
    items[:] = items[::every]


@pytest.fixture(autouse=True)
def _cpu_that_runs_it(request: pytest.FixtureRequest) -> None:
    """Skip a test whose parameters ask for code that this machine's CPU cannot run."""
    call = getattr(request.node, "callspec", None)
    for value in call.params.values() if call else ():
        feature = FEATURES.get(value if isinstance(value, str) else getattr(value, "name", ""))
        if feature and feature not in Path("/proc/cpuinfo").read_text():
            pytest.skip(f"this machine has no {feature}")
