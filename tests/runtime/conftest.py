"""Fixtures: the C runtime compiled natively, under sanitizers, and for aarch64."""

from __future__ import annotations

import platform
import shutil

import pytest
from runtime_builder import FLAVOURS, PLAIN, Builder, Flavour


def make_builder(flavour: Flavour, factory: pytest.TempPathFactory) -> Builder:
    for tool in (flavour.cc, *flavour.runner[:1]):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    if flavour is PLAIN and platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip(f"bundles do not run on {platform.machine()}")
    return Builder(flavour, factory.mktemp(flavour.name))


@pytest.fixture(scope="session", params=FLAVOURS, ids=lambda flavour: flavour.name)
def builder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """One builder for each flavour."""
    return make_builder(request.param, tmp_path_factory)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """A builder for what is checked natively and without sanitizers only."""
    return make_builder(PLAIN, tmp_path_factory)
