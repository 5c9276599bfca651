"""Fixtures: the C runtime compiled natively, under sanitizers, and for aarch64."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable

import pytest
from runtime_builder import FLAVOURS, PLAIN, Builder, Flavour


@pytest.fixture(scope="session")
def builders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Flavour], Builder]:
    """The one builder of each flavour."""

    @functools.cache
    def make(flavour: Flavour) -> Builder:
        flavour.require()
        if flavour is PLAIN and platform.machine() not in ("x86_64", "aarch64"):
            pytest.skip(f"bundles do not run on {platform.machine()}")
        return Builder(flavour, tmp_path_factory.mktemp(flavour.name))

    return make


@pytest.fixture(scope="session", params=FLAVOURS, ids=lambda flavour: flavour.name)
def builder(request: pytest.FixtureRequest, builders: Callable[[Flavour], Builder]) -> Builder:
    return builders(request.param)


@pytest.fixture(scope="session")
def plain(builders: Callable[[Flavour], Builder]) -> Builder:
    """A builder for what is checked natively and without sanitizers only."""
    return builders(PLAIN)
