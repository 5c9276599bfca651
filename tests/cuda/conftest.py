"""The C runtime's own tests have the builder that those of its CUDA part use, too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from packager.deploy.measure.cuda_memory import Device
from packager.errors import RunError

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))


@pytest.fixture(scope="module")
def real_gpu() -> None:
    """Skip tests that run on a GPU where the driver has none, with what it says."""
    try:
        Device(0)
    except RunError as error:
        pytest.skip(error.message)
