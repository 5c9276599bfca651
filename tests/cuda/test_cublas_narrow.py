"""8-bit products by cuBLASLt on a real GPU of sm_90, beside onnxruntime: sums of integers bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import packager

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("real_gpu")]
E4M3 = ml_dtypes.float8_e4m3fn
TARGETS = ["cuda -arch=sm_90a", "cublas"]
QDQ = """xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) wd = DequantizeLinear <axis = 1> (w, sw, zw)
  p = MatMul(xd, wd)"""


def ran(folder: Path, text: str, arrays: dict[str, Any], **inputs: Any) -> tuple[list[Any], list[Any]]:
    """Return what a bundle computes, and what onnxruntime does."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()
    )
    path = folder / "model.onnx"
    onnx.save(model, path)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # it fuses what it has not
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    built = packager.build(path, folder / "model.so", targets=TARGETS, dims={"n": (1, 64)})
    with packager.load(built) as bundle, bundle.session() as own:
        outputs = own.run(inputs)
    return [np.asarray(outputs[one.name]) for one in session.get_outputs()], session.run(None, inputs)


@pytest.mark.parametrize("rows", [1, 17, 64])
@pytest.mark.parametrize("weights", ["int8", "uint8"])
@pytest.mark.parametrize("zero", [0, 128, 201])
def test_sums_of_uint8(zero: int, weights: str, rows: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(zero)
    limits = np.iinfo(weights)
    w = rng.integers(limits.min, limits.max + 1, (64, 48)).astype(weights)
    zeros = rng.integers(limits.min, limits.max + 1, 48).astype(weights)
    u = rng.integers(0, 256, (rows, 2, 64)).astype(np.uint8)
    text = "net (uint8[n,2,64] u) => (int32[n,2,48] y) { y = MatMulInteger(u, w, z, zw) }"
    (got,), (want,) = ran(tmp_path, text, {"w": w, "z": np.array(zero, np.uint8), "zw": zeros}, u=u)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("kind", "zero"), [("int8", 0), ("uint8", 3)])
@pytest.mark.parametrize("tail", ["a = Identity(p)", "b0 = Add(p, b) a = Relu(b0)"])
def test_layers_of_uint8(tail: str, kind: str, zero: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    limits = np.iinfo(kind)
    arrays: dict[str, Any] = {"s": np.float32(0.05), "z": np.uint8(121), "t": np.float32(0.2)}
    arrays |= {"w": rng.integers(limits.min, limits.max + 1, (64, 48)).astype(kind), "zw": np.full(48, zero, kind)}
    arrays |= {"sw": rng.random(48, np.float32) * np.float32(0.01) + np.float32(0.005), "b": rng.random(48, np.float32)}
    text = f"net (float[n,64] x) => (uint8[n,48] y) {{ {QDQ} {tail} y = QuantizeLinear(a, t, z) }}"
    x = rng.standard_normal((9, 64)).astype(np.float32) * 2
    (got,), (want,) = ran(tmp_path, text, arrays, x=x)
    apart = np.abs(got.astype(int) - want)
    assert apart.max() <= 1
    assert (apart == 0).mean() > 0.99


@pytest.mark.parametrize("rows", [1, 17, 64])
@pytest.mark.parametrize("tail", ["y = Identity(p)", "a = Add(p, b) y = Relu(a)", "a = Add(p, b) y = Add(a, r)"])
def test_scales_of_columns(tail: str, rows: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    arrays: dict[str, Any] = {"s": np.float16(0.5), "z": np.zeros((), E4M3), "zw": np.zeros(48, E4M3)}
    arrays |= {"w": rng.standard_normal((64, 48)).astype(E4M3), "b": rng.standard_normal(48).astype(np.float16)}
    arrays["sw"] = (2.0 ** rng.integers(-6, 0, 48)).astype(np.float16)
    text = f"net (float16[n,64] x, float16[n,48] r) => (float16[n,48] y) {{ {QDQ} {tail} }}"
    x = (rng.standard_normal((rows, 64)) * 2).astype(E4M3).astype(np.float16)
    r = rng.standard_normal((rows, 48)).astype(np.float16)
    (got,), (want,) = ran(tmp_path, text, arrays, x=x, r=r)
    np.testing.assert_allclose(got.astype(float), want, rtol=5e-3, atol=5e-3)
