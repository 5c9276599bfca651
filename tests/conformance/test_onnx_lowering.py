"""Each of onnx's own operator cases is lowered for a device, or refused with an error of packager's: nothing else.

A part of them has to do, but for the thorough tests; ``python -m tests.conformance.onnx`` builds and runs all, and for
CUDA ``python -m tests.conformance.onnx.gpu build``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx.backend.test.case.node import collect_testcases

from packager.errors import PackagerError
from packager.pipeline.options import BuildOptions
from packager.pipeline.request import make_build_request

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
# Each n-th case, and how many of these are lowered: of onnx 1.23's, without freezing inputs; more is progress.
SAMPLE = {"cpu": (11, 125), "cuda": (29, 47)}
THOROUGH = {"cpu": (1, 1383), "cuda": (5, 277)}
TARGETS = {"cpu": [], "cuda": ["cuda -arch=sm_80"]}


def check(device: str, stride: int, least: int, folder: Path) -> None:
    from packager.lower.lowering import lower
    from packager.pipeline.build import import_model
    from tests.stages import placed

    lowered, strange = 0, []
    for case in collect_testcases(None)[::stride]:
        path = folder / "case.onnx"
        path.write_bytes(case.model.SerializeToString())
        try:
            request = make_build_request(BuildOptions(path, targets=TARGETS[device]))
            lower(placed(import_model(request), (), device=device).model, device)
            lowered += 1
        except PackagerError as error:
            strange += [] if error.message else [f"{case.name}: an error that says nothing"]
        except Exception as error:  # whatever it is, it is a finding
            strange.append(f"{case.name}: {type(error).__name__}: {error}")
    assert not strange
    assert lowered >= least, lowered


@pytest.mark.parametrize("device", SAMPLE)
def test_cases_are_lowered_or_refused(device: str, tmp_path: Path) -> None:
    check(device, *SAMPLE[device], tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("device", THOROUGH)
def test_all_cases_are_lowered_or_refused(device: str, tmp_path: Path) -> None:
    check(device, *THOROUGH[device], tmp_path)
