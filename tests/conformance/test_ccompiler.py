"""The ``ccompiler`` backend: C from templates."""

from __future__ import annotations

from typing import Any

import pytest

from packager.testing import CASES, PartitionConformance
from packager.testing.compiling import Targets
from tests.conformance.few_alone import FewAlone

pytestmark = pytest.mark.slow


class TestCCompiler(FewAlone, PartitionConformance):
    kind = "ccompiler"
    # tests/integration/onnx/test_ml_*.py, tests/integration/onnx/test_onnx_recurrent.py, and units of the backend
    elsewhere = frozenset(
        f"ccompiler.{name}"
        for name in (
            *("trees", "recurrent", "block_matmul", "conv1d", "conv3d", "resize", "col2im"),
            *("slice", "pad", "flip", "tile", "repeat", "max_pool1d", "max_pool3d", "avg_pool3d"),
        )
    )
    values = {
        "operators": ["conv2d", "softmax"],
        "header": ["<stdint.h>"],
        "opt_level": 1,
        "march": ["haswell"],
        "winograd": 0,
        "fast_math": True,
    }
    cases = tuple(case for case in CASES if case.name != "product_broadcast")
    few = tuple({case.family: case for case in cases}.values())

    def targets(self, **attributes: Any) -> Targets:
        """One CPU where an attribute is the subject: all cases are built for both without."""
        base = {"kind": "llvm", "mcpu": ["x86-64-v3"]} if attributes else {"kind": "llvm"}
        return [base, {"kind": self.kind, **attributes}]
