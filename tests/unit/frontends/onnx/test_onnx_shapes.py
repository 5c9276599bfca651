"""Arithmetic on shapes of ONNX models whose dims are symbolic: done at import, or by the functions of operators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator

import packager
from packager.errors import ModelError
from tests.one_cpu import targets_here

pytestmark = pytest.mark.slow

HEADER = '<ir_version: 10, opset_import: ["" : 24]>\n'
BOUNDS = {"b": (1, 4), "s": (1, 9)}


def _compare(text: str, inputs: dict[str, np.ndarray], folder: Path, dims: dict[str, tuple[int, int]] = BOUNDS) -> None:
    model = parse_model(HEADER + text)
    onnx.save(model, folder / "model.onnx")
    packager.build(folder / "model.onnx", folder / "model.so", dims=dims, targets=targets_here())
    with packager.load(folder / "model.so") as bundle:
        made = bundle.run(inputs)
    expected = ReferenceEvaluator(model).run(None, inputs)
    for have, want in zip(made.values(), expected, strict=True):
        assert have.shape == want.shape
        assert have.dtype == want.dtype
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape, dtype=np.float32)


BODIES = {
    "up to a multiple": (
        3,
        """n = Shape <start: int = 1, end: int = 2> (x) four = Constant <value_ints: ints = [4]> () less = Neg(n)
        rest = Mod(less, four) zero = Constant <value_ints: ints = [0]> ()
        pads = Concat <axis: int = 0> (zero, zero, zero, zero, rest, zero) y = Pad(x, pads)""",
    ),
    "heads": (
        4,
        """n = Shape <start: int = 0, end: int = 2> (x) w = Shape <start: int = 2> (x)
        h = Constant <value_ints: ints = [3]> () d = Div(w, h) t = Concat <axis: int = 0> (n, h, d)
        r = Reshape(x, t) y = Transpose <perm: ints = [0, 2, 1, 3]> (r)""",
    ),
    "rows": (
        2,
        """t = Shape(x) zero = Constant <value_int: int = 0> () one = Constant <value_int: int = 1> ()
        b = Gather(t, zero) s = Gather(t, one) m = Mul(b, s) axes = Constant <value_ints: ints = [0]> ()
        rows = Unsqueeze(m, axes) rest = Constant <value_ints: ints = [-1]> ()
        u = Concat <axis: int = 0> (rows, rest) y = Reshape(x, u)""",
    ),
    "half": (
        3,
        """t = Shape <start: int = 1, end: int = 2> (x) two = Constant <value_ints: ints = [2]> ()
        one = Constant <value_ints: ints = [1]> () k = Add(t, one) half = Div(k, two)
        zero = Constant <value_ints: ints = [0]> () y = Slice(x, zero, half, one)""",
    ),
    "the rest": (
        3,
        """t = Shape <start: int = 1, end: int = 2> (x) two = Constant <value_ints: ints = [2]> ()
        one = Constant <value_ints: ints = [1]> () half = Div(t, two)
        last = Constant <value_ints: ints = [9223372036854775807]> () y = Slice(x, half, last, one)""",
    ),
    "past the end": (
        3,
        """t = Shape <start: int = 1, end: int = 2> (x) two = Constant <value_ints: ints = [2]> ()
        one = Constant <value_ints: ints = [1]> () far = Mul(t, two)
        zero = Constant <value_ints: ints = [0]> () y = Slice(x, zero, far, one)""",
    ),
    "constant": (3, "t = Shape(x) c = ConstantOfShape <value: tensor = float[1] {2.0}> (t) y = Add(x, c)"),
    "as a tensor": (
        3,
        """t = Shape(x) f = Cast <to: int = 1> (t) z = Constant <value_ints: ints = [1]> ()
        g = Gather(f, z) y = Div(x, g)""",
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_shapes_are_computed_from_symbolic_dims(name: str, tmp_path: Path) -> None:
    rank, body = BODIES[name]
    output = ", ".join(f"d{axis}" for axis in range(rank))
    _compare(f"shapes (float[b, s, 6] x) => (float[{output}] y) {{ {body} }}", {"x": _random(3, 5, 6)}, tmp_path)


def test_a_shape_is_a_result(tmp_path: Path) -> None:
    text = "shape (float[b, s, 6] x) => (int64[2] y, float[b, s, 6] z) { y = Shape <end: int = 2> (x) z = Neg(x) }"
    _compare(text, {"x": _random(3, 5, 6)}, tmp_path)


def test_a_branch_whose_condition_follows_from_a_shape_is_taken(tmp_path: Path) -> None:
    text = """branch (float[b, 3] x) => (float[b, 3] y) {
        r = Shape(x) n = Size(r) two = Constant <value_int: int = 2> () c = Equal(n, two)
        y = If (c) <then_branch = g () => (t) { t = Relu(x) }, else_branch = h () => (e) { e = Neg(x) }> }"""
    _compare(text, {"x": _random(2, 3)}, tmp_path, {"b": (1, 4)})


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_loss_is_expanded_with_a_symbolic_batch(reduction: str, tmp_path: Path) -> None:
    shape = "[b]" if reduction == "none" else ""
    text = f"""loss (float[b, 5] x, int64[b] labels, float[5] weights) => (float{shape} y) {{
        y = SoftmaxCrossEntropyLoss <reduction: string = "{reduction}", ignore_index: int = 2>
        (x, labels, weights) }}"""
    inputs = {"x": _random(4, 5), "labels": np.array([0, 2, 4, 1]), "weights": np.abs(_random(5))}
    _compare(text, inputs, tmp_path, {"b": (1, 4)})


def test_means_and_deviations_of_a_layer_normalization(tmp_path: Path) -> None:
    text = """norm (float[b, s, 6] x, float[6] scale, float[6] bias)
        => (float[b, s, 6] y, float[b, s, 1] m, float[b, s, 1] d) { y, m, d = LayerNormalization(x, scale, bias) }"""
    _compare(text, {"x": _random(3, 5, 6), "scale": _random(6), "bias": _random(6)}, tmp_path)


def test_a_causal_convolution_with_a_state(tmp_path: Path) -> None:
    header = '<ir_version: 13, opset_import: ["" : 27]>\n'
    text = """conv (float[b, 4, s] x, float[4, 1, 3] w, float[b, 4, 2] past) => (float[b, 4, s] y, float[b, 4, 2] state)
        { y, state = CausalConvWithState <activation: string = "silu"> (x, w, "", past) }"""
    inputs = {"x": _random(2, 4, 5), "w": _random(4, 1, 3), "past": _random(2, 4, 2)}
    model = parse_model(header + text)
    onnx.save(model, tmp_path / "model.onnx")
    packager.build(tmp_path / "model.onnx", tmp_path / "model.so", dims=BOUNDS, targets=targets_here())
    with packager.load(tmp_path / "model.so") as bundle:
        made = bundle.run(inputs)
    for have, want in zip(made.values(), ReferenceEvaluator(model).run(None, inputs), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


def test_rows_that_are_all_infinite_have_that_maximum(tmp_path: Path) -> None:
    text = """most (float[b, 3] x) => (float[b] y, float[b] z) { axes = Constant <value_ints: ints = [1]> ()
        y = ReduceMax <keepdims: int = 0> (x, axes) z = ReduceMin <keepdims: int = 0> (x, axes) }"""
    infinite = np.array([[-np.inf] * 3, [np.inf] * 3, [1, -np.inf, 2]], np.float32)
    _compare(text, {"x": infinite}, tmp_path, {"b": (1, 4)})


def test_a_value_without_elements_is_refused_by_its_node(tmp_path: Path) -> None:
    text = """empty (float[n, 3] x) => (float[n, k] y) { three = Constant <value_ints: ints = [3]> ()
        four = Constant <value_ints: ints = [4]> () one = Constant <value_ints: ints = [1]> ()
        [cut] y = Slice(x, three, four, one) }"""
    onnx.save(parse_model(HEADER + text), tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="'cut' has no elements"):
        packager.build(tmp_path / "model.onnx", tmp_path / "model.so", dims={"n": (1, 4)}, targets=targets_here())


@pytest.mark.parametrize("condition", [False, True])
def test_a_branch_whose_condition_is_an_input_is_a_choice(condition: bool, tmp_path: Path) -> None:
    text = """choice (bool c, float[2, 3] x) => (float[2, 3] y) {
        y = If (c) <then_branch = g () => (t) { t = Relu(x) }, else_branch = h () => (e) { e = Neg(x) }> }"""
    _compare(text, {"c": np.array(condition), "x": _random(2, 3)}, tmp_path, {})
