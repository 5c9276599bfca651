"""The ``tensorrt`` backend. Its engines are pending here: bundles are built and verified, and not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packager.testing import Case, PartitionConformance
from packager.testing.compiling import Targets

pytestmark = pytest.mark.slow


def single(*shape: int) -> Any:
    return (np.random.default_rng(len(shape)).standard_normal(shape) / 4).astype(np.float32)


DENSE = Case(
    "dense",
    "matmul",
    "float[4, 8] x",
    "t = MatMul(x, w) y = Relu(t)",
    "float[4, 16] y",
    {"w": single(8, 16)},
)


class TestTensorrt(PartitionConformance):
    kind = "tensorrt"
    values = {
        "library": "tensorrt_rtx",
        "engines": "pending",
        "precision": "fp16",
        "allow_tf32": True,
        "workspace_mb": 64,
        "optimization_level": 1,
        "optimize_for": "middle",
        "int64": True,
        "leave": ("take", "topk"),
        "refit": True,
        "embed_runtime": True,
        "timing_cache": str(Path(__file__).parent / "no_records.json"),
        "min_partition_flops": 1,
        "max_partition_depth": 1,
    }
    cases = (DENSE,)

    def targets(self, **attributes: Any) -> Targets:
        attributes.setdefault("min_partition_flops", 0)
        attributes.setdefault("engines", "pending")
        if attributes.get("embed_runtime"):
            attributes.setdefault("library", "tensorrt_lean")
        return [{"kind": "cuda", "arch": ["sm_80"]}, {"kind": self.kind, **attributes}]

    def test_all_cases_in_one_model(self, tmp_path: Path) -> None:
        """Weights are inside of engines, so equal parts with weights of their own are partitions of their own."""
        assert len(self._primitives(tmp_path / "once", 1)) == 1
        assert len(self._primitives(tmp_path / "twice", 2)) == 2

    @pytest.mark.skip(reason="there is a pattern for each operator of ONNX: tests/tensorrt has those of models")
    def test_every_pattern_is_hit(self, tmp_path: Path) -> None:
        """All of them would be a bundle of a hundred partitions."""
