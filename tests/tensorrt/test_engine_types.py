"""Which layers versions before 10 compute in float32; networks of TensorRT for RTX have the same methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from packager.bundle.gpu import engine_builder

rtx = pytest.importorskip("tensorrt_rtx_bindings")
MODEL = """
<ir_version: 8, opset_import: ["": 17]>
net (float16[4,8] x, float[4,8] wide) => (float16[4,8] y, float[4,8] z) {
  product = MatMul(x, w0) single = Cast<to=1>(product) biased = Add(single, bias) curve = Erf(biased)
  gated = Mul(biased, curve) half = Cast<to=10>(gated)
  second = MatMul(half, w1) again = Cast<to=1>(second) norm = LayerNormalization(again, ones) scaled = Mul(norm, bias)
  y = Cast<to=10>(scaled)
  third = Cast<to=1>(y) z = Add(third, wide)
}
"""


@pytest.fixture
def network(tmp_path: Path) -> Any:
    model = onnx.parser.parse_model(MODEL)
    arrays = {"w0": np.float16, "w1": np.float16}
    constants = {name: np.full((8, 8), 0.5, dtype) for name, dtype in arrays.items()}
    constants |= {"bias": np.arange(8, dtype=np.float32), "ones": np.ones(8, np.float32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    for node in model.graph.node:
        node.name = node.output[0]
    onnx.save(model, tmp_path / "m.onnx")
    logger = rtx.Logger(rtx.Logger.ERROR)
    builder = rtx.Builder(logger)
    made = builder.create_network(0)
    parser = rtx.OnnxParser(made, logger)
    assert parser.parse_from_file(str(tmp_path / "m.onnx"))
    return made


def test_what_is_between_halves_is_left_to_the_library(network: Any) -> None:
    """Not what a normalization or an input in float32 is beside: these would lose digits."""
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    free = engine_builder.layers_between_halves(rtx, network, layers)
    assert {layers[index].name for index in free} == {"biased", "curve", "gated"}
