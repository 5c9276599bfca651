"""The ``cublas`` backend. Without a GPU its bundles are built and verified, and not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packager.testing import Case, PartitionConformance
from packager.testing.compiling import Targets

pytestmark = pytest.mark.slow


def half(*shape: int) -> Any:
    return (np.random.default_rng(len(shape)).standard_normal(shape) / 4).astype(np.float16)


DENSE = Case(
    "dense",
    "dense",
    "float16[n, 32] x",
    "t = MatMul(x, w) a = Add(t, b) y = Relu(a)",
    "float16[n, 64] y",
    {"w": half(32, 64), "b": half(64)},
)
BATCHES = Case(
    "batches", "dense", "float16[n, 8, 16] x, float16[n, 16, 24] w", "y = MatMul(x, w)", "float16[n, 8, 24] y"
)
POINTWISE = Case(
    "pointwise",
    "conv2d",
    "float16[n, 8, 9, 9] x",
    "t = Conv(x, w, b) y = Relu(t)",
    "float16[n, 16, 9, 9] y",
    {"w": half(16, 8, 1, 1), "b": half(16)},
)


class TestCublas(PartitionConformance):
    kind = "cublas"
    values = {
        "operators": ("dense",),
        "soname": ("libcublasLt.so.13",),
        "candidates": 2,
        "workspace_mb": 0,
        "gelu_tanh": False,
        "weights": "kn",
        "tuning": (str(Path(__file__).parent / "no_records.json"),),
        "min_partition_flops": 1,
        "max_partition_depth": 1,
    }
    cases = (DENSE, BATCHES, POINTWISE)

    def targets(self, **attributes: Any) -> Targets:
        return [{"kind": "cuda", "arch": ["sm_80"]}, {"kind": self.kind, **attributes}]

    def test_builds_with_attribute(self, attribute: str, tmp_path: Path) -> None:
        """One product: what TVM makes instead takes longer to compile than what is tested."""
        self.cases = (DENSE,)
        super().test_builds_with_attribute(attribute, tmp_path)

    @pytest.mark.thorough  # as test_cutlass.py
    def test_makes_the_same_everywhere_and_leaves_nothing(self, tmp_path: Path) -> None:
        super().test_makes_the_same_everywhere_and_leaves_nothing(tmp_path)
