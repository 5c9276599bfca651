"""Convolutions of channels that are no vectors: what they compute with zeros beside, and what `cutlass` takes."""

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
from packager.graph.dataflow import bindings_of, operator_of
from packager.pipeline.import_models import import_model
from packager.pipeline.options import BuildOptions
from packager.pipeline.request import make_build_request
from tests.stages import placed, prepared_for, problems

TARGETS = ("cuda -arch=sm_90a", "cutlass")
HEADER = '<ir_version: 8, opset_import: ["": 17]>\n'
CHAIN = """net (float[2,16,24,24] x) => (float[2,18,24,24] y, float[2,18,12,12] z) {
  a = Conv <pads = [1,1,1,1]> (x, v, b) c = Relu(a)
  d = Conv <pads = [1,1,1,1]> (c, w, b) e = Add(d, c) f = Relu(e)
  g = Sigmoid(f) h = Mul(f, g) y = Conv <pads = [1,1,1,1]> (h, w)
  z = MaxPool <kernel_shape = [2,2], strides = [2,2]> (h)
}"""
SLICES = """net (float[2,28,24,24] x) => (float[2,28,24,24] y) {
  s, t = Split <axis = 1> (x) a = Conv <pads = [1,1,1,1]> (s, u, k) c = Relu(a)
  d = Add(c, t) e = Conv <pads = [1,1,1,1]> (d, u, k) y = Concat <axis = 1> (c, e)
}"""
MIXED = """net (float[2,18,24,24] x) => (float[2,18] y, float[2,24,24,18] z) {
  a = Conv <pads = [1,1,1,1]> (x, w, b) m = ReduceMean <axes = [2,3], keepdims = 0> (a)
  y = Softmax(m) i = Softmax <axis = 1> (a) j = Add(i, a) z = Transpose <perm = [0,2,3,1]> (j)
}"""
DEPTHWISE = """net (float[2,16,64,64] x) => (float[2,18,32,32] y) {
  a = Conv <pads = [1,1,1,1]> (x, v, b) c = Relu(a)
  d = Conv <pads = [1,1,1,1], group = 18, strides = [2,2]> (c, p, b) e = Sigmoid(d) y = Conv <pads = [1,1,1,1]> (e, w)
}"""


def model_of(text: str) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(HEADER + text)
    arrays: dict[str, Any] = {
        "v": rng.standard_normal((18, 16, 3, 3), np.float32) * 0.1,
        "w": rng.standard_normal((18, 18, 3, 3), np.float32) * 0.1,
        "u": rng.standard_normal((14, 14, 3, 3), np.float32) * 0.1,
        "b": rng.standard_normal(18, np.float32) + 4,
        "p": rng.standard_normal((18, 1, 3, 3), np.float32),
        "k": rng.standard_normal(14, np.float32),
    }
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items() if n in used)
    return model


@pytest.mark.parametrize(
    ("text", "padded", "added"),
    [(CHAIN, 3, 0), (SLICES, 2, 2), (MIXED, 1, 1), (DEPTHWISE, 2, 0)],
    ids=["chain", "slices", "mixed", "depthwise"],
)
def test_channels_are_whole_vectors(text: str, padded: int, added: int, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model_of(text), path)
    request = make_build_request(BuildOptions(path, targets=TARGETS, precision="fp16"))
    imported = import_model(request)
    prepared = prepared_for(imported, request.targets.specialized, "cuda")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (taken,) = session.get_inputs()
    x = np.random.default_rng(1).standard_normal(taken.shape, np.float32)
    results = compute(prepared.module, [x, *(constant.array for constant in prepared.constants.values())])
    for got, want in zip(results, session.run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=8e-3 * np.abs(want).max())
    found = problems(placed(imported, request.targets.specialized, device="cuda").model)
    convolutions = [problem for problem in found if isinstance(problem, ConvProblem)]
    assert len(convolutions) == padded
    assert not any(problem.conv.channels % 8 or problem.conv.filters % 8 for problem in convolutions)
    pads = [binding for binding in bindings_of(prepared.module["main"]) if operator_of(binding.value) == "nn.pad"]
    assert len(pads) == added  # of values: filters and biases are padded at build time
