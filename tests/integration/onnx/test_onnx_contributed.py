"""onnxruntime's own operators against onnxruntime: all of one opset in one model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import packager
from packager.errors import ModelError
from tests.one_cpu import targets_here

RNG = np.random.default_rng(7)
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Given:
    """An operand: an input of the model, or a constant."""

    array: np.ndarray
    constant: bool = False


@dataclass(frozen=True)
class Case:
    """A node; ``tolerance`` is relative to the greatest magnitude, for integers absolute (one step of rounding)."""

    operator: str
    operands: tuple[Given | None, ...]
    outputs: tuple[bool, ...] = (True,)
    domain: str = MICROSOFT
    opset: int = 17
    attributes: dict[str, Any] = field(default_factory=dict)


def x(array: Any) -> Given:
    return Given(np.asarray(array))


def c(array: Any) -> Given:
    return Given(np.asarray(array), constant=True)


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def u8(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def i8(*shape: int) -> np.ndarray:
    return RNG.integers(-127, 128, shape).astype(np.int8)


def scale(value: float) -> Given:
    return c(np.float32(value))


def zero(value: int, dtype: Any = np.uint8) -> Given:
    return c(dtype(value))


def case(operator: str, *operands: Given | None, outputs: Any = (True,), domain: str = MICROSOFT, opset: int = 17,
         **attributes: Any) -> Case:  # fmt: skip
    return Case(operator, operands, tuple(outputs), domain, opset, attributes)


def packed(rows: int, depth: int, block: int, *, zeros: bool = False) -> list[Given]:
    blocks = -(-depth // block)
    made = [x(f(2, 3, depth)), c(u8(rows, blocks, block // 2)), c(np.abs(f(rows * blocks)))]
    return [*made, c(u8(rows * -(-blocks // 2)))] if zeros else made


def embedding(width: int) -> list[Given]:
    """Rows of ``width`` bytes and three scales at most, and which to take."""
    return [c(u8(10, width)), x(np.array([[0, 3], [5, 7]])), c(np.abs(f(10, 3 if width > 16 else 2)))]


LENGTHS = np.array([3, 5], np.int32)
IDS, SEGMENTS = RNG.integers(0, 10, (2, 5)).astype(np.int32), RNG.integers(0, 2, (2, 5)).astype(np.int32)
MASK = np.array([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]], np.int32)
PLACES = np.array([[0, 1, 2, 3, 4], [3, 4, 5, 6, 7]], np.int64)
A, B = (x(u8(2, 8)), scale(0.02), zero(120)), (x(u8(2, 8)), scale(0.03), zero(110))
ONTO = (scale(0.05), zero(100))
SUM = (True, False, False, True)

CASES = [
    case("Gelu", x(f(2, 3, 8))),
    case("BiasGelu", x(f(2, 3, 8)), c(f(8))),
    case("FastGelu", x(f(2, 3, 8))),
    case("FastGelu", x(f(2, 3, 8)), c(f(8))),
    case("QuickGelu", x(f(2, 8)), alpha=1.702),
    case("FusedMatMul", x(f(2, 3, 4)), x(f(2, 5, 4)), transB=1, alpha=0.5),
    case("FusedMatMul", x(f(2, 4, 3)), x(f(2, 4, 5)), transA=1),
    case("FusedGemm", x(f(3, 4)), c(f(4, 5)), c(f(5)), activation="Relu"),
    case("FusedGemm", x(f(3, 4)), c(f(5, 4)), c(f(5)), transB=1, activation="LeakyRelu", activation_alpha=0.1),
    case("FusedConv", x(f(1, 3, 8, 8)), c(f(4, 3, 3, 3)), c(f(4)), activation="Relu", pads=[1] * 4),
    case("FusedConv", x(f(1, 3, 8, 8)), c(f(4, 3, 3, 3)), c(f(4)), x(f(1, 4, 6, 6)), activation="Relu"),
    case("FusedConv", x(f(1, 3, 8, 8)), c(f(4, 3, 3, 3)), activation="Clip", activation_params=[0.0, 6.0]),
    case("FusedConv", x(f(1, 3, 8, 8)), c(f(4, 3, 3, 3)), activation="HardSigmoid", activation_params=[0.2, 0.4]),
    case("SimplifiedLayerNormalization", x(f(2, 3, 8)), c(f(8)), domain="", epsilon=1e-6),
    case("SimplifiedLayerNormalization", x(f(2, 3, 8)), c(f(8)), domain="", epsilon=1e-6, opset=14),
    case("LayerNormalization", x(f(2, 3, 8)), c(f(8)), c(f(8)), domain="", opset=14),
    case("SkipLayerNormalization", *(x(f(2, 3, 8)), x(f(2, 3, 8)), c(f(8)), c(f(8)), c(f(8))), outputs=SUM),
    case("SkipLayerNormalization", x(f(2, 3, 8)), x(f(2, 3, 8)), c(f(8))),
    case("SkipLayerNormalization", x(f(2, 3, 8)), x(f(2, 3, 8)), c(f(8)), c(f(8)), opset=12),
    case("SkipSimplifiedLayerNormalization", x(f(2, 3, 8)), x(f(2, 3, 8)), c(f(8)), outputs=SUM, epsilon=1e-6),
    case("EmbedLayerNormalization", x(IDS), x(SEGMENTS), c(f(10, 8)), c(f(6, 8)), c(f(2, 8)), c(f(8)), c(f(8)), x(MASK),
         outputs=(True, True), epsilon=1e-12),
    case("EmbedLayerNormalization", x(IDS), None, c(f(10, 8)), c(f(6, 8)), None, c(f(8)), c(f(8)),
         outputs=(True, True)),
    case("QLinearAdd", *A, *B, *ONTO),
    case("QLinearMul", *A, *B, *ONTO),
    case("QLinearSigmoid", *A, scale(1 / 256), zero(0)),
    case("QLinearLeakyRelu", x(i8(2, 8)), scale(0.02), zero(3, np.int8), scale(0.02), zero(0, np.int8), alpha=0.1),
    case("QLinearGlobalAveragePool", x(u8(1, 3, 4, 4)), scale(0.02), zero(120), *ONTO, channels_last=0),
    case("QLinearAveragePool", x(u8(1, 3, 4, 4)), scale(0.02), zero(120), scale(0.02), zero(110), kernel_shape=[2, 2]),
    case("QLinearConcat", *ONTO, x(u8(2, 3)), scale(0.03), zero(100), x(u8(2, 4)), scale(0.01), zero(128), axis=1),
    case("QLinearSoftmax", x(u8(2, 8)), scale(0.1), zero(120), scale(1 / 256), zero(0), axis=-1, opset=17),
    case("QGemm", x(u8(3, 4)), scale(0.02), zero(120), c(i8(4, 5)), scale(0.01), zero(0, np.int8),
         c(RNG.integers(-100, 100, 5).astype(np.int32)), scale(0.05), zero(128), alpha=1.0),
    case("QGemm", x(u8(3, 4)), scale(0.02), zero(120), c(i8(5, 4)), c(np.abs(f(5)) * 0.01 + 0.001),
         c(np.zeros(5, np.int8)), c(RNG.integers(-100, 100, 5).astype(np.int32)), scale(0.05), zero(128), transB=1),
    case("MatMulIntegerToFloat", x(u8(3, 4)), c(i8(4, 5)), scale(0.02), c(np.abs(f(5))), zero(120),
         c(np.zeros(5, np.int8)), c(f(5))),
    case("DynamicQuantizeMatMul", x(f(3, 4)), c(u8(4, 5)), scale(0.02), zero(120), c(f(5))),
    case("DequantizeLinear", *A),
    case("QuantizeLinear", x(f(3, 4)), scale(0.02), zero(120)),
    case("MatMulNBits", *packed(8, 64, 32), K=64, N=8, bits=4, block_size=32),
    case("MatMulNBits", *packed(8, 96, 32, zeros=True), K=96, N=8, bits=4, block_size=32),
    case("MatMulNBits", *packed(8, 80, 32), K=80, N=8, bits=4, block_size=32),
    case("Attention", x(f(2, 5, 8)), c(f(8, 24)), c(f(24)), x(MASK), num_heads=2),
    case("Attention", x(f(2, 5, 8)), c(f(8, 24)), c(f(24)), num_heads=2, unidirectional=1),
    case("Attention", x(f(2, 5, 8)), c(f(8, 24)), c(f(24)), None, x(f(2, 2, 2, 3, 4)), outputs=(True, True),
         num_heads=2, unidirectional=1),
    case("Attention", x(f(2, 5, 8)), c(f(8, 24)), c(f(24)), None, None, x(f(2, 2, 5, 5)), num_heads=2),
    case("MultiHeadAttention", x(f(2, 5, 8)), x(f(2, 6, 8)), x(f(2, 6, 8)), num_heads=2),
    case("MultiHeadAttention", x(f(2, 5, 8)), x(f(2, 6, 8)), x(f(2, 6, 8)), c(f(24)), num_heads=2, scale=0.3),
    case("MultiHeadAttention", x(f(2, 5, 8)), x(f(2, 5, 8)), x(f(2, 5, 8)), None, x(MASK), num_heads=2),
    case("MultiHeadAttention", x(f(2, 5, 8)), x(f(2, 2, 6, 4)), x(f(2, 2, 6, 4)), num_heads=2),
    case("MultiHeadAttention", x(f(2, 1, 8)), x(f(2, 1, 8)), x(f(2, 1, 8)), None, None, None, x(f(2, 2, 3, 4)),
         x(f(2, 2, 3, 4)), outputs=(True,) * 3, num_heads=2),
    case("Attention", x(f(2, 5, 8)), c(f(8, 24)), c(f(24)), x(LENGTHS), num_heads=2),
    case("QAttention", x(u8(2, 5, 8)), c(i8(8, 24)), c(f(24)), scale(0.02), scale(0.01), None, zero(120),
         zero(0, np.int8), num_heads=2),
    case("QAttention", x(u8(2, 5, 8)), c(i8(8, 24)), c(f(24)), scale(0.02), c(np.abs(f(24)) * 0.01), x(LENGTHS),
         zero(120), c(np.zeros(24, np.int8)), num_heads=2),
    case("QLinearConv", x(u8(1, 8, 8, 3)), scale(0.02), zero(120), c(i8(4, 3, 3, 3)), scale(0.01), zero(0, np.int8),
         *ONTO, channels_last=1),
    case("NhwcMaxPool", x(u8(1, 8, 8, 3)), kernel_shape=[2, 2], strides=[2, 2]),
    case("GatherBlockQuantized", *embedding(24), c(u8(10, 2)), bits=4, block_size=16, opset=21),
    case("GatherBlockQuantized", *embedding(16), bits=4, block_size=16, opset=21),
    case("GatherBlockQuantized", *embedding(48), c(u8(10, 3)), bits=8, block_size=16, opset=21),
    case("RotaryEmbedding", x(f(2, 5, 16)), x(PLACES), c(f(16, 4)), c(f(16, 4))),
    case("RotaryEmbedding", x(f(2, 2, 5, 8)), x(PLACES), c(f(16, 4)), c(f(16, 4)), interleaved=1),
]  # fmt: skip


def model_of(cases: list[Case]) -> tuple[onnx.ModelProto, dict[str, np.ndarray], list[str]]:
    """Return a model with a node for each case, its inputs, and for each output the operator that it is of."""
    nodes, inputs, constants, names, owners = [], {}, [], [], []
    for number, one in enumerate(cases):
        operands = []
        for place, given in enumerate(one.operands):
            name = "" if given is None else f"v{number}_{place}"
            operands.append(name)
            if given is not None and given.constant:
                constants.append(numpy_helper.from_array(given.array, name))
            elif given is not None:
                inputs[name] = given.array
        outputs = [f"y{number}_{place}" if used else "" for place, used in enumerate(one.outputs)]
        names += filter(None, outputs)
        owners += [one.operator] * sum(one.outputs)
        attributes = dict(one.attributes)
        if one.operator == "QLinearSoftmax":
            attributes["opset"] = 13
        nodes.append(helper.make_node(one.operator, operands, outputs, f"n{number}", domain=one.domain, **attributes))
    declared = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    graph = helper.make_graph(nodes, "contributed", declared, [onnx.ValueInfoProto(name=n) for n in names], constants)
    versions = [helper.make_opsetid("", cases[0].opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=8), inputs, owners


@pytest.mark.slow
@pytest.mark.parametrize("opset", sorted({one.opset for one in CASES}))
def test_all_are_right(opset: int, tmp_path: Path) -> None:
    model, inputs, owners = model_of([one for one in CASES if one.opset == opset])
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, inputs)
    for value, array in zip(model.graph.output, wanted, strict=True):
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, [None] * array.ndim))
    onnx.save(model, tmp_path / "m.onnx")
    path = packager.build(tmp_path / "m.onnx", tmp_path / "m.so", targets=targets_here())
    with packager.load(path) as bundle:
        found = bundle.run(inputs)
    for owner, want, got in zip(owners, wanted, found.values(), strict=True):
        assert got.shape == want.shape, owner
        assert got.dtype == want.dtype, owner
        limit = 1 if want.dtype.kind in "iu" else 1e-4 * max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=0, atol=limit, err_msg=owner)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (case("FusedConv", x(f(1, 3, 8, 8)), c(f(4, 3, 3, 3)), activation="Wave"), "activation Wave"),
        (case("MatMulNBits", x(f(2, 64)), x(u8(8, 2, 16)), c(f(16)), K=64, N=8, bits=4, block_size=32), "not constant"),
        (case("MatMulNBits", *packed(8, 64, 32), N=8, bits=4, block_size=32), "lacks the attribute K"),
        (
            case(
                "PackedAttention", x(f(7, 8)), c(f(8, 24)), c(f(24)), x(MASK), x(LENGTHS), x(f(1, 2, 7, 7)), num_heads=2
            ),
            "added bias",
        ),
    ],
)
def test_a_use_that_is_not_supported_names_the_node(wrong: Case, why: str, tmp_path: Path) -> None:
    model, _, _ = model_of([wrong])
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y0_0", onnx.TensorProto.FLOAT, None))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=f"'n0' of operator {MICROSOFT}::{wrong.operator}") as caught:
        packager.build(tmp_path / "m.onnx", tmp_path / "m.so", targets=targets_here())
    assert why in (caught.value.detail or "")
    assert not (tmp_path / "m.so").exists()


@pytest.mark.slow
@pytest.mark.parametrize("level", [2, 4])
def test_the_accuracy_level_of_weights_in_blocks(level: int, tmp_path: Path) -> None:
    """Errors are like those of onnxruntime at this level, and larger than of float32: integers are in use."""
    depth, columns = 512, 96
    model, inputs, _ = model_of([case("MatMulNBits", *packed(columns, depth, 32), K=depth, N=columns, bits=4,
                                      block_size=32, accuracy_level=level)])  # fmt: skip
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y0_0", onnx.TensorProto.FLOAT, [2, 3, columns]))
    theirs = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)[0]
    onnx.save(model, tmp_path / "m.onnx")
    next(attribute for attribute in model.graph.node[0].attribute if attribute.name == "accuracy_level").i = 0
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)[0]
    with packager.load(packager.build(tmp_path / "m.onnx", tmp_path / "m.so", targets=targets_here())) as bundle:
        (found,) = bundle.run(inputs).values()
    error, limit = np.abs(found - wanted).max(), np.abs(theirs - wanted).max()
    assert 2e-6 * np.abs(wanted).max() < error <= max(2 * limit, 6e-5 * np.abs(wanted).max())


@pytest.mark.slow
def test_group_norm_with_silu(tmp_path: Path) -> None:
    """Against numpy: onnxruntime has it on GPUs only."""
    model, inputs, _ = model_of([case("GroupNorm", x(f(2, 4, 5, 8)), c(f(8)), c(f(8)), groups=2, activation=1)])
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y0_0", onnx.TensorProto.FLOAT, [2, 4, 5, 8]))
    onnx.save(model, tmp_path / "m.onnx")
    scale, bias = (numpy_helper.to_array(tensor).astype(np.float64) for tensor in model.graph.initializer)
    (data,) = (array.astype(np.float64) for array in inputs.values())
    groups = data.reshape(2, 20, 2, 4)
    normal = groups - groups.mean((1, 3), keepdims=True)
    normal = (normal / np.sqrt(groups.var((1, 3), keepdims=True) + 1e-5)).reshape(data.shape) * scale + bias
    with packager.load(packager.build(tmp_path / "m.onnx", tmp_path / "m.so", targets=targets_here())) as bundle:
        (found,) = bundle.run(inputs).values()
    np.testing.assert_allclose(found, normal / (1 + np.exp(-normal)), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("targets", [(), ("llvm",), ("llvm", "ccompiler -min_partition_flops=1000000000000")])
def test_weights_in_blocks_keep_their_names_and_stay_packed(targets: tuple[str, ...], tmp_path: Path) -> None:
    columns, depth = 320, 1024
    cases = [case("MatMulNBits", *packed(columns, depth, 32, zeros=z), K=depth, N=columns, bits=4, block_size=32)
             for z in (False, True)]  # fmt: skip
    model, inputs, _ = model_of(cases)
    for value in model.graph.output:
        value.CopyFrom(helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, [2, 3, columns]))
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    onnx.save(model, tmp_path / "m.onnx")
    path = packager.build(tmp_path / "m.onnx", tmp_path / "m.so", targets=list(targets))
    with packager.load(path) as bundle:
        found = bundle.run(inputs)
    for want, got in zip(wanted, found.values(), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())
    constants = packager.inspect(path).manifest.constants
    if targets != ("llvm",):
        assert {"v0_1", "v0_2", "v1_1", "v1_2"} <= {source for constant in constants for source in constant.sources}
    packed_bytes = 2 * columns * depth // 2 * 1.6  # with scales and zero points in float32
    dense_bytes = 2 * columns * depth * 4
    total = sum(constant.bytes for constant in constants)
    assert total >= dense_bytes if targets == ("llvm",) else total < packed_bytes
