"""A sample of the cases that ``python -m tests.conformance.onnx`` judges in full."""

from __future__ import annotations

import json

import pytest
from one_cpu import targets_here

from tests.conformance.onnx.cases import all_cases
from tests.conformance.onnx.judge import judge_all
from tests.conformance.onnx.table import VERDICTS

pytestmark = pytest.mark.slow

STRIDES = [127, pytest.param(37, marks=pytest.mark.thorough)]  # primes: cases of one operator are neighbors


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stride", STRIDES)
def test_cases_are_judged_as_before(stride: int) -> None:
    expected = json.loads(VERDICTS.read_text())["verdicts"]
    found = judge_all(all_cases()[::stride], targets_here(), lambda _verdict: None, lanes=1)
    changed = [f"{v.name}: {v.status}, was {expected[v.name]}: {v.message}" for v in found.values()]
    assert [text for text, v in zip(changed, found.values(), strict=True) if v.status != expected[v.name]] == []
