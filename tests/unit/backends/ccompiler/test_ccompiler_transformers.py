"""What the ccompiler backend takes of transformers: attention as exporters write it, activations after reshapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.stages import placed_file, placement_table, problems

TARGETS = ("llvm", "ccompiler")
ROWS, HEADS, DEPTH = 6, 2, 8
WIDTH = HEADS * DEPTH


def tensors(**arrays: np.ndarray | float) -> list[onnx.TensorProto]:
    return [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]


def taken(tmp_path: Path, text: str, constants: list[onnx.TensorProto]) -> list[tuple[str, list[str]]]:
    """Return the composite and the operators of each partition."""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(constants)
    onnx.checker.check_model(model)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    table = placement_table(path, targets=TARGETS)
    return [(part["composite"], part["operators"]) for part in table["partitions"]]


# Scores, whether they are masked causally, and whether a mask is read.
SCORES = {
    "plain": ("s = MatMul(q, k) m = Mul(s, scale) p = Softmax<axis = -1>(m)", (False, False)),
    "scaled operands": (
        "a = Mul(q, scale) b = Mul(k, scale) s = MatMul(a, b) p = Softmax<axis = -1>(s)",
        (False, False),
    ),
    "causal": ("s = MatMul(q, k) m = Add(s, causal) p = Softmax<axis = -1>(m)", (True, False)),
    "mask of zeros": ("s = MatMul(q, k) m = Add(s, zeros) p = Softmax<axis = -1>(m)", (False, False)),
    "mask": ("s = MatMul(q, k) m = Add(s, given) p = Softmax<axis = -1>(m)", (False, True)),
    "chosen": ("s = MatMul(q, k) m = Where(keep, s, low) p = Softmax<axis = -1>(m)", (False, False)),
}


@pytest.mark.parametrize("case", SCORES)
def test_attention_is_one_partition(case: str, tmp_path: Path) -> None:
    scores, masks = SCORES[case]
    text = (
        '<ir_version: 8, opset_import: ["": 17]> m'
        f"(float[1,{ROWS},{WIDTH}] x, float[1,1,1,{ROWS}] given, bool[1,1,1,{ROWS}] keep)"
        f" => (float[1,{ROWS},{WIDTH}] y)"
        "{ qr = Reshape(x, shape) q = Transpose<perm = [0, 2, 1, 3]>(qr) k = Transpose<perm = [0, 2, 3, 1]>(qr)"
        f" {scores} w = MatMul(p, q) t = Transpose<perm = [0, 2, 1, 3]>(w) y = Reshape(t, back) }}"
    )
    causal = np.triu(np.full((1, 1, ROWS, ROWS), -1e9, "f4"), 1)
    constants = tensors(
        shape=np.array([1, ROWS, HEADS, DEPTH]),
        back=np.array([1, ROWS, WIDTH]),
        scale=np.float32(0.3),
        causal=causal,
        zeros=np.zeros_like(causal),
        low=np.float32(-1e9),
    )
    partitions = taken(tmp_path, text, [c for c in constants if f"{c.name})" in text or f"{c.name}," in text])
    assert [name for name, _ in partitions] == ["ccompiler.attention"]
    assert partitions[0][1].count("permute_dims") == 3
    (attention,) = problems(placed_file(tmp_path / "model.onnx", targets=TARGETS))
    assert (attention.causal, attention.mask is not None) == masks


def test_an_activation_after_a_reshape_belongs_to_the_product(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> m (float[1,5,8] x) => (float[1,5,16] y)'
        "{ f = Reshape(x, fold) p = MatMul(f, w) b = Add(p, bias) h = Reshape(b, unfold)"
        " c = Mul(h, h) t = Tanh(c) g = Mul(h, t) y = Relu(g) }"
    )
    weights = np.random.default_rng(0).standard_normal((8, 16), dtype=np.float32)
    constants = tensors(fold=np.array([5, 8]), unfold=np.array([1, 5, 16]), w=weights, bias=weights[0])
    ((name, operators),) = taken(tmp_path, text, constants)
    assert name == "ccompiler.dense+ccompiler.elementwise"
    assert operators == ["matmul", "add", "multiply", "tanh", "multiply", "nn.relu"]
