"""The TensorRT sample: its bundle with a pending engine, finalized, and its program where there is no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

import packager
from packager.bundle.gpu.engines import read_engines
from packager.deploy.finalize.finalizer import finalize

from .conftest import SAMPLES, Run, import_sample
from .test_bert_cutlass import has_driver

onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.slow


@pytest.mark.skipif(has_driver(), reason="this machine has a driver")
def test_built_here_finalized_there(tmp_path: Path, run_deployed: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("nvidia", "tensorrt_rtx_bindings"):
        pytest.importorskip(module)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    onnx.save(import_sample("bert_cutlass/make_model.py").make_model(), tmp_path / "bert.onnx")
    targets = ["cuda -arch=sm_86", "tensorrt -library=tensorrt_rtx -engines=pending"]
    options = {"targets": targets, "dims": {"n": 8}, "precision": "fp16", "golden": 0}
    bundle = packager.build(tmp_path / "bert.onnx", tmp_path / "bert.so", **options)
    finalize(bundle, tmp_path / "final.so", use="engines")
    assert [record.state for record in read_engines(tmp_path / "final.so")] == ["appended"]
    done = run_deployed([SAMPLES / "tensorrt" / "run.py", tmp_path / "final.so"])
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.startswith("this machine does not run the bundle: libcuda.so.1 ")
