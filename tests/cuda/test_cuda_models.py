"""Whole models to CUDA bundles, on a machine that has no GPU: what is compiled, and for which architectures."""

from __future__ import annotations

import time
from pathlib import Path

import onnx.backend.test
import pytest

import packager

LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"
MODELS = ["resnet50", "inception_v1", "shufflenet"]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", MODELS)
def test_image_models(name: str, tmp_path: Path) -> None:
    start = time.perf_counter()
    bundle = packager.build(
        LIGHT / f"light_{name}.onnx", tmp_path / "model.so", targets="cuda -arch=sm_90a", cache=False
    )
    print(f"{name}: built in {time.perf_counter() - start:.1f} s")
    manifest = packager.inspect(bundle).manifest
    assert manifest.requirements.cuda is not None
    assert manifest.requirements.cuda.archs == ("sm_90a",)
    (record,) = [record for record in manifest.backends if record.primitives]
    assert record.kind == "cuda"
    ops = {op for primitive in record.primitives for op in primitive.ops}
    assert "conv2d" in ops
    assert sum("conv2d" in primitive.ops and "relu" in primitive.ops for primitive in record.primitives) > 1
