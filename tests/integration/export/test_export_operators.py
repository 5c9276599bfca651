"""What is imported of onnx's own operator cases is written as ONNX again, and onnxruntime gets the right results."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from packager.errors import PackagerError
from packager.pipeline.export import export
from tests.conformance.onnx.cases import Case, all_cases, frozen_inputs
from tests.conformance.onnx.compare import difference

pytestmark = pytest.mark.slow

STRIDE = 12
# What onnxruntime says of types that it has no kernel for, and of bfloat16 arrays.
NO_KERNEL = ("NOT_IMPLEMENTED", "can't be converted to MLDataType")


def judge(case: Case, folder: Path) -> str:
    """Return ``refused`` by packager, ``no kernel``, ``right``, or what is wrong."""
    (folder / "model.onnx").write_bytes(case.model)
    made, frozen = folder / "written.onnx", {}
    try:
        try:
            export(folder / "model.onnx", made)
        except PackagerError:
            frozen = {name: np.asarray(case.inputs[name]) for name in frozen_inputs(case)}
            if not frozen:
                raise
            export(folder / "model.onnx", made, freeze=frozen)
    except PackagerError:
        return "refused"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])
        feeds = {value.name: case.inputs[value.name] for value in session.get_inputs()}
        outputs: Sequence[np.ndarray] = session.run(None, feeds)
    except Exception as error:  # onnxruntime raises errors of many types
        return "no kernel" if any(text in str(error) for text in NO_KERNEL) else str(error)[:300]
    return difference(case, outputs) or "right"


def judge_all(cases: Sequence[Case], folder: Path) -> dict[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: judge(case, folder) for case in cases}


def check(cases: Sequence[Case], folder: Path, least: float) -> None:
    verdicts = judge_all(cases, folder)
    wrong = {name: verdict for name, verdict in verdicts.items() if verdict not in ("right", "refused", "no kernel")}
    assert not wrong
    assert sum(verdict == "right" for verdict in verdicts.values()) >= least * len(cases)


def test_a_sample_of_the_cases_is_right_or_refused(tmp_path: Path) -> None:
    check(all_cases()[::STRIDE], tmp_path, 0.7)


@pytest.mark.thorough
def test_all_cases_are_right_or_refused(tmp_path: Path) -> None:
    check(all_cases(), tmp_path, 0.75)
