"""What the cutlass backend takes of a model, however an exporter writes it; nothing is compiled."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from packager.backends.cutlass.attention.problem import AttentionProblem
from packager.backends.cutlass.conv.cost_model import rank_conv
from packager.backends.cutlass.conv.problem import conv_shape
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.cost_model import GemmForm
from packager.graph.dataflow import operator_of
from packager.ir.model import PartitionedModel
from tests.stages import placed_file, placement_table, problems

TARGETS = ("cuda -arch=sm_90a", "cutlass")
BATCH, LENGTH, HEADS, DEPTH = 2, 16, 4, 8
WIDTH = HEADS * DEPTH


def weights(**shapes: tuple[int, ...]) -> list[onnx.TensorProto]:
    rng = np.random.default_rng(0)
    return [onnx.numpy_helper.from_array(rng.standard_normal(s, dtype=np.float32), n) for n, s in shapes.items()]


def taken(tmp_path: Path, text: str, tensors: list[onnx.TensorProto], **options: Any) -> list[tuple[str, list[str]]]:
    """Return the composite and the operators of each partition."""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(tensors)
    onnx.checker.check_model(model)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    options = {"precision": "fp16", "targets": TARGETS, **options}
    table = placement_table(path, **options)
    return [(part["composite"], part["operators"]) for part in table["partitions"]]


def partitioned(tmp_path: Path, text: str, tensors: list[onnx.TensorProto], **options: Any) -> PartitionedModel:
    """Return the placed model."""
    path = tmp_path / "model.onnx"
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(tensors)
    onnx.save(model, path)
    return placed_file(path, **{"targets": TARGETS, "precision": "fp16", **options})


GELU = {
    "erf": "d = Div(a, sqrt2) e = Erf(d) o = Add(e, one) m = Mul(a, o) y = Mul(m, half)",
    "half first": "h = Mul(half, a) d = Mul(a, rsqrt2) e = Erf(d) o = Add(one, e) y = Mul(o, h)",
    "tanh": "c = Pow(a, three) d = Mul(c, k) e = Add(a, d) f = Mul(e, s) t = Tanh(f) o = Add(t, one) "
    "h = Mul(half, a) y = Mul(h, o)",
    "sigmoid": "y = Sigmoid(a)",
    "silu": "g = Sigmoid(a) y = Mul(a, g)",
    "hardswish": "y = HardSwish(a)",
    "relu": "y = Relu(a)",
    "tanh alone": "y = Tanh(a)",
    "leaky relu": "y = LeakyRelu <alpha = 0.2> (a)",
    "relu6": "y = Clip(a, zero, six)",
    "relu6 of two": "r = Relu(a) y = Min(r, six)",
    "relu6 by hand": "m = Min(a, six) y = Relu(m)",
    "hard tanh": "y = Clip(a, negative, one)",
    "upper bound": "y = Min(a, six)",
    "hard sigmoid": "y = HardSigmoid <alpha = 0.16666667, beta = 0.5> (a)",
    "hard sigmoid by hand": "t = Add(a, three) c = Clip(t, zero, six) y = Div(c, six)",
    "mish": "e = Softplus(a) t = Tanh(e) y = Mul(a, t)",
    "softplus": "y = Softplus(a)",
    "quick gelu": "m = Mul(a, quick) g = Sigmoid(m) y = Mul(a, g)",
    "elu": "y = Elu <alpha = 0.5> (a)",
    "elu by hand": "e = Exp(a) d = Sub(e, one) c = Greater(a, zero) y = Where(c, a, d)",
    "selu": "y = Selu(a)",
    "celu": "y = Celu(a)",
    "squared relu": "r = Relu(a) y = Mul(r, r)",
    "star relu": "r = Relu(a) q = Pow(r, two) m = Mul(q, half) y = Sub(m, one)",
    "sine of a multiple": "m = Mul(a, six) y = Sin(m)",
}
SCALARS = {
    "sqrt2": math.sqrt(2),
    "rsqrt2": math.sqrt(0.5),
    "quick": 1.702,
    "one": 1.0,
    "two": 2.0,
    "half": 0.5,
    "three": 3.0,
    "zero": 0.0,
    "six": 6.0,
    "negative": -1.0,
    "k": 0.044715,
    "s": math.sqrt(2 / math.pi),
}


def scalars(text: str) -> list[onnx.TensorProto]:
    used = [name for name in SCALARS if f"({name}," in text or f", {name})" in text or f", {name}," in text]
    return [onnx.numpy_helper.from_array(np.array(SCALARS[name], np.float32), name) for name in used]


@pytest.mark.parametrize("precision", ["fp16", "bf16", None])
@pytest.mark.parametrize("form", GELU)
def test_an_activation_is_taken_in_whatever_form(tmp_path: Path, form: str, precision: str | None) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> net (float[n,32] x) => (float[n,64] y)'
        f" {{ p = MatMul(x, w) a = Add(p, b) {GELU[form]} }}"
    )
    tensors = weights(w=(32, 64), b=(64,)) + scalars(GELU[form])
    ((name, ops),) = taken(tmp_path, text, tensors, precision=precision, dims={"n": (1, 8)})
    assert name == "cutlass.dense"
    assert ops[0] == "matmul"
    assert len(ops) >= (4 if form.startswith("relu6") else 3)


def test_what_is_no_activation_stays(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> net (float[4,32] x) => (float[4,64] y)'
        " { p = MatMul(x, w) a = Add(p, b) c = Sin(a) y = Mul(a, c) }"
    )
    ((name, ops),) = taken(tmp_path, text, weights(w=(32, 64), b=(64,)), precision=None)
    assert (name, ops) == ("cutlass.dense", ["matmul", "add"])


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("c = Clip(a, zero, six) y = Mul(c, three)", "minimum"),  # which is no activation of its own
        ("r = Relu(a) t = Sin(r) c = Min(r, six) y = Add(c, t)", "nn.relu"),  # others read the ReLU as well
        ("m = Max(a, six) c = Min(m, zero) y = Neg(c)", "maximum"),  # what remains is a constant
    ],
)
def test_the_longest_activation_is_taken(tmp_path: Path, text: str, last: str) -> None:
    whole = (
        '<ir_version: 8, opset_import: ["": 17]> net (float[4,32] x) => (float[4,64] y)'
        f" {{ p = MatMul(x, w) a = Add(p, b) {text} }}"
    )
    ((name, ops),) = taken(tmp_path, whole, weights(w=(32, 64), b=(64,)) + scalars(text), precision=None)
    assert (name, ops[-1]) == ("cutlass.dense", last)


def test_a_value_that_is_used_elsewhere_ends_a_chain(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> net (float[4,32] x) => (float[4,64] y, float[4,64] a)'
        " { p = MatMul(x, w) a = Add(p, b) y = Relu(a) }"
    )
    ((_, ops),) = taken(tmp_path, text, weights(w=(32, 64), b=(64,)), precision=None)
    assert ops == ["matmul", "add"]


@pytest.mark.parametrize("first", ["r, q", "q, r"])
def test_a_residual_is_added(tmp_path: Path, first: str) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> net (float[2,4,32] x, float[2,4,64] r) => (float[2,4,64] y)'
        f" {{ p = MatMul(x, w) q = Add(p, b) y = Add({first}) }}"
    )
    ((_, ops),) = taken(tmp_path, text, weights(w=(32, 64), b=(64,)), precision=None)
    assert ops.count("add") == 2


def test_products_of_activations(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> net (float[3,8,32] x, float[3,32,16] w) => (float[3,8,16] y)'
        " { p = MatMul(x, w) y = Mul(p, half) }"
    )
    ((name, ops),) = taken(tmp_path, text, scalars(", half)"), precision=None)
    assert (name, ops) == ("cutlass.dense", ["matmul", "multiply"])


def test_one_matrix_times_many(tmp_path: Path) -> None:
    """As what mixes tokens: it is read once for each, with no copies."""
    text = (
        '<ir_version: 8, opset_import: ["": 17]> net (float[3,2,16,64] x) => (float[3,2,8,64] y)'
        " { p = MatMul(w, x) y = Relu(p) }"
    )
    (problem,) = problems(partitioned(tmp_path, text, weights(w=(8, 16))))
    assert (problem.batch, problem.rows, problem.columns, problem.repeats) == ((3, 2), (8,), 64, True)


ATTENTION = """
<ir_version: 8, opset_import: ["": 17]>
net (float[{batch},16,32] x{mask_input}) => (float[{batch},16,32] y) {{
  q0 = MatMul(x, wq) q1 = Add(q0, bq) q2 = Reshape(q1, split) q = Transpose <perm = [0, 2, 1, 3]> (q2)
  k0 = MatMul(x, wk) k1 = Add(bk, k0) k2 = Reshape(k1, split) k = Transpose <perm = [0, 2, {k}]> (k2)
  v0 = MatMul(x, wv) v1 = Add(v0, bv) v2 = Reshape(v1, split) v = Transpose <perm = [0, 2, 1, 3]> (v2)
  {scores}
  p = Softmax <axis = {axis}> (s)
  o = MatMul(p, v)
  t = Transpose <perm = [0, 2, 1, 3]> (o)
  y = Reshape(t, join)
}}
"""
PARTS = weights(wq=(32, 32), wk=(32, 32), wv=(32, 32), bq=(32,), bk=(32,), bv=(32,))
PARTS += [
    onnx.numpy_helper.from_array(np.array([0, LENGTH, HEADS, DEPTH], np.int64), "split"),
    onnx.numpy_helper.from_array(np.array([0, LENGTH, WIDTH], np.int64), "join"),
    onnx.numpy_helper.from_array(np.array(math.sqrt(DEPTH), np.float32), "root"),
]
SCORES = "a = MatMul(q, k) s = Div(a, root)"
MASKED = "a = MatMul(q, k) b = Div(a, root) s = Add(b, mask)"


def attention(
    scores: str = SCORES, *, batch: Any = BATCH, mask_input: str = "", k: str = "3, 1", axis: int = -1
) -> str:
    return ATTENTION.format(scores=scores, batch=batch, mask_input=mask_input, k=k, axis=axis)


@pytest.mark.parametrize("batch", [1, BATCH, "n"])
def test_attention_is_taken_with_its_projections(tmp_path: Path, batch: Any) -> None:
    dims = {"n": (1, 4)} if batch == "n" else {}
    ((name, ops),) = taken(tmp_path, attention(batch=batch), PARTS, dims=dims)
    assert name == "cutlass.attention"
    assert ops.count("matmul") == 5
    assert ops.count("permute_dims") >= 4


def test_keys_that_are_transposed_twice(tmp_path: Path) -> None:
    scores = "kt = Transpose <perm = [0, 1, 3, 2]> (k) a = MatMul(q, kt) s = Div(a, root)"
    ((name, _),) = taken(tmp_path, attention(scores, k="1, 3"), PARTS)
    assert name == "cutlass.attention"


def test_a_causal_mask_is_known_by_its_value(tmp_path: Path) -> None:
    mask = np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1)[None, None]
    tensors = [*PARTS, onnx.numpy_helper.from_array(mask, "mask")]
    (problem,) = problems(partitioned(tmp_path, attention(MASKED), tensors))
    assert (problem.form.causal, problem.form.bias) == (True, "none")


PADDING = "one = Constant <value_float = 1.0> () low = Constant <value_float = -3.4028235e38> () z = Sub(one, keep)"
PADDED = f"{PADDING} mask = Mul(z, low) a = MatMul(q, k) b = Div(a, root) s = Add(b, mask)"


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("rows", [1, LENGTH])
def test_a_mask_that_is_computed_from_an_input(tmp_path: Path, precision: str, rows: int) -> None:
    """As BERT's padding, float32 whatever the model computes in."""
    mask_input = f", float[{BATCH},1,{rows},{LENGTH}] keep"
    (problem,) = problems(partitioned(tmp_path, attention(PADDED, mask_input=mask_input), PARTS, precision=precision))
    assert (problem.form.causal, problem.form.bias) == (False, "keys" if rows == 1 else "dense")


