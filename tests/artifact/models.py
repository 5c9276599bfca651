"""The models: the digits sample, a second net whose primitive functions have the same names, and a small MLP."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).parents[2]
DIGITS_FILE = ROOT / "samples" / "digits" / "digits.onnx"
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Model:
    """An ONNX file with one float32 input, whose first extent is ``n``, and one float32 output."""

    name: str
    path: Path
    input: str
    output: str
    row: tuple[int, ...]  # extents of one row of the input
    rtol: float = 1e-4

    def rows(self, count: int, seed: int = 7) -> Floats:
        """Return input for a batch of ``count``."""
        return np.random.default_rng(seed).random((count, *self.row), np.float32)

    def expected(self, rows: Floats) -> Floats:
        """Return what onnxruntime gives."""
        session = onnxruntime.InferenceSession(self.path, providers=["CPUExecutionProvider"])
        (output,) = session.run([self.output], {self.input: rows})
        return np.asarray(output)

    def check(self, rows: Floats, output: Floats) -> None:
        """Assert that ``output`` is onnxruntime's, within rtol and a tenth of it of the largest value."""
        wanted = self.expected(rows)
        assert wanted.std() > 1e-3
        atol = self.rtol / 10 * np.abs(wanted).max()
        np.testing.assert_allclose(output.reshape(wanted.shape), wanted, rtol=self.rtol, atol=atol)


DIGITS = Model("digits", DIGITS_FILE, "image", "logits", (1, 8, 8))


def _save(
    path: Path,
    nodes: list[onnx.NodeProto],
    weights: dict[str, NDArray[np.floating[Any]]],
    row: tuple[int, ...],
    outputs: int,
) -> None:
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", *row])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", outputs])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def make_twin(path: Path) -> Model:
    """Write a conv net of the structure of digits with other sizes and weights: its kernels get the same names."""
    random = np.random.default_rng(1)
    weights = {
        name: (random.standard_normal(shape) / 4).astype(np.float32)
        for name, shape in {
            "conv1.weight": (8, 1, 3, 3),
            "conv1.bias": (8,),
            "conv2.weight": (24, 8, 3, 3),
            "conv2.bias": (24,),
            "dense1.weight": (96, 40),
            "dense1.bias": (40,),
            "dense2.weight": (40, 5),
            "dense2.bias": (5,),
        }.items()
    }
    nodes = []
    value = "image"
    for i in (1, 2):
        nodes += [
            helper.make_node("Conv", [value, f"conv{i}.weight", f"conv{i}.bias"], [f"c{i}"], f"Conv_{i}", pads=[1] * 4),
            helper.make_node("Relu", [f"c{i}"], [f"r{i}"], f"Relu_{i}"),
            helper.make_node("MaxPool", [f"r{i}"], [f"p{i}"], f"Pool_{i}", kernel_shape=[2, 2], strides=[2, 2]),
        ]
        value = f"p{i}"
    nodes += [
        helper.make_node("Flatten", [value], ["flat"], "Flatten"),
        helper.make_node("Gemm", ["flat", "dense1.weight", "dense1.bias"], ["d1"], "Gemm_1"),
        helper.make_node("Relu", ["d1"], ["r3"], "Relu_3"),
        helper.make_node("Gemm", ["r3", "dense2.weight", "dense2.bias"], ["logits"], "Gemm_2"),
    ]
    _save(path, nodes, weights, (1, 8, 8), 5)
    return Model(path.stem, path, "image", "logits", (1, 8, 8))


def make_mlp(path: Path) -> Model:
    """Write an MLP that calls the math library and has one bias under two names."""
    random = np.random.default_rng(2)
    shared = (random.standard_normal(32) / 4).astype(np.float32)
    weights = {
        "first.weight": (random.standard_normal((20, 32)) / 4).astype(np.float32),
        "first.bias": shared,
        "second.weight": (random.standard_normal((32, 32)) / 4).astype(np.float32),
        "second.bias": shared.copy(),
        "third.weight": (random.standard_normal((32, 6)) / 2).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["image", "first.weight"], ["m1"], "MatMul_1"),
        helper.make_node("Add", ["m1", "first.bias"], ["a1"], "Add_1"),
        helper.make_node("Tanh", ["a1"], ["t1"], "Tanh_1"),
        helper.make_node("MatMul", ["t1", "second.weight"], ["m2"], "MatMul_2"),
        helper.make_node("Add", ["m2", "second.bias"], ["a2"], "Add_2"),
        helper.make_node("Erf", ["a2"], ["e2"], "Erf_2"),
        helper.make_node("MatMul", ["e2", "third.weight"], ["m3"], "MatMul_3"),
        helper.make_node("Softmax", ["m3"], ["logits"], "Softmax"),
    ]
    _save(path, nodes, weights, (20,), 6)
    return Model(path.stem, path, "image", "logits", (20,))


def make_half(path: Path) -> Model:
    """Write a net that computes in float16 between float32 ends."""
    random = np.random.default_rng(3)
    weights = {
        "half.weight": (random.standard_normal((64, 48)) / 8).astype(np.float16),
        "half.bias": (random.standard_normal(48) / 8).astype(np.float16),
    }
    nodes = [
        helper.make_node("Cast", ["image"], ["h"], "Cast_1", to=TensorProto.FLOAT16),
        helper.make_node("MatMul", ["h", "half.weight"], ["m"], "MatMul"),
        helper.make_node("Add", ["m", "half.bias"], ["a"], "Add"),
        helper.make_node("Relu", ["a"], ["r"], "Relu"),
        helper.make_node("Cast", ["r"], ["logits"], "Cast_2", to=TensorProto.FLOAT),
    ]
    _save(path, nodes, weights, (64,), 48)
    return Model(path.stem, path, "image", "logits", (64,), rtol=0.03)
