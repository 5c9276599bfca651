"""A sample of what ``python -m tests.conformance.onnx.fuzz`` does."""

from __future__ import annotations

import pytest

from tests.conformance.onnx.fuzz import judge_seeds

pytestmark = pytest.mark.slow

SEEDS = range(60)


@pytest.mark.filterwarnings("ignore")
def test_altered_models_are_refused_or_computed_right() -> None:
    findings = list(judge_seeds(SEEDS))
    assert [finding for finding in findings if finding.status in ("failed", "differs")] == []
    assert {finding.status for finding in findings} >= {"refused", "same"}
