"""The ``cuda`` backend: a code generator. Without a GPU its bundles are built and verified, and not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from packager.codegen.cuda_toolkit import find_cuda_toolkit
from packager.testing import CASES, Conformance
from packager.testing.compiling import Targets

# One case per family is compiled alone, all of them together elsewhere in the suite.
ALONE = tuple({case.family: case for case in CASES}.values())

pytestmark = pytest.mark.slow


class TestCuda(Conformance):
    kind = "cuda"
    values = {
        "arch": ("sm_90a",),
        "ptx": ("compute_80",),
        "home": str(find_cuda_toolkit("").nvcc.parents[1]),
    }
    cases = ALONE
    few = ALONE[:3]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """In CI build few cases alone: nvcc compiles each, and all of them together elsewhere in the suite."""
        if metafunc.function.__name__ != "test_computes_what_numpy_does":
            super().pytest_generate_tests(metafunc)
            return
        alone = [case if case in self.few else pytest.param(case, marks=pytest.mark.thorough) for case in self.cases]
        metafunc.parametrize("case", alone, ids=[case.name for case in self.cases])

    def test_builds_with_attribute(self, attribute: str, tmp_path: Path) -> None:
        """Of few cases: the attributes are nvcc's, whatever it compiles."""
        self.cases = self.few
        super().test_builds_with_attribute(attribute, tmp_path)

    def targets(self, **attributes: Any) -> Targets:
        return [{"kind": "cuda", "arch": ["sm_80"], **attributes}]
