"""The ``cudnn`` backend. Without a GPU its bundles are built and verified, and not run."""

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


GROUPED = Case(
    "grouped",
    "conv2d",
    "float16[n, 8, 9, 9] x",
    "t = Conv<pads=[1,1,1,1], group=2>(x, w, b) y = Relu(t)",
    "float16[n, 16, 9, 9] y",
    {"w": half(16, 4, 3, 3), "b": half(16)},
)
VOLUME = Case(
    "volume",
    "conv3d",
    "float16[n, 4, 5, 6, 7] x",
    "t = Conv(x, w) y = Relu(t)",
    "float16[n, 6, 3, 4, 5] y",
    {"w": half(6, 4, 3, 3, 3)},
)
LINE = Case("line", "conv1d", "float16[n, 4, 9] x", "y = Conv(x, w)", "float16[n, 6, 7] y", {"w": half(6, 4, 3)})
TRANSPOSED = Case(
    "transposed",
    "conv_transpose",
    "float16[n, 4, 5, 6] x",
    "y = ConvTranspose<strides=[2,2]>(x, w)",
    "float16[n, 6, 12, 14] y",
    {"w": half(4, 6, 4, 4)},
)
DEPTHWISE = Case(
    "depthwise",
    "depthwise",
    "float16[n, 8, 9, 9] x",
    "y = Conv<group=8>(x, w)",
    "float16[n, 8, 7, 7] y",
    {"w": half(8, 1, 3, 3)},
)


class TestCudnn(PartitionConformance):
    kind = "cudnn"
    values = {
        "operators": ("conv2d",),
        "soname": ("libcudnn.so.9", "libcudnn.so.8"),
        "device": ("A100",),
        "candidates": 2,
        "workspace_mb": 0,
        "allow_tf32": True,
        "tuning": (str(Path(__file__).parent / "no_records.json"),),
        "min_partition_flops": 1,
        "max_partition_depth": 1,
    }
    cases = (GROUPED, VOLUME, LINE, TRANSPOSED, DEPTHWISE)

    def targets(self, **attributes: Any) -> Targets:
        attributes.setdefault("operators", [case.family for case in self.cases])
        return [{"kind": "cuda", "arch": ["sm_80"]}, {"kind": self.kind, **attributes}]

    def test_builds_with_attribute(self, attribute: str, tmp_path: Path) -> None:
        """One convolution: what TVM makes instead takes longer to compile than what is tested."""
        self.cases = (GROUPED,)
        super().test_builds_with_attribute(attribute, tmp_path)

    @pytest.mark.thorough  # as test_cutlass.py
    def test_makes_the_same_everywhere_and_leaves_nothing(self, tmp_path: Path) -> None:
        super().test_makes_the_same_everywhere_and_leaves_nothing(tmp_path)
