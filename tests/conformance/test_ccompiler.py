"""The ``ccompiler`` backend: C from templates."""

from __future__ import annotations

import pytest

from packager.testing import CASES, PartitionConformance

pytestmark = pytest.mark.slow


class TestCCompiler(PartitionConformance):
    kind = "ccompiler"
    values = {
        "operators": ["conv2d", "softmax"],
        "header": ["<stdint.h>"],
        "opt_level": 1,
        "march": ["haswell"],
        "winograd": False,
        "fast_math": True,
    }
    cases = tuple(case for case in CASES if case.name != "product_broadcast")
