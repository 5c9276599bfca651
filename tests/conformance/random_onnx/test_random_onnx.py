"""Random models are computed as onnxruntime does, or refused by an error."""

from __future__ import annotations

import collections

import pytest
from one_cpu import targets_here

from tests.conformance.random_onnx.judge import judge_seeds

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(1000), marks=pytest.mark.thorough)], ids=str)
def test_random_models_are_computed_right_or_refused(seeds: range) -> None:
    verdicts = list(judge_seeds(seeds, targets_here()))
    assert [verdict for verdict in verdicts if verdict.status not in ("right", "refused")] == []
    counts = collections.Counter(verdict.status for verdict in verdicts)
    assert counts["right"] >= 0.9 * len(verdicts)
