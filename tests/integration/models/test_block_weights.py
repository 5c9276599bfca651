"""Weights of DequantizeLinear with ``block_size`` stay packed for the product that reads them; against float64."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import packager
from tests.one_cpu import targets_here

pytestmark = pytest.mark.slow

RANGES = {
    TensorProto.INT4: (-8, 8),
    TensorProto.UINT4: (0, 16),
    TensorProto.INT8: (-128, 128),
    TensorProto.UINT8: (0, 256),
}


@dataclass(frozen=True)
class Case:
    """A product of ``depth`` by ``columns``; ``axis`` is the one of the weights that blocks are along."""

    depth: int
    columns: int
    block: int
    kind: int
    zeros: bool
    axis: int
    operator: str = "MatMul"
    half: bool = False


CASES = [
    Case(128, 64, 32, TensorProto.INT4, zeros=False, axis=0),
    Case(200, 51, 64, TensorProto.UINT4, zeros=True, axis=0),  # the last block is not full
    Case(192, 40, 64, TensorProto.INT8, zeros=False, axis=1, operator="Gemm"),
    Case(96, 40, 32, TensorProto.UINT8, zeros=True, axis=1),
    Case(128, 48, 128, TensorProto.UINT4, zeros=False, axis=0, operator="Gemm"),
    Case(64, 32, 16, TensorProto.INT4, zeros=True, axis=1, half=True),
]


def model_of(case: Case) -> tuple[onnx.ModelProto, np.ndarray]:
    """Return the model, and its weights as numbers, [depth, columns]."""
    generator = np.random.default_rng(case.depth)
    shape = (case.depth, case.columns) if case.axis == 0 else (case.columns, case.depth)
    blocks = tuple(-(-e // case.block) if axis == case.axis else e for axis, e in enumerate(shape))
    low, high = RANGES[case.kind]
    numbers, zeros = generator.integers(low, high, shape), generator.integers(low, high, blocks)
    dtype, kind = (np.float16, TensorProto.FLOAT16) if case.half else (np.float32, TensorProto.FLOAT)
    scales = (generator.random(blocks) * 0.02 + 0.01).astype(dtype)
    tensors = [
        helper.make_tensor("w", case.kind, shape, numbers.ravel().tolist()),
        numpy_helper.from_array(scales, "s"),
    ]
    if case.zeros:
        tensors.append(helper.make_tensor("z", case.kind, blocks, zeros.ravel().tolist()))
    names = [tensor.name for tensor in tensors]
    nodes = [helper.make_node("DequantizeLinear", names, ["f"], axis=case.axis, block_size=case.block)]
    if case.operator == "Gemm":
        nodes.append(helper.make_node("Gemm", ["x", "f"], ["y"], transB=case.axis))
    else:
        nodes += [helper.make_node("Transpose", ["f"], ["t"], perm=[1, 0])] if case.axis else []
        nodes.append(helper.make_node("MatMul", ["x", "t" if case.axis else "f"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, ["rows", case.depth])],
        [helper.make_tensor_value_info("y", kind, ["rows", case.columns])],
        tensors,
    )
    spread = [np.repeat(a, case.block, case.axis).astype(np.float64) for a in (zeros * case.zeros, scales)]
    cut = [a[: shape[0], : shape[1]] for a in spread]
    weights = (numbers - cut[0]) * cut[1]
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return model, weights if case.axis == 0 else weights.T


@pytest.mark.sampled(4, every_value=False)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.operator}-{case.kind}-{case.block}")
def test_products_read_packed_weights(case: Case, tmp_path: Path) -> None:
    model, weights = model_of(case)
    onnx.save(model, tmp_path / "m.onnx")
    packager.build(tmp_path / "m.onnx", tmp_path / "m.so", dims={"rows": (1, 40)}, golden=0, targets=targets_here())
    manifest = packager.inspect(tmp_path / "m.so").manifest
    assert any("block_matmul" in str(primitive.composite) for _, primitive in manifest.primitives())
    assert max(constant.bytes for constant in manifest.constants) < 2 * weights.size
    with packager.load(tmp_path / "m.so") as bundle:
        for rows in (1, 3, 40):
            generator = np.random.default_rng(rows)
            x = generator.standard_normal((rows, case.depth)).astype("float16" if case.half else "float32")
            (y,) = bundle.run({"x": x}).values()
            wanted = x.astype(np.float64) @ weights
            tolerance = 2e-3 if case.half else 3e-6
            np.testing.assert_allclose(y, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


@pytest.mark.parametrize(("precision", "tolerance"), [("fp16", 2e-3), ("bf16", 1e-2)])
def test_products_in_half_precision_read_packed_weights(precision: str, tolerance: float, tmp_path: Path) -> None:
    case = CASES[1]
    model, weights = model_of(case)
    onnx.save(model, tmp_path / "m.onnx")
    packager.build(
        tmp_path / "m.onnx", tmp_path / "m.so", dims={"rows": (1, 40)}, precision=precision, targets=targets_here()
    )
    manifest = packager.inspect(tmp_path / "m.so").manifest
    assert max(constant.bytes for constant in manifest.constants) < weights.size
    with packager.load(tmp_path / "m.so") as bundle:
        for rows in (2, 33):
            x = np.random.default_rng(rows).standard_normal((rows, case.depth)).astype("float32")
            (y,) = bundle.run({"x": x}).values()
            wanted = x.astype(np.float64) @ weights
            np.testing.assert_allclose(y, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


def test_other_uses_are_as_before(tmp_path: Path) -> None:
    """Weights that data give, and weights that are added and not multiplied."""
    values = np.random.default_rng(0).integers(-128, 128, (32, 8)).astype(np.int8)
    scales = np.linspace(0.1, 1, 16, dtype=np.float32).reshape(2, 8)
    tensors = [numpy_helper.from_array(values, "w"), numpy_helper.from_array(scales, "s")]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["f"], axis=0, block_size=16),
        helper.make_node("DequantizeLinear", ["q", "s"], ["d"], axis=0, block_size=16),
        helper.make_node("Add", ["f", "d"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("q", TensorProto.INT8, [32, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [32, 8])],
        tensors,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    q = np.roll(values, 3, 0)
    with packager.load(
        packager.build(tmp_path / "m.onnx", tmp_path / "m.so", golden=0, targets=targets_here())
    ) as bundle:
        (y,) = bundle.run({"q": q}).values()
    np.testing.assert_allclose(y, (values.astype(np.float32) + q) * np.repeat(scales, 16, 0), rtol=1e-5)
