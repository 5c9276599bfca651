"""What the cutlass backend takes of layers that begin a model: residuals that are inputs, and projected memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from packager.backends.cutlass.attention.problem import AttentionProblem
from packager.graph.products.matmul import MatmulProblem
from packager.ir.model import PartitionedModel
from tests.stages import problems
from tests.unit.backends.cutlass.test_cutlass_patterns import partitioned, taken, weights

ROWS, MEMORY, WIDTH, HEADS = 16, 48, 64, 2
HEADER = '<ir_version: 8, opset_import: ["": 17]> net '
VECTORS = weights(scale=(WIDTH,), shift=(WIDTH,))
FORMS = {
    "pre-norm": "a = LayerNormalization (x, scale, shift) b = MatMul(a, w) c = Add(b, bias) d = Add(x, c)"
    " e = LayerNormalization (d, scale, shift) f = MatMul(e, v) y = Add(d, f)",
    "post-norm": "b = MatMul(x, w) c = Add(b, bias) d = Add(c, x) e = LayerNormalization (d, scale, shift)"
    " f = MatMul(e, v) g = Add(f, e) y = LayerNormalization (g, scale, shift)",
    "read again": "b = MatMul(x, w) c = Add(b, bias) d = Add(c, x) e = LayerNormalization (d, scale, shift)"
    " h = Add(e, place) f = MatMul(h, v) g = Add(f, e) y = LayerNormalization (g, scale, shift)",
}


@pytest.mark.parametrize("form", FORMS)
def test_residuals_have_the_type_of_products(tmp_path: Path, form: str) -> None:
    """Whether they are inputs in float32, or what others read in float32, too; no sum is cast afterwards."""
    text = f"{HEADER}(float[2,{ROWS},{WIDTH}] x) => (float[2,{ROWS},{WIDTH}] y) {{ {FORMS[form]} }}"
    tensors = VECTORS + weights(w=(WIDTH, WIDTH), v=(WIDTH, WIDTH), bias=(WIDTH,), place=(1, ROWS, WIDTH))
    found = [
        problem for problem in problems(partitioned(tmp_path, text, tensors)) if isinstance(problem, MatmulProblem)
    ]
    assert [problem.out for problem in found] == ["float16", "float16"]
    assert all(str(problem.chain.residual.ty.dtype) == "float16" for problem in found)


def reshaped(**shapes: tuple[int, ...]) -> list[onnx.TensorProto]:
    return [onnx.numpy_helper.from_array(np.array(shape, np.int64), name) for name, shape in shapes.items()]


def layer(number: int, queries: str, memory: str, biased: bool) -> str:
    """Return attention of ``queries``, or of learned heads, with a memory, as ``y`` and a number."""
    parts = []
    for name, source in (("q", queries), ("k", memory), ("v", memory)):
        if source == "learned":
            continue
        value = f"Add({name}0_{number}, {name}b)" if biased else f"Identity({name}0_{number})"
        axes = "0, 2, 3, 1" if name == "k" else "0, 2, 1, 3"
        parts.append(
            f"{name}0_{number} = MatMul({source}, {name}w{number}) {name}1_{number} = {value} {name}2_{number} = "
            f"Reshape({name}1_{number}, split) {name}_{number} = Transpose <perm = [{axes}]> ({name}2_{number})"
        )
    first = "learned" if queries == "learned" else f"q_{number}"
    return (
        f"{' '.join(parts)} s_{number} = MatMul({first}, k_{number}) a_{number} = Div(s_{number}, root)"
        f" p_{number} = Softmax <axis = -1> (a_{number}) o_{number} = MatMul(p_{number}, v_{number})"
        f" t_{number} = Transpose <perm = [0, 2, 1, 3]> (o_{number}) y{number} = Reshape(t_{number}, join) "
    )


MATRICES = {f"{name}w{number}": (WIDTH, WIDTH) for name in "qkv" for number in (0, 1)}
PARTS = [
    *weights(**MATRICES, qb=(WIDTH,), kb=(WIDTH,), vb=(WIDTH,), learned=(1, HEADS, ROWS, WIDTH // HEADS)),
    *reshaped(split=(0, -1, HEADS, WIDTH // HEADS), join=(0, -1, WIDTH)),
    onnx.numpy_helper.from_array(np.array((WIDTH // HEADS) ** 0.5, np.float32), "root"),
]
INPUTS = f"(float[2,{ROWS},{WIDTH}] x, float[2,{MEMORY},{WIDTH}] m) => "


def kinds(model: PartitionedModel) -> Counter[str]:
    return Counter(
        "attention" if isinstance(problem, AttentionProblem) else f"{problem.depth}x{problem.columns}"
        for problem in problems(model)
    )


@pytest.mark.parametrize("biased", [True, False])
def test_a_memory_is_projected_once(tmp_path: Path, biased: bool) -> None:
    layers = layer(0, "x", "m", biased) + layer(1, "y0", "m", biased)
    text = f"{HEADER}{INPUTS}(float[2,{ROWS},{WIDTH}] y1) {{ {layers} }}"
    found = kinds(partitioned(tmp_path, text, PARTS))
    assert found == {"attention": 2, f"{WIDTH}x{4 * WIDTH}": 1, f"{WIDTH}x{WIDTH}": 1}  # of all queries one


def test_rows_are_projected_once_for_attention_both_ways(tmp_path: Path) -> None:
    both = f"(float[2,{ROWS},{WIDTH}] y0, float[2,{MEMORY},{WIDTH}] y1)"
    text = f"{HEADER}{INPUTS}{both} {{ {layer(0, 'x', 'm', True)}{layer(1, 'm', 'x', True)} }}"
    assert kinds(partitioned(tmp_path, text, PARTS)) == {"attention": 2, f"{WIDTH}x{3 * WIDTH}": 2}


def test_attention_with_learned_queries_is_taken(tmp_path: Path) -> None:
    inputs = f"(float[2,{MEMORY},{WIDTH}] m) => "
    text = f"{HEADER}{inputs}(float[2,{ROWS},{WIDTH}] y0) {{ {layer(0, 'learned', 'm', True)} }}"
    tensors = [tensor for tensor in PARTS if tensor.name != "learned"]
    tensors += weights(learned=(2, HEADS, ROWS, WIDTH // HEADS))
    names = [name for name, _ in taken(tmp_path, text, tensors)]
    assert sorted(names) == ["cutlass.attention", "cutlass.dense"]


def test_queries_keys_and_values_of_the_same_rows_stay_with_attention(tmp_path: Path) -> None:
    text = f"{HEADER}{INPUTS}(float[2,{ROWS},{WIDTH}] y0) {{ {layer(0, 'x', 'x', True)} }}"
    ((name, ops),) = taken(tmp_path, text, PARTS)
    assert (name, ops.count("matmul")) == ("cutlass.attention", 5)
