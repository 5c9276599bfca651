"""The ``ccompiler`` backend: C from templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from packager.testing import CASES, PartitionConformance
from packager.testing.compiling import Targets

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
    few = tuple({case.family: case for case in cases}.values())

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """In CI build one case of each family alone: all are built together elsewhere in the suite."""
        if metafunc.function.__name__ != "test_computes_what_numpy_does":
            super().pytest_generate_tests(metafunc)
            return
        alone = [case if case in self.few else pytest.param(case, marks=pytest.mark.thorough) for case in self.cases]
        metafunc.parametrize("case", alone, ids=[case.name for case in self.cases])

    def test_builds_with_attribute(self, attribute: str, tmp_path: Path) -> None:
        """Of each family one case: what the attributes change is the same for all of it."""
        self.cases = self.few
        super().test_builds_with_attribute(attribute, tmp_path)

    def targets(self, **attributes: Any) -> Targets:
        """One CPU where an attribute is the subject: all cases are built for both without."""
        base = {"kind": "llvm", "mcpu": ["x86-64-v3"]} if attributes else {"kind": "llvm"}
        return [base, {"kind": self.kind, **attributes}]
