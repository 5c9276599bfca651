"""gpu_forms.py as far as it goes without a GPU: its models and references, with bundles for the CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import gpu_forms

pytestmark = pytest.mark.slow


def test_bundles_for_the_cpu_are_right(tmp_path: Path) -> None:
    gpu_forms.build(tmp_path, targets=())
    for name in ("encoder", "halves"):
        found = gpu_forms._compare(tmp_path / name)
        assert found["right"], (name, found)
    assert gpu_forms._refusal(tmp_path / "halves.so")["right"]
