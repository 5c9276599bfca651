"""Convolutional nets to CUDA bundles, on a machine that has no GPU: what is compiled, and for which architectures."""

from __future__ import annotations

from pathlib import Path

import onnx.backend.test
import pytest
from model_builds import build_and_compare, having

LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"
MODELS = ["shufflenet", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("resnet50", "inception_v1"))]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", MODELS)
def test_image_models(name: str, tmp_path: Path) -> None:
    manifest = build_and_compare(LIGHT / f"light_{name}.onnx", tmp_path / "model.so")
    assert sum("relu" in primitive.ops for primitive in having(manifest, "conv2d")) > 1
