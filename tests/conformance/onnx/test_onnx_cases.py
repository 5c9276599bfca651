"""Cases of onnx's operators against the committed verdicts, and altered models: a sample of both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conformance.onnx.cases import all_cases
from tests.conformance.onnx.fuzz import judge_seeds
from tests.conformance.onnx.judge import judge_all

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
EXPECTED = Path(__file__).with_name("verdicts.json")
EVERY = 12  # of the cases; `python -m tests.conformance.onnx` judges all of them
SEEDS = 60


@pytest.mark.parametrize("half", [0, 1])
def test_no_case_is_worse_than_it_was(half: int) -> None:
    expected = json.loads(EXPECTED.read_text())["verdicts"]
    cases = all_cases()[half * (EVERY // 2) :: EVERY]
    found = judge_all(cases, (), lambda _verdict: None, 1)
    bad = {name: v.message for name, v in found.items() if v.status in ("wrong", "failed")}
    assert not bad
    lost = {name: v.message for name, v in found.items() if expected[name] == "right" and v.status != "right"}
    assert not lost


def test_the_table_is_of_all_cases_and_none_is_wrong() -> None:
    expected = json.loads(EXPECTED.read_text())["verdicts"]
    assert set(expected) == {case.name for case in all_cases()}
    assert set(expected.values()) <= {"right", "refused"}


def test_altered_models_are_refused_or_computed_right() -> None:
    findings = list(judge_seeds(range(SEEDS)))
    assert [f for f in findings if f.status in ("failed", "differs")] == []
    assert {finding.status for finding in findings} >= {"refused", "same"}
