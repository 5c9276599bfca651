"""Graphs of engines after they are rewritten: they compute the same, without transposes and float32 between halves."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from packager.backends.tensorrt.rewrite import rewrite
from packager.bundle.gpu.engine_graphs import EngineGraph, Form
from packager.emit.onnx import WrittenModel
from packager.errors import BundleError

RNG = np.random.default_rng(0)
CONV = """
net (float[2,9,9,8] x) => (float[2,9,9,8] y, float[2,8] z) {
  a = Transpose<perm=[0,3,1,2]>(x) v = Transpose<perm=[0,3,1,2]>(w)
  b = Conv<pads=[1,1,1,1]>(a, v) c = Transpose<perm=[0,2,3,1]>(b) d = Add(c, bias) e = Relu(d) f = Add(e, x)
  g = Mul(half, f) h = Transpose<perm=[0,3,1,2]>(g) i = Conv<pads=[1,1,1,1]>(h, v) j = Transpose<perm=[0,2,3,1]>(i)
  k = Concat<axis=-1>(j, e) m = Transpose<perm=[0,3,1,2]>(k) n = Conv(m, one) o = Transpose<perm=[0,2,3,1]>(n)
  y = Sigmoid(o) z = ReduceMean<axes=[1,2], keepdims=0>(o)
}
"""


def written(text: str, arrays: dict[str, np.ndarray], opset: int = 17, kept: tuple[str, ...] = ()) -> WrittenModel:
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    return WrittenModel(proto, arrays, kept)


def whole(model: WrittenModel, forms: Any = ()) -> bytes:
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    formed = {name: forms[name].apply(model.arrays[forms[name].source]) for name in forms}
    read = {name for node in proto.graph.node for name in node.input}
    for name, array in {**model.arrays, **formed}.items():
        if name in read:
            proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
    onnx.checker.check_model(proto, full_check=True)
    return bytes(proto.SerializeToString())


def results(model: bytes, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(session(model).run(None, inputs))


@functools.cache
def session(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options)


def operators(model: WrittenModel) -> Counter[str]:
    return Counter(node.op_type for node in model.proto.graph.node)


def normal(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def test_convolutions_are_channels_first() -> None:
    """Inputs and outputs are channels last: two transposes of values are left, for an input and for an output."""
    arrays = {"w": normal(8, 3, 3, 8), "bias": normal(8), "half": np.float32([[0.5]]), "one": normal(8, 16, 1, 1)}
    before = written(CONV, arrays, kept=("w", "bias"))
    after, forms = rewrite(before, rounds=False)
    assert operators(after)["Transpose"] == 2
    assert {form.source for form in forms.values()} == {"w", "bias"}
    (bias,) = [node.input[2] for node in after.proto.graph.node if node.op_type == "Conv" and len(node.input) == 3]
    assert forms[bias] == Form("bias", (("reshape", (1, 1, 1, 8)), ("transpose", (0, 3, 1, 2)), ("reshape", (8,))))
    x = {"x": normal(2, 9, 9, 8)}
    for got, want in zip(results(whole(after, forms), x), results(whole(before), x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


INTERLEAVED = """
net (float[2,5,4,8] x, float[2,{h},{w},8] s) => (float[2,{h},{w},16] y) {{
  a = Transpose<perm=[0,3,1,2]>(x) b = Conv(a, w) c = Transpose<perm=[0,2,3,1]>(b)
  d = Reshape(c, split) e = Transpose<perm=[0,1,3,2,4,5]>(d) f = Reshape(e, joined) y = Concat<axis=-1>(s, f)
}}
"""


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (3, 3), (1, 2), (2, 1)])
def test_transposed_convolutions_for_cutlass_are_convolutions_and_depth_to_space(rows: int, columns: int) -> None:
    """Blocks that are no squares stay what they are."""
    height, width = 5 * rows, 4 * columns
    arrays = {
        "w": normal(8 * rows * columns, 8, 1, 1),
        "split": np.int64([2, 5, 4, rows, columns, 8]),
        "joined": np.int64([2, height, width, 8]),
    }
    before = written(INTERLEAVED.format(h=height, w=width), arrays, kept=("w",))
    after, forms = rewrite(before, rounds=False)
    found = operators(after)
    if rows == columns:
        assert (found["DepthToSpace"], found["Reshape"], found["Transpose"]) == (1, 0, 3)  # of inputs, and the output
    else:
        assert found == operators(before)
    inputs = {"x": normal(2, 5, 4, 8), "s": normal(2, height, width, 8)}
    for got, want in zip(results(whole(after, forms), inputs), results(whole(before), inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def random_graph(seed: int) -> WrittenModel:
    """Return a graph of transposes, elementwise operators, reductions and concatenations in any order."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"x": (2, 3, 4, 5), "t": (2, 3, 4, 5)}
    arrays: dict[str, np.ndarray] = {}
    lines = []

    def constant(shape: tuple[int, ...]) -> str:
        name = f"c{len(arrays)}"
        kept = shape[int(rng.integers(0, len(shape) + 1)) :]
        arrays[name] = rng.standard_normal([extent if rng.random() < 0.6 else 1 for extent in kept]).astype(np.float32)
        return name

    for number in range(int(rng.integers(4, 14))):
        name, operand = f"v{number}", str(rng.choice(list(shapes)[-4:]))
        shape = shapes[operand]
        kind = rng.choice(
            ["transpose", "unary", "constant", "binary", "concat", "reduce"], p=[0.4, 0.1, 0.2, 0.1, 0.1, 0.1]
        )
        like = [other for other in shapes if shapes[other] == shape]
        if kind == "transpose":
            order = [int(axis) for axis in rng.permutation(len(shape))]
            lines.append(f"{name} = Transpose<perm={order}>({operand})")
            shape = tuple(shape[axis] for axis in order)
        elif kind == "unary":
            lines.append(f"{name} = Tanh({operand})")
        elif kind == "constant":
            pair = [operand, constant(shape)]
            lines.append(f"{name} = Add({', '.join(pair[:: int(rng.choice([1, -1]))])})")
        elif kind == "binary":
            lines.append(f"{name} = Sub({operand}, {rng.choice(like)})")
        elif kind == "concat" and len(shape) > 1 and max(shape) < 40:
            axis = int(rng.integers(-len(shape), len(shape)))
            lines.append(f"{name} = Concat<axis={axis}>({operand}, {rng.choice(like)})")
            shape = tuple(2 * extent if at == axis % len(shape) else extent for at, extent in enumerate(shape))
        elif len(shape) > 1:
            axes = sorted(int(axis) for axis in rng.choice(len(shape), int(rng.integers(1, len(shape))), replace=False))
            keep = int(rng.integers(0, 2))
            lines.append(f"{name} = ReduceMax<axes={axes}, keepdims={keep}>({operand})")
            shape = tuple(1 if at in axes else e for at, e in enumerate(shape) if keep or at not in axes)
        else:
            lines.append(f"{name} = Neg({operand})")
        shapes[name] = shape
    made = list(shapes)[2:]
    outputs = {made[-1], *map(str, rng.choice(made, 2))}
    types = ", ".join(f"float{list(shapes[name])} {name}" for name in sorted(outputs))
    return written(
        f"net (float[2,3,4,5] x, float[2,3,4,5] t) => ({types}) {{ {' '.join(lines)} }}", arrays, kept=("c0",)
    )


