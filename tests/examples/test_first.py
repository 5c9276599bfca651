"""``examples/backend-first``: installed from a wheel, and under the conformance suite."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .conftest import EXAMPLES, Run

pytestmark = pytest.mark.slow


def test_it_is_listed(with_first: Run) -> None:
    done = with_first("-m", "packager", "targets", "first")
    assert done.returncode == 0, done.stderr
    assert "packager-backend-first 0.1.0" in done.stdout


def test_it_passes_its_own_tests(with_first: Run, tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "backend-first" / "test_packager_first.py", tmp_path)
    done = with_first("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_packager_first.py")
    assert done.returncode == 0, done.stdout + done.stderr
