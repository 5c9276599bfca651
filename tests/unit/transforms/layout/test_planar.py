"""Convolutions of sequences as ones of images of one row: what they compute, and what the cutlass backend takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from tvm_machine import compute

from packager.backends.cutlass.conv.problem import ConvProblem
from packager.pipeline.import_models import import_model
from packager.pipeline.options import BuildOptions
from packager.pipeline.request import make_build_request
from tests.stages import placed, prepared_for, problems

TARGETS = ("cuda -arch=sm_90a", "cutlass")
HEADER = '<ir_version: 8, opset_import: ["": 17]>\n'
TOKENS = """net (float[n,20,16] x) => (float[n,10,24] y) {
  t = Transpose <perm = [0, 2, 1]> (x)
  a = Conv <pads = [1, 1]> (t, v, b) c = Relu(a)
  d = Conv <pads = [1, 1], strides = [2]> (c, w, b) e = Sigmoid(d)
  y = Transpose <perm = [0, 2, 1]> (e)
}"""
RESIDUAL = """net (float[2,24,20] x) => (float[2,24,8] y) {
  a = Conv <pads = [4, 4], dilations = [4]> (x, w, b) c = Relu(a)
  d = Conv <pads = [0, 2]> (c, w, b) e = Add(d, c) f = Relu(e)
  p = MaxPool <kernel_shape = [3], strides = [2]> (f)
  q = Pad(p, widths) j = Concat <axis = 2> (q, k)
  m = Mul(j, scale) y = Slice(m, start, stop, axis)
}"""
UP = """net (float[2,16,7] x) => (float[2,24,{length}] y) {{
  a = ConvTranspose <{attributes}> (x, u, b) r = Relu(a) y = Conv <pads = [1, 1]> (r, w, b)
}}"""


def model_of(text: str) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(HEADER + text)
    arrays: dict[str, Any] = {
        "v": rng.standard_normal((24, 16, 3), np.float32) * 0.2,
        "w": rng.standard_normal((24, 24, 3), np.float32) * 0.2,
        "u": rng.standard_normal((16, 24, 4), np.float32) * 0.2,
        "b": rng.standard_normal(24, np.float32),
        "k": rng.standard_normal((2, 24, 3), np.float32),
        "scale": rng.standard_normal((24, 1), np.float32),
        "widths": np.array([0, 0, 1, 0, 0, 2]),
        **{name: np.array([value]) for name, value in (("start", 2), ("stop", 10), ("axis", 2))},
    }
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items() if n in used)
    return model


def check(model: onnx.ModelProto, folder: Path) -> list[Any]:
    """Compare what the backend is shown with onnxruntime; return what it takes in half precision."""
    path = folder / "net.onnx"
    path.write_bytes(model.SerializeToString())
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (taken,) = session.get_inputs()
    extents = [extent if isinstance(extent, int) else 2 for extent in taken.shape]
    x = np.random.default_rng(1).standard_normal(extents, np.float32)
    found = {}
    dims = {"n": (1, 4)} if "n" in taken.shape else {}
    for precision in (None, "fp16"):
        request = make_build_request(BuildOptions(path, targets=TARGETS, precision=precision, dims=dims))
        imported = import_model(request)
        if precision is None:
            prepared = prepared_for(imported, request.targets.specialized, "cuda")
            assert "conv1d" not in prepared.module["main"].script()
            (got,) = compute(prepared.module, [x, *(constant.array for constant in prepared.constants.values())])
            np.testing.assert_allclose(got, session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)
        found[precision] = problems(placed(imported, request.targets.specialized, device="cuda").model)
    return found["fp16"]


@pytest.mark.slow
def test_sequences_of_tokens_are_read_and_written_in_place(tmp_path: Path) -> None:
    model = model_of(TOKENS)
    first, second = check(model, tmp_path)
    assert (first.chain.activation, second.chain.activation) == ("relu", "sigmoid")
    assert (second.conv.image, second.conv.window, second.conv.stride) == ((1, 20), (1, 3), (1, 2))
    request = make_build_request(BuildOptions(tmp_path / "net.onnx", targets=TARGETS, dims={"n": (1, 4)}))
    text = placed(import_model(request), request.targets.specialized, device="cuda").model.module["main"].script()
    assert "permute_dims" not in text


@pytest.mark.slow
def test_what_stands_between_stays_an_image(tmp_path: Path) -> None:
    first, second = check(model_of(RESIDUAL), tmp_path)
    assert (first.conv.dilation, first.conv.padding, first.chain.activation) == ((1, 4), (0, 4), "relu")
    assert second.chain.residual is not None
    assert second.chain.activation == "relu"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attributes", "length", "window"),
    [
        ("strides = [2], pads = [1, 1]", 14, 2),
        ("strides = [4]", 28, 1),
        ("strides = [2], pads = [2, 1], output_padding = [1]", 14, 2),
        ("strides = [1], pads = [1, 1]", 8, 4),
    ],
    ids=["half of the kernel", "all of it", "output padding", "1"],
)
def test_transposed_ones_keep_bias_and_activation(attributes: str, length: int, window: int, tmp_path: Path) -> None:
    up, after = check(model_of(UP.format(attributes=attributes, length=length)), tmp_path)
    assert isinstance(up, ConvProblem)
    assert up.conv.window == (1, window)
    assert up.chain.bias is not None
    assert up.chain.activation == "relu"
    assert after.conv.image == (1, length)


@pytest.mark.slow
def test_those_of_few_channels_in_groups_and_of_unknown_length_stay(tmp_path: Path) -> None:
    text = "net (float[1,16,20] x) => (float[1,16,20] y) { y = Conv <pads = [1, 1], group = 8> (x, w) }"
    unknown = "net (float[1,16,n] x) => (float[1,24,n] y) { y = Conv <pads = [1, 1]> (x, v) }"
    for source, dims in ((text.replace("w)", "g)"), {}), (unknown, {"n": (1, 64)})):
        model = model_of(source)
        grouped = np.ones((16, 2, 3), np.float32)
        model.graph.initializer.extend([onnx.numpy_helper.from_array(grouped, "g")] if "g)" in source else [])
        path = tmp_path / "net.onnx"
        path.write_bytes(model.SerializeToString())
        request = make_build_request(BuildOptions(path, targets=TARGETS, dims=dims))
        prepared = prepared_for(import_model(request), request.targets.specialized, "cuda")
        assert "R.nn.conv1d" in prepared.module["main"].script()
