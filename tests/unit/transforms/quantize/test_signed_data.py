"""uint8 data as int8, for libraries that multiply signed bytes alone: against onnx's reference, sums bit by bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from tests.unit.transforms.quantize.test_quantize import Integers, Net, convolution

pytestmark = pytest.mark.slow
SIGNED = ("matmul", "int8", "int8", "int32")


@pytest.mark.parametrize("zero", [0, 7, 128, 255])
def test_data_of_every_source(zero: int, tmp_path: Path) -> None:
    """Of an input, and of results that a convolution, a sum, a pooling, a matmul and the model's caller read."""
    net = Net()
    data = net.dequantize(net.input("x", (1, 4, 6, 6), "uint8"), 0.02, zero)
    one = convolution(net, data, net.weight(4, 4, 3, 3), net.bias(4), pads=[1, 1, 1, 1])
    stored = net.quantize(net.add("Relu", one), 0.03, zero)
    middle = net.dequantize(stored, 0.03, zero)
    two = convolution(net, middle, net.weight(4, 4, 1, 1), net.bias(4))
    total = net.quantized(net.add("Add", two, middle), 0.05, zero)
    pooled = net.quantized(net.add("MaxPool", total, kernel_shape=[2, 2]), 0.05, zero)
    rows = net.add("Reshape", pooled, net.constant(np.array([4, 25])))
    last = net.quantize(net.add("MatMul", rows, net.weight(25, 8, axis=1)), 0.1, zero)
    integers = Integers(net.model(stored, last), tmp_path, data="int8")
    assert integers.products == {("nn.conv2d", "int8", "int8", "int32"): 2, SIGNED: 1}
    integers.check(1, exact=0.95)


@pytest.mark.parametrize("per_channel", [True, False], ids=["channel", "tensor"])
@pytest.mark.parametrize(("stored", "zero"), [("int8", 0), ("int8", -50), ("uint8", 128), ("uint8", 3)])
def test_weights_of_both_types(stored: str, zero: int, per_channel: bool, tmp_path: Path) -> None:
    """Those beyond int8 have sums of rows beside the product, not a second product."""
    net = Net()
    data = net.quantized(net.input("x", (3, 4, 30)), 0.02, 117)
    weight = net.weight(30, 6, dtype=stored, zero=zero, per_channel=per_channel, axis=1)
    integers = Integers(net.model(net.quantize(net.add("MatMul", data, weight), 0.3, 128)), tmp_path, data="int8")
    assert integers.products == {SIGNED: 1}
    assert integers.operators["sum"] == (zero in (-50, 3))
    integers.check(1)


def test_convolutions_beyond_int8_stay_in_float(tmp_path: Path) -> None:
    net = Net()
    data = net.quantized(net.input("x", (1, 6, 5, 5)), 0.02, 7)
    weight = net.weight(8, 6, 1, 1, dtype="uint8", zero=50)
    integers = Integers(net.model(net.quantize(convolution(net, data, weight), 0.3, 128)), tmp_path, data="int8")
    assert integers.products == {("nn.conv2d", "float32", "float32", "float32"): 1}


def integer_model(body: str, **arrays: np.ndarray) -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["": 17]> net (float[3,2,32] x, uint8[3,2,32] u) => (int32[3,2,12] y)
      {{ {body} }}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.parametrize("weights", ["uint8", "int8"])
@pytest.mark.parametrize("columns", [True, False], ids=["columns", "one"])
@pytest.mark.parametrize("body", ["q, s, z = DynamicQuantizeLinear(x)", "q = Identity(u)"])
def test_sums_are_exact(body: str, columns: bool, weights: str, tmp_path: Path) -> None:
    """``MatMulInteger`` with zero points of both sides, that of the data computed by the model or a constant."""
    rng = np.random.default_rng(5)
    limits = np.iinfo(weights)
    w = rng.integers(limits.min, limits.max + 1, (32, 12)).astype(weights)
    zeros = rng.integers(limits.min, limits.max + 1, 12).astype(weights) if columns else np.array(limits.max, weights)
    arrays = {"w": w, "zw": zeros} | ({} if "z =" in body else {"z": np.array(201, np.uint8)})
    integers = Integers(integer_model(f"{body} y = MatMulInteger(q, w, z, zw)", **arrays), tmp_path, data="int8")
    assert integers.products == {SIGNED: 1}
    integers.check(0, exact=1)


def test_one_conversion_for_several_products(tmp_path: Path) -> None:
    """As of queries, keys and values, which read the same data."""
    net = Net()
    data = net.dequantize(net.input("x", (3, 32), "uint8"), 0.02, 9)
    results = [net.quantize(net.add("MatMul", data, net.weight(32, 8, axis=1)), 0.1, 3) for _ in range(3)]
    integers = Integers(net.model(*results), tmp_path, data="int8")
    assert integers.products == {SIGNED: 3}
    assert integers.operators["bitwise_xor"] == 1 + 3  # and of each result, which the model's caller reads
    integers.check(1)
