"""Quantized models in integers: against onnx's reference, within one quantum, and truly in integers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tvm import relax
from tvm_machine import compute

from packager.graph.rewrite import apply
from packager.ir.model import NamedArray
from packager.pipeline.build import import_model
from packager.pipeline.options import BuildOptions
from packager.pipeline.request import make_build_request
from packager.transforms.fold_inline import fold_inline
from packager.transforms.fold_weights import fold_weights
from packager.transforms.prepare import SIMPLIFY, TIDY
from packager.transforms.quantize.quantize import convert_qdq

pytestmark = pytest.mark.slow

TYPES = {"float32": TensorProto.FLOAT, "uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "int32": TensorProto.INT32}


class Net:
    """An ONNX graph of quantized tensors that grows node by node."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []

    def constant(self, array: np.ndarray) -> str:
        self.stored.append(numpy_helper.from_array(np.asarray(array), f"c{len(self.stored)}"))
        return self.stored[-1].name

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def input(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> str:
        self.inputs.append(helper.make_tensor_value_info(name, TYPES[dtype], shape))
        return name

    def quantize(self, data: str, scale: float, zero: int, dtype: str = "uint8") -> str:
        return self.add("QuantizeLinear", data, self.constant(np.float32(scale)), self.constant(np.array(zero, dtype)))

    def dequantize(self, data: str, scale: Any, zero: Any, dtype: str = "uint8", axis: int = 1) -> str:
        names = self.constant(np.float32(scale)), self.constant(np.asarray(zero, dtype))
        return self.add("DequantizeLinear", data, *names, axis=axis)

    def quantized(self, data: str, scale: float, zero: int, dtype: str = "uint8") -> str:
        return self.dequantize(self.quantize(data, scale, zero, dtype), scale, zero, dtype)

    def weight(self, *shape: int, per_channel: bool = True, dtype: str = "int8", zero: int = 0, axis: int = 0) -> str:
        low, high = (-127, 128) if dtype == "int8" else (0, 256)
        whole = self.rng.integers(low, high, shape).astype(dtype)
        count = shape[axis] if per_channel else 1
        scale = self.rng.uniform(0.002, 0.01, count) if per_channel else 0.004
        zeros = np.full(count, zero) if per_channel else zero
        return self.dequantize(self.constant(whole), scale, zeros, dtype, axis)

    def bias(self, count: int) -> str:
        whole = self.rng.integers(-3000, 3000, count).astype(np.int32)
        return self.dequantize(self.constant(whole), np.full(count, 2e-4), np.zeros(count), "int32", 0)

    def model(self, *outputs: str) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "net", self.inputs, [onnx.ValueInfoProto(name=o) for o in outputs])
        graph.initializer.extend(self.stored)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
        return onnx.shape_inference.infer_shapes(model)


class Integers:
    """A model after the rewrite: its operators with their element types, its constants, and what it computes."""

    def __init__(self, model: onnx.ModelProto, folder: Path, *, data: str | None = None) -> None:
        self.model = model
        path = folder / "net.onnx"
        path.write_bytes(model.SerializeToString())
        imported = import_model(make_build_request(BuildOptions(path, targets=[])))
        module = apply(TIDY, fold_inline(apply(SIMPLIFY, imported.module)))
        module, constants = convert_qdq(module, len(imported.signature.inputs), imported.constants(), data=data)
        self.module, self.constants = fold_weights(apply(TIDY, module), constants)
        calls = [
            binding.value
            for block in self.module["main"].body.blocks
            for binding in block.bindings
            if isinstance(binding.value, relax.Call)
        ]
        self.products = Counter(
            (call.op.name.removeprefix("relax."), *(str(a.ty.dtype) for a in call.args), str(call.ty.dtype))
            for call in calls
            if call.op.name.startswith(("relax.nn.conv", "relax.matmul"))
        )
        self.operators = Counter(call.op.name.removeprefix("relax.") for call in calls)

    def run(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        return compute(self.module, [*feeds.values(), *(constant.array for constant in self.constants.values())])

    def check(self, quantum: float, *, exact: float = 0.98, seed: int = 0) -> None:
        """Compare with onnx's reference: results within a quantum, nearly all of them the same."""
        rng = np.random.default_rng(seed)
        feeds = {}
        for value in self.model.graph.input:
            shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            wide = rng.standard_normal(shape) * 1.5 if dtype.kind == "f" else rng.integers(*_range(dtype), shape)
            feeds[value.name] = np.asarray(wide).astype(dtype)
        expected = ReferenceEvaluator(self.model).run(None, feeds)
        for actual, wanted in zip(self.run(feeds), expected, strict=True):
            assert actual.dtype == wanted.dtype
            assert actual.shape == wanted.shape
            apart = np.abs(actual.astype(np.float64) - wanted)
            assert apart.max() <= quantum * 1.001
            assert (apart <= quantum * 1e-3).mean() >= exact


def _range(dtype: Any) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max) + 1


