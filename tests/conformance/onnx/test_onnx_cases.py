"""The committed verdicts on onnx's operator cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conformance.carried.parcel import read_index
from tests.conformance.onnx.cases import all_cases
from tests.conformance.onnx.gpu import TARGET
from tests.conformance.onnx.grouping import ParcelBuilder
from tests.conformance.onnx.others import TVM_RIGHT
from tests.conformance.onnx.table import CUDA_VERDICTS, DOCUMENT, VERDICTS, render

pytestmark = pytest.mark.filterwarnings("ignore")


def test_what_is_right_on_the_cpu_is_right_on_cuda_or_refused() -> None:
    here, cuda = (json.loads(path.read_text())["verdicts"] for path in (VERDICTS, CUDA_VERDICTS))
    assert set(cuda) == {name for name, status in here.items() if status == "right"}
    assert set(cuda.values()) <= {"right", "refused"}
    assert list(cuda.values()).count("right") >= 0.9 * len(cuda)
    assert set(json.loads(TVM_RIGHT.read_text())["right"]) <= set(here)


@pytest.mark.slow
def test_the_table_is_of_all_cases_and_none_is_wrong() -> None:
    expected = json.loads(VERDICTS.read_text())["verdicts"]
    assert set(expected) == {case.name for case in all_cases()}
    assert set(expected.values()) <= {"right", "refused"}
    assert DOCUMENT.read_text() == render(all_cases())


@pytest.mark.slow
def test_cases_are_built_for_cuda_without_a_gpu(tmp_path: Path) -> None:
    record = json.loads(VERDICTS.read_text())
    right = [case for case in all_cases() if record["verdicts"][case.name] == "right"]
    told: list[str] = []
    builder = ParcelBuilder(tmp_path, [TARGET], frozenset(record["frozen"]), told.append)
    builder.build(right[:: len(right) // 11])
    runs, not_built = read_index(tmp_path)
    assert len(runs) == 12, told
    assert not not_built
    assert {run.bundle for run in runs} == {"cases_0"}, "one bundle has them all"