RELATIVE = (
    "r0 = MatMul(x, wr) r1 = Reshape(r0, places) r = Transpose <perm = [0, 2, 1, 3]> (r1) mask = Mul(r, root)"
    " a = MatMul(q, k) b = Div(a, root) s = Add(b, mask)"
)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_bias_that_is_computed_by_a_product(tmp_path: Path, precision: str) -> None:
    """As relative positions of XLNet and Funnel: what widens it is covered."""
    places = onnx.numpy_helper.from_array(np.array([0, LENGTH, HEADS, LENGTH], np.int64), "places")
    tensors = [*PARTS, *weights(wr=(32, HEADS * LENGTH)), places]
    found = problems(partitioned(tmp_path, attention(RELATIVE), tensors, precision=precision))
    assert [problem.form.bias for problem in found if isinstance(problem, AttentionProblem)] == ["dense"]


CAPPED = (
    "a = MatMul(q, k) b = Div(a, root) c = Div(b, cap) d = Tanh(c) e = Mul(d, cap)"
    " chosen = Cast <to = 9> (keep) none = Constant <value_float = -3.4028235e38> () s = Where(chosen, e, none)"
)


@pytest.mark.parametrize("precision", [None, "fp16", "bf16"])
def test_scores_with_a_soft_cap(tmp_path: Path, precision: str | None) -> None:
    """As Gemma 2's; in float32 no kernel bounds them."""
    cap = onnx.numpy_helper.from_array(np.array(30.0, np.float32), "cap")
    text = attention(CAPPED, mask_input=f", float[{BATCH},1,{LENGTH},{LENGTH}] keep")
    found = problems(partitioned(tmp_path, text, [*PARTS, cap], precision=precision))
    capped = [problem for problem in found if isinstance(problem, AttentionProblem)]
    assert [problem.form.capped for problem in capped] == [True] * bool(precision)
    for problem in capped:
        assert problem.attention.softcap == 30.0
        assert math.isclose(problem.attention.scale, DEPTH**-0.5, rel_tol=1e-6)


