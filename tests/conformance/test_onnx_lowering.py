"""Each of onnx's own operator cases is lowered for a device, or refused with an error of packager's: nothing else.

For CUDA a part of them has to do: ``python -m tests.conformance.onnx.gpu build`` takes all.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx.backend.test.case.node import collect_testcases

from packager.errors import PackagerError
from packager.request import make_build_request

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
STRIDE = {"cpu": 1, "cuda": 5}
LOWERED = {"cpu": 1383, "cuda": 277}  # of onnx 1.23's, without freezing inputs; more is progress
TARGETS = {"cpu": [], "cuda": ["cuda -arch=sm_80"]}


@pytest.mark.parametrize("device", LOWERED)
def test_every_case_is_lowered_or_refused(device: str, tmp_path: Path) -> None:
    from packager.lower import lower
    from packager.partition import partition
    from packager.pipeline import import_model

    lowered, strange = 0, []
    for case in collect_testcases(None)[:: STRIDE[device]]:
        path = tmp_path / "case.onnx"
        path.write_bytes(case.model.SerializeToString())
        try:
            request = make_build_request(path, targets=TARGETS[device])
            lower(partition(import_model(request), (), None, device).model, device)
            lowered += 1
        except PackagerError as error:
            strange += [] if error.message else [f"{case.name}: an error that says nothing"]
        except Exception as error:  # whatever it is, it is a finding
            strange.append(f"{case.name}: {type(error).__name__}: {error}")
    assert not strange
    assert lowered >= LOWERED[device], lowered
