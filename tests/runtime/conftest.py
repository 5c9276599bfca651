"""Fixtures: the C runtime compiled natively, under sanitizers, and for aarch64."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable

import pytest
from runtime_builder import FLAVOURS, PLAIN, Builder, Flavor


@pytest.fixture(scope="session")
def builders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Flavor], Builder]:
    """The one builder of each flavor."""

    @functools.cache
    def make(flavor: Flavor) -> Builder:
        flavor.require()
        if flavor is PLAIN and platform.machine() not in ("x86_64", "aarch64"):
            pytest.skip(f"bundles do not run on {platform.machine()}")
        return Builder(flavor, tmp_path_factory.mktemp(flavor.name))

    return make


@pytest.fixture(scope="session", params=FLAVOURS, ids=lambda flavor: flavor.name)
def builder(request: pytest.FixtureRequest, builders: Callable[[Flavor], Builder]) -> Builder:
    return builders(request.param)


@pytest.fixture(scope="session")
def plain(builders: Callable[[Flavor], Builder]) -> Builder:
    """A builder for what is checked natively and without sanitizers only."""
    return builders(PLAIN)