def convolution(net: Net, data: str, weight: str, bias: str | None = None, **attributes: Any) -> str:
    return net.add("Conv", data, weight, *([bias] if bias else []), **attributes)


@pytest.mark.parametrize("per_channel", [True, False], ids=["channel", "tensor"])
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 137), ("int8", 0), ("int8", -9)])
def test_convolution(dtype: str, zero: int, per_channel: bool, tmp_path: Path) -> None:
    net = Net()
    data = net.quantized(net.input("x", (2, 6, 9, 8)), 0.02, zero, dtype)
    weight = net.weight(12, 6, 3, 3, per_channel=per_channel)
    made = convolution(net, data, weight, net.bias(12), pads=[1, 0, 2, 1], strides=[2, 1], dilations=[1, 2])
    integers = Integers(net.model(net.quantize(net.add("Relu", made), 0.03, 7)), tmp_path)
    assert integers.products == {("nn.conv2d", dtype, "int8", "int32"): 1}
    assert integers.operators["nn.pad"] == (1 if zero else 0)
    integers.check(1)


@pytest.mark.parametrize("zero", [0, -9])
def test_signed_data_becomes_unsigned_for_cpus(zero: int, tmp_path: Path) -> None:
    """Of an input, and of results that a convolution, a sum, a pooling, a matmul and the model's caller read."""
    net = Net()
    data = net.dequantize(net.input("x", (1, 4, 6, 6), "int8"), 0.02, zero, "int8")
    one = convolution(net, data, net.weight(4, 4, 3, 3), net.bias(4), pads=[1, 1, 1, 1])
    stored = net.quantize(net.add("Relu", one), 0.03, zero, "int8")
    middle = net.dequantize(stored, 0.03, zero, "int8")
    two = convolution(net, middle, net.weight(4, 4, 1, 1), net.bias(4))
    total = net.quantized(net.add("Add", two, middle), 0.05, zero, "int8")
    pooled = net.quantized(net.add("MaxPool", total, kernel_shape=[2, 2]), 0.05, zero, "int8")
    rows = net.add("Reshape", pooled, net.constant(np.array([4, 25])))
    last = net.quantize(net.add("MatMul", rows, net.weight(25, 8, axis=1)), 0.1, zero, "int8")
    integers = Integers(net.model(stored, last), tmp_path, data="uint8")
    assert integers.products == {
        ("nn.conv2d", "uint8", "int8", "int32"): 2,
        ("matmul", "uint8", "int8", "int32"): 1,
    }
    integers.check(1, exact=0.95)


@pytest.mark.parametrize(("shape", "kernel"), [((1, 6, 20), (3,)), ((1, 6, 5, 6, 7), (2, 3, 1))])
def test_convolutions_of_lines_and_volumes(shape: tuple[int, ...], kernel: tuple[int, ...], tmp_path: Path) -> None:
    net, axes = Net(), len(kernel)
    data = net.quantized(net.input("x", shape), 0.02, 5, "int8")
    pads = [1, *[0] * (axes - 1), 2, *[1] * (axes - 1)]
    made = convolution(net, data, net.weight(12, 6, *kernel), net.bias(12), pads=pads)
    pooled = net.add("MaxPool", net.quantized(made, 0.03, 7, "int8"), kernel_shape=[2] * axes)
    integers = Integers(net.model(net.quantize(pooled, 0.03, 7, "int8")), tmp_path, data="uint8")
    assert integers.products == {(f"nn.conv{axes}d", "uint8", "int8", "int32"): 1}
    integers.check(1)


