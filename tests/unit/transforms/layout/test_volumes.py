"""3-D convolutions with channels last on a GPU, and what stands between them: what they compute, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from tvm_machine import compute

from packager.lower.legalize.normalize import fuse_norms
from packager.pipeline.import_models import import_model
from packager.pipeline.options import BuildOptions
from packager.pipeline.request import make_build_request
from tests.stages import prepared_for

pytestmark = pytest.mark.slow
HEADER = '<ir_version: 8, opset_import: ["": 17]>\n'
UNET = """net (float[n,1,6,8,10] x) => (float[n,8,6,8,10] y) {
  a = Conv <pads = [1, 1, 1, 1, 1, 1]> (x, first, b) c = InstanceNormalization(a, scale, b) d = Relu(c)
  p = MaxPool <kernel_shape = [2, 2, 2], strides = [2, 2, 2]> (d)
  e = Conv <pads = [1, 1, 1, 1, 1, 1]> (p, whole, b) f = Add(e, p) g = LeakyRelu <alpha = 0.01> (f)
  u = ConvTranspose <strides = [2, 2, 2]> (g, up, b) r = Relu(u)
  j = Concat <axis = 1> (d, r) y = Conv(j, last)
}"""
FACTORED = """net (float[n,16,6,8,10] x) => (float[n,16] y) {
  a = Conv <pads = [0, 1, 1, 0, 1, 1], strides = [1, 2, 2]> (x, plane, b) c = Relu(a)
  d = Conv <pads = [1, 0, 0, 1, 0, 0], strides = [2, 1, 1]> (c, column, b)
  s = Conv <strides = [2, 2, 2]> (x, point, b) e = Add(d, s) f = Relu(e)
  m = GlobalAveragePool(f) y = Flatten(m)
}"""
SHAPES = {
    "first": (16, 1, 3, 3, 3),
    "whole": (16, 16, 3, 3, 3),
    "up": (16, 16, 2, 2, 2),
    "last": (8, 32, 1, 1, 1),
    "plane": (16, 16, 1, 3, 3),
    "column": (16, 16, 3, 1, 1),
    "point": (16, 16, 1, 1, 1),
    "b": (16,),
    "scale": (16,),
}


def prepared(
    text: str, folder: Path, shapes: Mapping[str, tuple[int, ...]] = SHAPES, **options: Any
) -> tuple[onnx.ModelProto, str, Any]:
    """Return a model, the text of what the cutlass backend is shown, and a function that computes that."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(HEADER + text)
    used = {name for node in model.graph.node for name in node.input}
    for name in sorted(used & shapes.keys()):
        array = rng.standard_normal(shapes[name], np.float32) / np.prod(shapes[name][1:]) ** 0.5
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    path = folder / "model.onnx"
    onnx.save(model, path)
    options = {"targets": ("cuda -arch=sm_90a", "cutlass"), "dims": {"n": (1, 4)}, **options}
    request = make_build_request(BuildOptions(path, **options))
    shown = prepared_for(import_model(request), request.targets.specialized, "cuda")
    constants = [constant.array for constant in shown.constants.values()]
    return model, shown.module["main"].script(), lambda x: compute(fuse_norms(shown.module), [x, *constants])


@pytest.mark.parametrize(("precision", "tolerance"), [("fp16", 5e-3), (None, 1e-5)])
@pytest.mark.parametrize("text", [UNET, FACTORED], ids=["U-Net", "factored"])
def test_volumes_compute_the_same(text: str, precision: str | None, tolerance: float, tmp_path: Path) -> None:
    model, _, run = prepared(text, tmp_path, precision=precision)
    shape = (2, *(int(dim.dim_value) for dim in model.graph.input[0].type.tensor_type.shape.dim[1:]))
    x = np.random.default_rng(1).standard_normal(shape, np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,), (got,) = session.run(None, {"x": x}), run(x)
    assert np.linalg.norm(got - want) / np.linalg.norm(want) < tolerance


def test_all_between_is_channels_last(tmp_path: Path) -> None:
    _, text, _ = prepared(UNET, tmp_path, precision="fp16")
    assert text.count('layout="NDHWC", kernel_layout') == 2
    assert text.count("gather_windows") == text.count("R.matmul") == 1
    assert text.count("packager.normalize") == 1
    assert '"NCDHW"' not in text
    _, text, _ = prepared(FACTORED, tmp_path, precision="fp16")
    assert text.count('layout="NDHWC", kernel_layout') == 3
    assert text.count("permute_dims") == 1, "of the input"


def test_windows_of_other_gpus_stay(tmp_path: Path) -> None:
    _, text, _ = prepared(UNET, tmp_path, precision="fp16", targets=("cuda -arch=sm_80", "cutlass"))
    assert 'kernel_layout="OIDHW"' in text
    assert 'kernel_layout="ODHWI"' in text, "of one place"
    _, text, _ = prepared(UNET, tmp_path, precision="fp16", targets=("cuda -arch=sm_90a",))
    assert "NDHWC" not in text


@pytest.mark.parametrize(
    ("channels", "window", "strides", "pads"),
    [(3, (5, 7, 7), (1, 2, 2), (2, 3, 3)), (1, (3, 3, 7), (2, 1, 3), (0, 1, 5)), (2, (4, 1, 5), (1, 1, 2), (1, 0, 0))],
)
def test_rows_of_windows_are_channels(
    channels: int, window: tuple[int, ...], strides: tuple[int, ...], pads: tuple[int, ...], tmp_path: Path
) -> None:
    """All windows of 5 x 7 x 7 of three channels take 245 times as many elements as a row of results."""
    text = f"""net (float[n,{channels},8,18,20] x) => (float[n,8,d,h,w] y) {{
      y = Conv <pads = {[*pads, *pads]}, strides = {[*strides]}, dilations = [1, 1, 2]> (x, stem, c)
    }}"""
    shapes = {"stem": (8, channels, *window), "c": (8,)}
    model, shown, run = prepared(text, tmp_path, shapes=shapes, precision="fp16")
    assert shown.count('layout="NDHWC", kernel_layout') == 1
    x = np.random.default_rng(1).standard_normal((2, channels, 8, 18, 20), np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,), (got,) = session.run(None, {"x": x}), run(x)
    assert np.linalg.norm(got - want) / np.linalg.norm(want) < 5e-3


def test_patches_are_gathered_as_a_whole(tmp_path: Path) -> None:
    """Windows that do not overlap are products of matrices: no element is written twice."""
    text = """net (float[n,3,8,16,16] x) => (float[n,8,4,4,4] y) {
      y = Conv <strides = [2, 4, 4]> (x, stem, c)
    }"""
    _, shown, _ = prepared(text, tmp_path, {"stem": (8, 3, 2, 4, 4), "c": (8,)}, precision="fp16")
    assert "R.matmul" in shown
    assert "conv3d" not in shown


def test_few_channels_stay_where_nothing_is_gathered(tmp_path: Path) -> None:
    """No kernel that reads windows takes three channels as they are."""
    text = """net (float[n,3,8,16,16] x) => (float[n,8,8,16,16] y) {
      y = Conv <pads = [1, 1, 3, 1, 1, 3]> (x, stem, c)
    }"""
    shapes, targets = {"stem": (8, 3, 3, 3, 7), "c": (8,)}, ("cuda -arch=sm_90a", "cutlass -operators=conv2d")
    _, shown, _ = prepared(text, tmp_path, shapes, precision="fp16", targets=targets)
    assert 'kernel_layout="OIDHW"' in shown
