"""What the models of gpu/cublas.py are compared with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from benchmarks.gpu.cublas_cases import quantized
from benchmarks.harness.gpu import error


@pytest.mark.parametrize("kind", ["int8", "float8_e4m3fn"])
def test_a_quantized_perceptron(kind: str, tmp_path: Path) -> None:
    """onnxruntime computes the same of the model's file."""
    ((inputs, wanted),) = quantized(kind, tmp_path / "model.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # it fuses what it has not
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", options, providers=["CPUExecutionProvider"])
    (got,) = session.run(None, dict(inputs))
    assert np.ptp(got) > 10
    assert error(got, wanted["y"]) < 1e-5
