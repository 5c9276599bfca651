"""The ``cuda`` backend: a code generator. Without a GPU its bundles are built and verified, and not run."""

from __future__ import annotations

from typing import Any

import pytest

from packager.codegen.cuda_toolkit import find_cuda_toolkit
from packager.testing import CASES, Conformance
from packager.testing.compiling import Targets
from tests.conformance.few_alone import FewAlone

# One case per family is compiled alone, all of them together elsewhere in the suite.
ALONE = tuple({case.family: case for case in CASES}.values())

pytestmark = pytest.mark.slow


class TestCuda(FewAlone, Conformance):
    kind = "cuda"
    values = {
        "arch": ("sm_90a",),
        "ptx": ("compute_80",),
        "home": str(find_cuda_toolkit("").nvcc.parents[1]),
    }
    cases = ALONE
    few = ALONE[:3]

    def targets(self, **attributes: Any) -> Targets:
        return [{"kind": "cuda", "arch": ["sm_80"], **attributes}]