@pytest.mark.parametrize("change", ["weak", "wrong"])
def test_other_masks_are_not_causal(tmp_path: Path, change: str) -> None:
    mask = np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1)[None, None]
    if change == "weak":
        mask[..., 0, 1] = -1
    else:
        mask[..., 3, 0] = -1e9
    tensors = [*PARTS, onnx.numpy_helper.from_array(mask, "mask")]
    found = problems(partitioned(tmp_path, attention(MASKED), tensors))
    assert not any(isinstance(problem, AttentionProblem) and problem.form.causal for problem in found)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (attention(axis=1), "the softmax is over heads"),
        (attention("m = MatMul(q, k) a = Sin(m) s = Div(a, root)"), "something stands between"),
        (
            attention("m = MatMul(q, k) s = Div(m, root) z = Relu(s)").replace("=> (", "=> (float[2,4,16,16] z, "),
            "taps",
        ),
    ],
    ids=lambda value: value if len(value) < 40 else "",
)
def test_what_is_no_attention(tmp_path: Path, text: str, why: str) -> None:
    assert why
    assert {name for name, _ in taken(tmp_path, text, PARTS)} == {"cutlass.dense"}


CONV = """
<ir_version: 8, opset_import: ["": 17]>
net (float[2,{c},14,14] x) => (float[2,{o},{h},{h}] y) {{
  a = Conv <pads = [{pad}], strides = [{s}, {s}], group = {group}> (x, w, b)
  {after}
}}
"""


