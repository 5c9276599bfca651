"""For all tests: the session's own build cache, and which slow tests CI runs."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# CI's machine may be busy: how long an example takes says nothing of the code.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Point packager, in this process and in those that it starts, at a cache folder that is empty at first.

    The workers of a session share it: what one has compiled another need not. Tests of cold builds make their own.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "xdg-cache"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield


@pytest.hookimpl(tryfirst=True)  # before fixtures
def pytest_runtest_setup() -> None:
    """Have each test draw the same numbers, whatever its worker ran before it."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what tests/thorough.txt lists as thorough, and slow cases of a ``sampled(n)`` test, all but every n-th.

    A case with a parameter value that none of those has stays as well, so CI sees each value at least once, unless the
    test is marked ``sampled(n, every_value=False)``.
    """
    tests: dict[str, list[Any]] = {}
    lines = (Path(__file__).parent / "thorough.txt").read_text().splitlines()
    listed = tuple(line for line in lines if line and not line.startswith("#"))
    for item in items:
        if item.nodeid.startswith(listed):
            item.add_marker(pytest.mark.thorough)
        if item.get_closest_marker("sampled") and item.get_closest_marker("slow"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        marker = cases[0].get_closest_marker("sampled")
        (stride,), every_value = marker.args, marker.kwargs.get("every_value", True)
        values = [{(name, id(value)) for name, value in case.callspec.params.items()} for case in cases]
        seen = set().union(*values[::stride])
        for number, case in enumerate(cases):
            if number % stride and (not every_value or values[number] <= seen):
                case.add_marker(pytest.mark.thorough)
            seen |= values[number]
