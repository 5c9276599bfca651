"""The ``llvm`` backend: a code generator, which compiles what no one else takes."""

from __future__ import annotations

import pytest

from packager.testing import CASES, Conformance

# One case per family is compiled alone, all of them together elsewhere in the suite.
ALONE = tuple({case.family: case for case in CASES}.values())

pytestmark = pytest.mark.slow


class TestLlvm(Conformance):
    kind = "llvm"
    values = {"mtriple": "aarch64-linux-gnu", "mcpu": ["x86-64-v4"], "micro_batch": 1}
    cases = ALONE
