"""Convolutions of few channels as products of gathered windows: what they compute, on the CPU, and the CUDA code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import tvm
from tvm import relax
from tvm_machine import compute

from packager.ir.model import ImportedModel
from packager.ir.primitives import Kernel
from packager.lower.cuda.kernels import lower_cuda_kernels
from packager.lower.lowering import lower
from packager.pipeline.build import import_model
from packager.pipeline.options import BuildOptions
from packager.pipeline.request import Request, make_build_request
from packager.transforms.layout.channels_last import to_channels_last
from tests.stages import placed, prepared_for

pytestmark = pytest.mark.slow

TARGETS = ("cuda -arch=sm_80", "cutlass")
ONE = """
<ir_version: 8, opset_import: ["": 17]>
net (float[n,{c},13,11] x) => (float[n,o,h,w] y) {{ a = Conv <{attributes}> (x, w, b) y = Relu(a) }}
"""
BETWEEN = """
<ir_version: 8, opset_import: ["": 17]>
net (float[n,16,9,9] x) => (float[n,25,8] y, float[n,5,5,8] z) {
  a = Conv <pads = [1, 1, 1, 1]> (x, v) b = Relu(a)
  c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (b, w) d = Relu(c)
  f = Reshape(d, flat) t = Transpose <perm = [0, 2, 1]> (f) y = Sigmoid(t)
  z = Transpose <perm = [0, 2, 3, 1]> (d)
}
"""


def model_of(text: str, **shapes: tuple[int, ...]) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(text)
    arrays: dict[str, Any] = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    if "flat" in text:
        arrays["flat"] = np.array([0, 8, 25])
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


def between() -> onnx.ModelProto:
    return model_of(BETWEEN, v=(10, 16, 3, 3), w=(8, 10, 3, 3))


def requested(model: onnx.ModelProto, path: Path, precision: str | None) -> tuple[Request, ImportedModel]:
    path.write_bytes(model.SerializeToString())
    request = make_build_request(BuildOptions(path, targets=TARGETS, dims={"n": (1, 4)}, precision=precision))
    return request, import_model(request)


def prepared(model: onnx.ModelProto, path: Path, precision: str | None = None) -> tuple[tvm.IRModule, list[Any]]:
    """Return the module that the cutlass backend is shown, and its constants."""
    request, imported = requested(model, path, precision)
    model = prepared_for(imported, request.targets.specialized, "cuda")
    return model.module, [constant.array for constant in model.constants.values()]


def expected(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(result) for result in session.run(None, {"x": x})]


@pytest.mark.parametrize(
    ("c", "window", "attributes"),
    [
        (3, (7, 7), "pads = [3, 3, 3, 3], strides = [2, 2]"),
        (3, (3, 3), "pads = [1, 1, 1, 1]"),
        (3, (3, 4), "strides = [3, 4]"),
        (1, (5, 5), "pads = [0, 1, 4, 2], strides = [1, 2]"),
        (1, (5, 4), "dilations = [2, 3], pads = [2, 2, 2, 2]"),
        (10, (3, 3), "dilations = [2, 1], strides = [2, 1], pads = [1, 0, 2, 0]"),
        (15, (1, 1), "strides = [5, 2]"),
    ],
)
def test_products_of_windows_compute_the_same(c: int, window: tuple[int, int], attributes: str, tmp_path: Path) -> None:
    """Zeros are masked numbers of the image's edge: an infinity there changes no place that does not see it."""
    model = model_of(ONE.format(c=c, attributes=attributes), w=(8, c, *window), b=(8,))
    module, constants = prepared(model, tmp_path / "net.onnx")
    text = module["main"].script()
    assert text.count("R.matmul") == text.count("gather_windows") == 1
    assert "conv2d" not in text
    x = np.random.default_rng(1).standard_normal((3, c, 13, 11), np.float32)
    x[0, 0, 0, 0] = np.inf
    (want,), (got,) = expected(model, x), compute(module, [x, *constants])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("precision", "tolerance"), [(None, 1e-5), ("fp16", 5e-3), ("bf16", 4e-2)])
def test_windows_of_what_is_channels_last(precision: str | None, tolerance: float, tmp_path: Path) -> None:
    """The model's own transposes to NHWC, and of all places as rows, cancel with those of its layout."""
    model = between()
    module, constants = prepared(model, tmp_path / "net.onnx", precision)
    text = module["main"].script()
    assert (text.count("R.nn.conv2d"), text.count("R.matmul"), text.count("gather_windows")) == (1, 1, 1)
    assert text.count("permute_dims") == 1, "of the input"
    x = np.random.default_rng(1).standard_normal((2, 16, 9, 9), np.float32)
    for got, want in zip(compute(module, [x, *constants]), expected(model, x), strict=True):
        assert np.linalg.norm(got - want) / np.linalg.norm(want) < tolerance


def test_transposes_of_the_model_cancel_without_products(tmp_path: Path) -> None:
    """As on the CPU: there poolings and convolutions are channels last where a backend wants them so."""
    model = between()
    _, imported = requested(model, tmp_path / "net.onnx", None)
    module = to_channels_last(imported.module, len(imported.signature.inputs))
    module = relax.transform.DeadCodeElimination()(module)
    text = module["main"].script()
    assert text.count("R.nn.conv2d") == 2
    assert text.count("permute_dims") == 3, "of the input and of the weights"
    x = np.random.default_rng(1).standard_normal((2, 16, 9, 9), np.float32)
    constants = [constant.array for constant in imported.constants().values()]
    for got, want in zip(compute(module, [x, *constants]), expected(model, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [7, 3], ids=["each line filled up", "the end filled up"])
def test_windows_are_gathered_by_vectors(window: int, tmp_path: Path) -> None:
    """And no load waits for a condition."""
    text = ONE.format(c=3, attributes="pads = [1, 1, 1, 1]")
    request, imported = requested(model_of(text, w=(8, 3, window, window), b=(8,)), tmp_path / "net.onnx", "fp16")
    lowered = lower(placed(imported, request.targets.specialized, device="cuda").model, "cuda")
    kernels = [f for group in lowered.groups.values() for f in group.functions if isinstance(f, Kernel)]
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    module, _ = lower_cuda_kernels(kernels, target)
    source = str(tvm.get_global_func("target.build.cuda")(module, target).inspect_source())
    _, _, kernel = source.rpartition("gather_windows(")
    kernel = kernel.split("__global__")[0]
    assert kernel.count("*(uint4*)(p1") == 1
    assert kernel.count("p0[") == 8
    assert "condval" not in kernel