@pytest.mark.parametrize("seed", range(120))
def test_any_graph_computes_the_same(seed: int) -> None:
    before = random_graph(seed)
    after, forms = rewrite(before, rounds=False)
    inputs = {"x": normal(2, 3, 4, 5), "t": normal(2, 3, 4, 5)}
    names = {one.name for one in after.proto.graph.input}
    given = {name: array for name, array in inputs.items() if name in names}
    for got, want in zip(results(whole(after, forms), given), results(whole(before), given), strict=True):
        np.testing.assert_array_equal(got, want)


def islands(body: str, constant: float, *, rounds: bool) -> tuple[WrittenModel, WrittenModel]:
    text = f"net (float16[4,8] x, float16[4,8] t) => (float16[4,8] y) {{ a = Cast<to=1>(x) b = Cast<to=1>(t) {body} }}"
    before = written(text, {"k": np.full(8, constant, np.float32)})
    return before, rewrite(before, rounds=rounds)[0]


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div", "Max"])
@pytest.mark.parametrize("second", ["b", "k"])
def test_one_operator_between_halves_is_computed_in_half(operator: str, second: str) -> None:
    """Rounded from float32 it is what the exact result, or that of float64, is rounded to; subnormal ones too."""
    before, after = islands(f"c = {operator}(a, {second}) y = Cast<to=10>(c)", 3.0, rounds=False)
    assert operators(after) == {operator: 1, "Identity": 1}
    with np.errstate(over="ignore"):
        x, t = ((normal(1024, 4, 8) * 2.0 ** RNG.uniform(-22, 15, (1024, 4, 8))).astype(np.float16) for _ in range(2))
    x, t = (np.where(np.isfinite(one), one, np.float16(1)) for one in (x, t))
    t = np.where(t == 0, np.float16(1), t)
    exact = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Max": np.maximum}[operator]
    old = whole(before)
    for one, other in zip(x, t, strict=True):
        (got,) = results(old, {"x": one, "t": other})
        with np.errstate(over="ignore"):
            want = exact(one.astype(np.float64), 3.0 if second == "k" else other.astype(np.float64)).astype(np.float16)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("body", "constant", "kept", "with_rounds"),
    [
        ("c = Add(a, k) y = Cast<to=10>(c)", 0.1, 3, 0),  # 0.1 is no half
        ("c = Add(a, k) d = Mul(c, b) y = Cast<to=10>(d)", 2.0, 3, 0),  # the sum is not rounded
        ("c = Add(a, k) y = Cast<to=10>(c)", 1e6, 3, 3),  # larger than halves
        ("c = Mul(a, k) y = Cast<to=10>(c)", 1e-7, 3, 3),  # it would lose most of its digits
        ("s = Sigmoid(a) c = Mul(a, s) y = Cast<to=10>(c)", 1.0, 2, 0),
        ("c = Add(b, k) d = Div(a, c) y = Cast<to=10>(d)", 1.0, 3, 3),  # what is small there may be zero in half
        (
            "c = Mul(a, b) m = ReduceMean<axes=[1]>(c) d = Sub(c, m) y = Cast<to=10>(d)",
            1.0,
            3,
            3,
        ),  # squares may be large
    ],
)
def test_what_is_computed_in_half(body: str, constant: float, kept: int, with_rounds: int) -> None:
    """The numbers are those of casts that are left, as the types of the model say and with ``rounds``."""
    for rounds, casts in ((False, kept), (True, with_rounds)):
        before, after = islands(body, constant, rounds=rounds)
        read = {name for node in after.proto.graph.node for name in node.input}
        assert operators(after)["Cast"] == (casts if {"x", "t"} <= read else min(casts, 2)), rounds
        feeds = {"x": normal(4, 8, dtype=np.float16), "t": normal(4, 8, dtype=np.float16)}
        (want,), (got,) = results(whole(before), feeds), results(whole(after), feeds)
        np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=4e-3, atol=2e-3)


def test_forms_are_made_in_order_of_their_steps() -> None:
    form = Form("w", (("reshape", (2, 3)), ("transpose", (1, 0)), ("cast", "float16")))
    array = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(form.apply(array), np.float16([[0, 3], [1, 4], [2, 5]]))
    assert (form.dtype("float32"), Form("w", ()).dtype("bfloat16")) == ("float16", "bfloat16")


@pytest.mark.parametrize("step", [("flip", 0), ("reshape", (4,)), ("transpose", (0, 1))])
def test_a_form_that_a_constant_cannot_have_is_damage(step: tuple[str, Any]) -> None:
    graph = EngineGraph("0123456789abcdef", "f", "tensorrt", {}, ("w",), b"", {"w.form": Form("w", (step,))})
    with pytest.raises(BundleError, match="engine 0123456789ab needs a constant in a form") as error:
        graph.initializers({"w": np.zeros(6, np.float32)})
    assert error.value.hint
