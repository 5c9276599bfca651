"""A sample of what ``python -m tests.conformance.onnx.fuzz`` does."""

from __future__ import annotations

import pytest

from tests.conformance.onnx.fuzz import judge_seeds

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 60), marks=pytest.mark.thorough)], ids=str)
def test_altered_models_are_refused_or_computed_right(seeds: range) -> None:
    findings = list(judge_seeds(seeds))
    assert [finding for finding in findings if finding.status in ("failed", "differs")] == []
    assert {finding.status for finding in findings} >= {"refused", "same"}