def conv(
    o: int, *, c: int = 16, size: int = 3, s: int = 1, pad: str = "1, 1, 1, 1", group: int = 1, after: str = ""
) -> Any:
    top, _, bottom, _ = map(int, pad.split(","))
    height = (14 + top + bottom - size) // s + 1
    text = CONV.format(c=c, o=o, h=height, pad=pad, s=s, group=group, after=after or "y = Relu(a)")
    return text, weights(w=(o, c // group, size, size), b=(o,))


@pytest.mark.parametrize(
    "model",
    [
        conv(16),
        conv(32, s=2),
        conv(32, size=1, pad="0, 0, 0, 0"),
        conv(16, after="r = Add(a, x) y = Relu(r)"),
        conv(16, c=17),
        conv(12, c=3),
        conv(12, c=1),
        conv(16, pad="1, 1, 0, 0"),
        conv(16, size=1, pad="0, 0, 1, 1"),
    ],
    ids=["3x3", "stride", "1x1", "residual", "17 channels", "12 filters", "1 channel", "one side", "1x1 on one side"],
)
def test_convolutions(tmp_path: Path, model: Any) -> None:
    ((name, ops),) = taken(tmp_path, *model)
    assert name == "cutlass.conv2d"
    assert ops[-1] in ("nn.relu", "astype")


@pytest.mark.parametrize("precision", ["fp16", "bf16", None])
@pytest.mark.parametrize(
    "model",
    [
        conv(16, c=3),
        conv(8, c=3, size=7, s=2, pad="3, 3, 3, 3"),
        conv(16, c=1, size=5, pad="1, 2, 2, 1"),
        conv(16, c=10, after="r = Sigmoid(a) y = Mul(a, r)"),
    ],
    ids=["3 channels", "7x7", "1 channel", "10 channels"],
)
def test_convolutions_of_few_channels_are_products(tmp_path: Path, model: Any, precision: str | None) -> None:
    """Of float32, and on GPUs without TMA."""
    targets = ("cuda -arch=sm_90a" if precision is None else "cuda -arch=sm_80", "cutlass")
    ((name, ops),) = taken(tmp_path, *model, precision=precision, targets=targets)
    assert name == "cutlass.dense"
    assert ops[0] == "matmul"
    assert "add" in ops
    assert ops[-1] in ("nn.relu", "multiply", "astype")


@pytest.mark.parametrize(
    ("model", "channels", "window", "stride"),
    [
        (conv(16, c=3), 8, (3, 4), (1, 1)),
        (conv(8, c=3, size=7, s=2, pad="3, 3, 3, 3"), 8, (4, 8), (1, 2)),
        (conv(16, c=1, size=5, s=2, pad="2, 2, 2, 2"), 4, (3, 8), (1, 2)),
    ],
    ids=["3x3", "7x7 by two rows", "1 channel"],
)
def test_convolutions_of_few_channels_are_read_by_rows(
    tmp_path: Path, model: Any, channels: int, window: tuple[int, int], stride: tuple[int, int]
) -> None:
    """A row of the window is one vector for TMA, of which the kernel for sm_90a takes all in a step."""
    (problem,) = problems(partitioned(tmp_path, *model))
    conv = problem.conv
    assert (conv.channels, conv.window, conv.stride, conv.padding[1]) == (channels, window, stride, 0)
    ranking = rank_conv(conv_shape(conv, 100), GemmForm(conv.dtype, conv.dtype), CutlassOptions(arch=("sm_90a",)))
    assert all(choice.kernel.rows for candidate in ranking.candidates for choice in candidate.choices)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "model",
    [
        conv(16, c=3, size=2, s=2, pad="0, 0, 0, 0"),
        conv(16, c=10),
        conv(12, c=3, size=7, s=2, pad="3, 3, 3, 3"),
    ],
    ids=["no overlap", "10 channels", "12 filters"],
)
def test_what_is_not_read_by_rows(tmp_path: Path, model: Any) -> None:
    found = problems(partitioned(tmp_path, *model))
    assert all(getattr(problem, "conv", None) is None or problem.conv.padding[1] for problem in found)


@pytest.mark.parametrize("operators", ["conv2d", "dense"])
def test_they_are_convolutions_unless_products_are_taken_too(tmp_path: Path, operators: str) -> None:
    targets = ("cuda -arch=sm_90a", f"cutlass -operators={operators}")
    found = [name for name, _ in taken(tmp_path, *conv(16, c=3), targets=targets)]
    assert found == ["cutlass.conv2d"] * (operators == "conv2d")


STEM = """
<ir_version: 8, opset_import: ["": 17]>
net (float[n,3,34,34] x) => (float[n,64,9,9] y) {
  a = Conv <pads = [3, 3, 3, 3], strides = [2, 2]> (x, w, b) r = Relu(a)
  m = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (r)
  c = Conv <pads = [1, 1, 1, 1]> (m, v, b) y = Relu(c)
}
"""
PATCHES = """
<ir_version: 8, opset_import: ["": 17]>
net (float[n,3,32,32] x) => (float[n,4,32] y) {
  a = Conv <strides = [16, 16]> (x, w, b) f = Reshape(a, flat) t = Transpose <perm = [0, 2, 1]> (f) y = Relu(t)
}
"""


def operators_of(tmp_path: Path, text: str, tensors: list[onnx.TensorProto], dims: dict[str, Any]) -> list[str]:
    """Return the operators that the placed model calls; partitions by their composites."""
    placed = partitioned(tmp_path, text, tensors, dims=dims)
    calls = [b.value for block in placed.module["main"].body.blocks for b in block.bindings]
    names = {name: part.partition.composites[0].name for name, part in placed.partitions.items()}
    return [names[c.args[0].global_symbol] if operator_of(c) == "call_dps_packed" else operator_of(c) for c in calls]


@pytest.mark.parametrize("dims", [{"n": 1}, {"n": (1, 4)}], ids=["1", "n"])
def test_what_follows_such_a_product_is_not_transposed(tmp_path: Path, dims: dict[str, Any]) -> None:
    stem = operators_of(tmp_path, STEM, weights(w=(64, 3, 7, 7), v=(64, 64, 3, 3), b=(64,)), dims)
    want = ["call_tir", "cutlass.conv2d", "nn.max_pool2d", "cutlass.conv2d", "astype", "permute_dims"]
    assert [name for name in stem if name] == ["astype", *want], "the last is of the model's own layout"
    flat = [onnx.numpy_helper.from_array(np.array([0, 32, 4], np.int64), "flat")]
    patches = operators_of(tmp_path, PATCHES, weights(w=(32, 3, 16, 16), b=(32,)) + flat, dims)
    assert [name for name in patches if name] == ["astype", "call_tir", "cutlass.dense", "astype"]


def test_depthwise_convolutions_stay(tmp_path: Path) -> None:
    assert taken(tmp_path, *conv(16, group=16)) == []


@pytest.mark.parametrize(("channels", "is_taken"), [(2, False), (16, True)])
def test_one_filter_of_few_elements_stays(tmp_path: Path, channels: int, is_taken: bool) -> None:
    assert bool(taken(tmp_path, *conv(1, c=channels, size=7, pad="3, 3, 3, 3"))) == is_taken


def test_another_gpu_beside(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = onnx.parser.parse_model(attention())
    model.graph.initializer.extend(PARTS)
    onnx.save(model, path)
    table = placement_table(path, targets=("cuda -arch=sm_80,sm_90a", "cutlass"), precision="fp16")
    assert [part["composite"] for part in table["partitions"]] == ["cutlass.attention"]


def test_products_with_one_column_are_left_to_sums_of_rows(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> net (float[4,32] x) => (float[4,1] y)'
        " { h = MatMul(x, w) r = Relu(h) p = MatMul(r, v) a = Add(p, b) y = Sigmoid(a) }"
    )
    ((_, ops),) = taken(tmp_path, text, weights(w=(32, 64), v=(64, 1), b=(1,)))
    assert ops == ["matmul", "nn.relu"]


def recurrent(
    tmp_path: Path, operator: str, attributes: str, hidden: int, *, lengths: bool = False, **how: Any
) -> bool:
    """Whether a layer of seven steps over 32 inputs is taken."""
    gates, directions = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator], 2 if "bidirectional" in attributes else 1
    more = ", int32[n] s" if lengths else ""
    text = (
        f'<ir_version: 8, opset_import: ["": 17]> net (float[7,n,32] x{more}) => (float[7,{directions},n,{hidden}] y)'
        f" {{ y = {operator} <hidden_size = {hidden}{attributes}> (x, w, r, b{', s' if lengths else ''}) }}"
    )
    sizes = {"w": (directions, gates * hidden, 32), "r": (directions, gates * hidden, hidden)}
    tensors = weights(**sizes, b=(directions, 2 * gates * hidden))
    found = taken(tmp_path, text, tensors, **{"precision": "fp16", "dims": {"n": (1, 8)}, **how})
    return any(name == "cutlass.recurrent" for name, _ in found)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("operator", "attributes", "hidden"),
    [
        ("LSTM", "", 64),
        ("LSTM", ', direction = "bidirectional"', 20),
        ("LSTM", ', direction = "reverse"', 320),
        ("GRU", ", linear_before_reset = 1", 256),
    ],
)
def test_recurrent_layers_are_taken(
    tmp_path: Path, operator: str, attributes: str, hidden: int, precision: str
) -> None:
    assert recurrent(tmp_path, operator, attributes, hidden, precision=precision)


def test_other_recurrent_layers_are_left(tmp_path: Path) -> None:
    assert not recurrent(tmp_path, "LSTM", "", 336)
    assert not recurrent(tmp_path, "LSTM", ", clip = 1.0", 64)
    assert not recurrent(tmp_path, "LSTM", "", 64, lengths=True)
    assert not recurrent(tmp_path, "LSTM", "", 64, precision=None)
    assert not recurrent(tmp_path, "GRU", "", 64)
    assert not recurrent(tmp_path, "RNN", "", 64)
    older = ("cuda -arch=sm_80", "cutlass")  # no clusters
    assert recurrent(tmp_path, "LSTM", "", 128, targets=older)
    assert not recurrent(tmp_path, "LSTM", "", 256, targets=older)
