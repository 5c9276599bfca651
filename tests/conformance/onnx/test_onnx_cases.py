"""The committed verdicts on onnx's operator cases."""

from __future__ import annotations

import json

import pytest

from tests.conformance.onnx.cases import all_cases
from tests.conformance.onnx.table import DOCUMENT, VERDICTS

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_the_table_is_of_all_cases_and_none_is_wrong() -> None:
    expected = json.loads(VERDICTS.read_text())["verdicts"]
    assert set(expected) == {case.name for case in all_cases()}
    assert set(expected.values()) <= {"right", "refused"}
    right = sum(expected[case.name] == "right" for case in all_cases() if case.kind == "node")
    assert f"| operators | 1884 | {right} |" in DOCUMENT.read_text()
