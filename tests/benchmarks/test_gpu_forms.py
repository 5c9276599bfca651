"""gpu/dynamic_shapes.py as far as it goes without a GPU: its models and references, with bundles for the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gpu import dynamic_shapes

pytestmark = pytest.mark.slow


def test_bundles_for_the_cpu_are_right(tmp_path: Path) -> None:
    dynamic_shapes.build(tmp_path, targets=())
    for name in ("encoder", "halves"):
        found = dynamic_shapes._compare(tmp_path / name)
        assert found["right"], (name, found)
    assert dynamic_shapes._refusal(tmp_path / "halves.so")["right"]
