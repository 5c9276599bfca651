"""Each call of a partition keeps the nodes of the model that it stands for, wherever TVM's passes put it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from packager.lower.lowering import lower
from packager.pipeline.build import import_model
from packager.pipeline.options import BuildOptions
from packager.pipeline.request import make_build_request
from tests.stages import placed as placed_model

# The depthwise convolution is TVM's: its weights change their layout after the partitions are made, and with that
# LiftTransformParams makes main anew. The two products are one partition.
MODEL = """
<ir_version: 8, opset_import: ["": 17]>
net (float[2,16,8,8] x) => (float[2,16] y) {
  [depthwise] c = Conv <group = 16, pads = [1, 1, 1, 1]> (x, v)
  [mean] m = ReduceMean <axes = [2, 3], keepdims = 0> (c)
  [first] p = MatMul(m, w)
  [between] t = Tanh(p)
  [second] y = MatMul(t, u)
}
"""


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_calls_keep_their_nodes(device: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(MODEL)
    for name, shape in {"v": (16, 1, 3, 3), "w": (16, 16), "u": (16, 16)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.standard_normal(shape, np.float32), name))
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    targets = ("cuda -arch=sm_80", "cutlass") if device == "cuda" else ("llvm", "ccompiler")
    request = make_build_request(BuildOptions(path, targets=targets))
    placed = placed_model(import_model(request), request.targets.specialized, device=device)
    lowered = lower(placed.model, device)
    nodes = [node for call in lowered.call_sources for node in call.nodes]
    assert [node for node in nodes if node in ("first", "between", "second")] == ["first", "between", "second"]
