from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sealing import build_bundle, golden_image

from packager.deploy.verify.machine import Machine


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that is right in everything, with golden pairs."""
    return build_bundle(tmp_path_factory.mktemp("good") / "scale.so", golden=golden_image())


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A static bundle that is right in everything."""
    return build_bundle(tmp_path_factory.mktemp("static") / "libscale.a")


@pytest.fixture(scope="session")
def anywhere() -> Machine:
    """A machine of this architecture that runs every test bundle."""
    return Machine(1, platform.machine(), "linux", "2.99", "test", ("avx2", "sse2"))