def test_weights_that_are_int8_without_their_zero_point(tmp_path: Path) -> None:
    net = Net()
    data = net.quantized(net.input("x", (3, 10)), 0.02, 7)
    whole = net.rng.integers(60, 180, (10, 6)).astype(np.uint8)
    fits = net.dequantize(net.constant(whole), np.float32(0.01), np.int64(120), "uint8")
    wide = net.dequantize(net.constant(whole), np.float32(0.01), np.int64(20), "uint8")
    results = [net.quantize(net.add("MatMul", data, weight), 0.05, 128) for weight in (fits, wide)]
    integers = Integers(net.model(*results), tmp_path)
    assert integers.products["matmul", "uint8", "int8", "int32"] == 1
    assert integers.products["matmul", "float32", "float32", "float32"] == 1
    integers.check(1)


@pytest.mark.parametrize("groups", [3, 6], ids=["grouped", "depthwise"])
def test_groups(groups: int, tmp_path: Path) -> None:
    net = Net()
    data = net.quantized(net.input("x", (1, 6, 7, 7)), 0.02, 3)
    made = convolution(net, data, net.weight(12, 6 // groups, 3, 3), net.bias(12), pads=[1, 1, 1, 1], group=groups)
    integers = Integers(net.model(net.quantize(made, 0.02, -3, "int8")), tmp_path)
    assert integers.products == {("nn.conv2d", "uint8", "int8", "int32"): 1}
    integers.check(1)


def test_biases_are_part_of_the_int32_sum_and_weights_stay_int8(tmp_path: Path) -> None:
    net = Net()
    scale = np.float32(0.02)
    data = net.quantized(net.input("x", (1, 4, 5, 5)), scale, 11)
    whole = net.rng.integers(-127, 128, (8, 4, 1, 1)).astype(np.int8)
    scales = net.rng.uniform(0.002, 0.01, 8).astype(np.float32)
    weight = net.dequantize(net.constant(whole), scales, np.zeros(8), "int8", 0)
    bias = net.rng.integers(-900, 900, 8).astype(np.int32)
    added = net.dequantize(net.constant(bias), scales * scale, np.zeros(8), "int32", 0)
    integers = Integers(net.model(net.quantize(convolution(net, data, weight, added), 0.05, 128)), tmp_path)
    arrays = [constant.array for constant in integers.constants.values()]
    expected = bias - 11 * whole.astype(np.int32).sum((1, 2, 3))
    assert [array.dtype.name for array in arrays].count("int8") == 1
    assert any(array.dtype == np.int32 and (array.reshape(-1) == expected).all() for array in arrays)
    assert max(array.nbytes for array in arrays) == 8 * 4
    integers.check(1, exact=1.0)


@pytest.mark.parametrize("kind", ["float", "none"])
def test_other_biases(kind: str, tmp_path: Path) -> None:
    net = Net()
    data = net.quantized(net.input("x", (1, 4, 5, 5)), 0.02, 11)
    bias = net.constant(net.rng.standard_normal(8).astype(np.float32)) if kind == "float" else None
    made = convolution(net, data, net.weight(8, 4, 1, 1), bias)
    integers = Integers(net.model(net.quantize(made, 0.05, 128)), tmp_path)
    assert integers.products == {("nn.conv2d", "uint8", "int8", "int32"): 1}
    integers.check(1)


def test_clip_and_residual(tmp_path: Path) -> None:
    net = Net()
    data = net.quantized(net.input("x", (1, 4, 6, 6)), 0.02, 120)
    one = convolution(net, data, net.weight(4, 4, 3, 3), net.bias(4), pads=[1, 1, 1, 1])
    one = net.quantized(one, 0.03, 99)
    total = net.add("Relu", net.add("Add", one, data))
    middle = net.quantized(total, 0.025, 0)
    two = convolution(net, middle, net.weight(4, 4, 1, 1), net.bias(4))
    bounded = net.add("Clip", two, net.constant(np.float32(0)), net.constant(np.float32(2)))
    integers = Integers(net.model(net.quantize(bounded, 0.01, 3)), tmp_path)
    assert integers.products == {("nn.conv2d", "uint8", "int8", "int32"): 2}
    assert not integers.operators["divide"] - 1  # of the input alone
    integers.check(2, exact=0.9)


def test_what_moves_elements_moves_integers(tmp_path: Path) -> None:
    net = Net()
    data = net.quantized(net.input("x", (1, 4, 8, 8)), 0.02, 120)
    pooled = net.quantized(net.add("MaxPool", data, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]), 0.02, 120)
    moved = net.add("Transpose", pooled, perm=[0, 2, 3, 1])
    flat = net.add("Reshape", moved, net.constant(np.array([16, 4])))
    product = net.add("MatMul", net.quantized(flat, 0.02, 120), net.weight(4, 10, axis=1))
    integers = Integers(net.model(net.quantize(product, 0.05, 1, "int8"), net.quantize(pooled, 0.02, 120)), tmp_path)
    assert integers.products == {("matmul", "uint8", "int8", "int32"): 1}
    assert integers.operators["round"] == 2
    integers.check(1)


@pytest.mark.parametrize("other", [0.02, 0.031], ids=["same", "another"])
def test_concat(other: float, tmp_path: Path) -> None:
    net = Net()
    one = net.quantized(net.input("x", (1, 4, 5, 5)), 0.02, 120)
    two = net.quantized(net.input("z", (1, 3, 5, 5)), other, 120)
    joined = net.quantized(net.add("Concat", one, two, axis=1), 0.02, 120)
    made = convolution(net, joined, net.weight(8, 7, 1, 1))
    integers = Integers(net.model(net.quantize(made, 0.05, 128)), tmp_path)
    assert integers.products == {("nn.conv2d", "uint8", "int8", "int32"): 1}
    assert integers.operators["divide"] == 2
    integers.check(1)


def test_gemm_with_weights_that_are_transposed(tmp_path: Path) -> None:
    net = Net()
    data = net.quantized(net.input("x", (5, 24)), 0.02, -20, "int8")
    made = net.add("Gemm", data, net.weight(10, 24), net.bias(10), transB=1)
    integers = Integers(net.model(net.quantized(made, 0.05, 128)), tmp_path)
    assert integers.products == {("matmul", "int8", "int8", "int32"): 1}
    integers.check(0.05)


def test_batches_of_rows(tmp_path: Path) -> None:
    net = Net()
    data = net.quantized(net.input("x", (2, 3, 24)), 0.02, 99)
    product = net.add("MatMul", data, net.weight(24, 6, axis=1))
    made = net.add("Add", product, net.constant(net.rng.standard_normal(6).astype(np.float32)))
    integers = Integers(net.model(net.add("Sigmoid", made)), tmp_path)
    assert integers.products == {("matmul", "uint8", "int8", "int32"): 1}
    integers.check(1e-5, exact=0)


def test_weights_of_uint8_around_128(tmp_path: Path) -> None:
    net = Net()
    data = net.quantized(net.input("x", (1, 4, 5, 5)), 0.02, 7)
    made = convolution(net, data, net.weight(8, 4, 3, 3, dtype="uint8", zero=128), pads=[1, 1, 1, 1])
    integers = Integers(net.model(net.quantize(made, 0.05, 128)), tmp_path)
    assert integers.products == {("nn.conv2d", "uint8", "int8", "int32"): 1}
    integers.check(1)


WINDOWS = {
    "1x1": ((1, 24, 5, 5), (16, 24, 1, 1), {}),
    "few elements": ((1, 3, 9, 8), (8, 3, 3, 3), {"strides": [2, 2]}),
    "separable": ((2, 40, 9, 8), (8, 40, 3, 3), {"pads": [1, 0, 2, 1]}),
    "strides and dilations": ((1, 64, 15, 11), (9, 64, 3, 2), {"strides": [2, 3], "dilations": [1, 2]}),
    "lines": ((1, 70, 30), (12, 70, 5), {"pads": [2, 2], "strides": [2]}),
    "volumes": ((1, 16, 5, 6, 7), (8, 16, 2, 3, 3), {"pads": [0, 1, 1, 1, 1, 0]}),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("zero", [0, 7])
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("name", WINDOWS)
def test_weights_beyond_int8(name: str, per_channel: bool, zero: int, tmp_path: Path) -> None:
    """Weights of uint8 whose zero point is far from 128: the sums of windows are subtracted after."""
    shape, filters, attributes = WINDOWS[name]
    net = Net()
    data = net.quantized(net.input("x", shape), 0.02, zero)
    weight = net.weight(*filters, per_channel=per_channel, dtype="uint8", zero=50)
    made = convolution(net, data, weight, net.bias(filters[0]), **attributes)
    integers = Integers(net.model(net.quantize(made, 0.4, 100)), tmp_path, data="uint8")
    taken = f"nn.conv{len(shape) - 2}d"
    assert set(integers.products) == {(taken, "uint8", "int8", "int32")}
    assert integers.products.total() == 2
    integers.check(1)


@pytest.mark.parametrize("stored", ["uint8", "int8"])
def test_matrices_beyond_int8(stored: str, tmp_path: Path) -> None:
    net = Net()
    data = net.quantized(net.input("x", (3, 4, 30)), 0.02, 7)
    weight = net.weight(30, 6, dtype=stored, zero=50, axis=1)
    integers = Integers(net.model(net.quantize(net.add("MatMul", data, weight), 0.3, 128)), tmp_path, data="uint8")
    assert integers.products == {("matmul", "uint8", "int8", "int32"): 2}
    integers.check(1)


def test_groups_beyond_int8_stay_in_float(tmp_path: Path) -> None:
    net = Net()
    data = net.quantized(net.input("x", (1, 8, 5, 5)), 0.02, 7)
    weight = net.weight(8, 4, 3, 3, dtype="uint8", zero=50)
    integers = Integers(
        net.model(net.quantize(convolution(net, data, weight, group=2), 0.3, 128)), tmp_path, data="uint8"
    )
    assert integers.products == {("nn.conv2d", "float32", "float32", "float32"): 1}
    integers.check(1)


@pytest.mark.parametrize("case", ["weights with a zero point", "rows with scales of their own", "computed weights"])
def test_what_does_not_fit_stays_in_float(case: str, tmp_path: Path) -> None:
    net = Net()
    data = net.quantized(net.input("x", (4, 8)), 0.02, 7)
    weight = net.weight(8, 6, axis=1)
    if case == "weights with a zero point":
        weight = net.weight(8, 6, dtype="uint8", zero=77, axis=1)
    elif case == "computed weights":
        weight = net.quantized(net.input("w", (8, 6)), 0.02, 3)
    else:
        whole = net.quantize(data, 0.02, 7)
        data = net.dequantize(whole, np.linspace(0.01, 0.04, 4), np.zeros(4), "uint8", 0)
    integers = Integers(net.model(net.quantize(net.add("MatMul", data, weight), 0.05, 128)), tmp_path)
    assert integers.products == {("matmul", "float32", "float32", "float32"): 1}
    integers.check(1)


def test_sums_beyond_int32_saturate(tmp_path: Path) -> None:
    net = Net()
    data = net.quantized(net.input("x", (4, 8)), 1.0, 7)
    made = net.add("MatMul", data, net.weight(8, 6, axis=1))
    integers = Integers(net.model(made, net.quantize(made, 1e-9, 0)), tmp_path)
    assert integers.products == {("matmul", "uint8", "int8", "int32"): 1}
    numbers, whole = integers.run({"x": net.rng.integers(-7, 99, (4, 8)).astype(np.float32)})
    assert set(np.unique(whole)) == {0, 255}
    assert (whole == np.where(numbers > 0, 255, 0)).all()


@pytest.mark.parametrize("zeros", ["none", "scalars", "weights"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_conv_integer(dtype: str, zeros: str, tmp_path: Path) -> None:
    net = Net()
    data = net.input("x", (1, 4, 6, 6), dtype)
    weight = net.constant(net.rng.integers(-127, 128, (5, 4, 3, 3)).astype(np.int8))
    given = {
        "none": [],
        "scalars": [net.constant(np.array(5, dtype)), net.constant(np.array(0, np.int8))],
        "weights": [net.constant(np.array(5, dtype)), net.constant(np.array(3, np.int8))],
    }[zeros]
    made = net.add("ConvInteger", data, weight, *given, pads=[1, 1, 1, 1])
    integers = Integers(net.model(made), tmp_path)
    operand = ("int32", "int32") if zeros == "weights" else (dtype, "int8")
    assert integers.products == {("nn.conv2d", *operand, "int32"): 1}
    integers.check(0, exact=1.0)


def test_dynamic_quantization(tmp_path: Path) -> None:
    net = Net()
    names = ["whole", "scale", "zero"]
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", [net.input("x", (6, 32))], names))
    weight = net.constant(net.rng.integers(-127, 128, (32, 9)).astype(np.int8))
    product = net.add("MatMulInteger", "whole", weight, "zero", net.constant(np.zeros((), np.int8)))
    numbers = net.add("Mul", net.add("Cast", product, to=1), net.add("Mul", "scale", net.constant(np.float32(0.01))))
    integers = Integers(net.model(numbers), tmp_path)
    assert integers.products == {("matmul", "uint8", "int8", "int32"): 1}
    integers.check(1e-4)


def test_qlinear_conv_and_matmul(tmp_path: Path) -> None:
    net = Net()
    number = lambda value: net.constant(np.float32(value))  # noqa: E731
    zero = lambda value, dtype="uint8": net.constant(np.array(value, dtype))  # noqa: E731
    weight = net.constant(net.rng.integers(-127, 128, (8, 4, 3, 3)).astype(np.int8))
    scales = net.constant(net.rng.uniform(0.002, 0.01, 8).astype(np.float32))
    zeros = net.constant(np.zeros(8, np.int8))
    bias = net.constant(net.rng.integers(-900, 900, 8).astype(np.int32))
    data = net.input("x", (1, 4, 6, 5), "uint8")
    made = net.add(
        "QLinearConv", data, number(0.02), zero(9), weight, scales, zeros, number(0.06), zero(128), bias,
        pads=[1, 1, 1, 1],
    )  # fmt: skip
    matrix = net.constant(net.rng.integers(-127, 128, (5, 7)).astype(np.int8))
    made = net.add(
        "QLinearMatMul", made, number(0.06), zero(128), matrix, number(0.01), zero(0, "int8"), number(0.09), zero(100)
    )
    integers = Integers(net.model(made), tmp_path)
    assert integers.products == {
        ("nn.conv2d", "uint8", "int8", "int32"): 1,
        ("matmul", "uint8", "int8", "int32"): 1,
    }
    integers.check(1, exact=0.95)


def test_models_that_are_not_quantized_stay_as_they_are(tmp_path: Path) -> None:
    net = Net()
    path = tmp_path / "net.onnx"
    path.write_bytes(net.model(net.add("Relu", net.input("x", (4, 8)))).SerializeToString())
    imported = import_model(make_build_request(BuildOptions(path, targets=[])))
    constants = {"w": NamedArray(np.zeros(3, np.float32), ("w",))}
    module, same = convert_qdq(imported.module, 1, constants)
    assert module is imported.module
    assert same == constants
