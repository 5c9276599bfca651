"""Shape arithmetic as exporters write it, with symbolic dims, at several sizes against onnxruntime."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import packager
from packager.errors import UsageError
from packager.progress import Event
from tests.one_cpu import targets_here

RNG = np.random.default_rng(11)
EXPAND_AS = """g (float[b, s] x, float[1, 1, 1] y) => (float[b, 1, s] z) {
  shape = Shape(x)
  first = Constant<value = int64[1] {0}>()
  zero = Constant<value = int64 {0}>()
  one = Constant<value = int64 {1}>()
  ones = Constant<value = int64[1] {1}>()
  minus = Constant<value = int64[1] {-1}>()
  rank = Constant<value = int64[1] {3}>()
  batch = Gather<axis = 0>(shape, zero)
  length = Gather<axis = 0>(shape, one)
  b1 = Unsqueeze(batch, first)
  s1 = Unsqueeze(length, first)
  wanted = Concat<axis = 0>(b1, minus, s1)
  filled = ConstantOfShape<value = int64[1] {1}>(rank)
  marks = Mul(filled, minus)
  same = Equal(wanted, marks)
  chosen = Where(same, filled, wanted)
  z = Expand(y, chosen)
}"""
INT32 = """g (float[b, s] x) => (float[s, b] z, int32[2] half) {
  shape = Shape(x)
  small = Cast<to = 6>(shape)
  two = Constant<value = int32[1] {2}>()
  zero = Constant<value = int64 {0}>()
  one = Constant<value = int64 {1}>()
  s0 = Gather<axis = 0>(small, zero)
  s1 = Gather<axis = 0>(small, one)
  axis = Constant<value = int64[1] {0}>()
  a = Unsqueeze(s1, axis)
  b0 = Unsqueeze(s0, axis)
  both = Concat<axis = 0>(a, b0)
  wide = Cast<to = 7>(both)
  z = Reshape(x, wide)
  half = Div(small, two)
}"""
ENDS = """g (float[b, s] x) => (float[b, t] last, float[b, u] rest, float[b, v] tail) {
  axes = Constant<value = int64[1] {1}>()
  first = Constant<value = int64[1] {0}>()
  minus = Constant<value = int64[1] {-1}>()
  three = Constant<value = int64[1] {-3}>()
  far = Constant<value = int64[1] {9223372036854775807}>()
  last = Slice(x, three, far, axes)
  rest = Slice(x, first, minus, axes)
  shape = Shape(x)
  one = Constant<value = int64 {1}>()
  length = Gather<axis = 0>(shape, one)
  negative = Neg(length)
  start = Unsqueeze(negative, first)
  tail = Slice(x, start, far, axes)
}"""
NUMBERS = """g (float[b, s] x) => (int64[s] r, bool[n] small) {
  shape = Shape(x)
  one = Constant<value = int64 {1}>()
  zero = Constant<value = int64 {0}>()
  limit = Constant<value = int64[2] {100, 1000}>()
  length = Gather<axis = 0>(shape, one)
  narrow = Cast<to = 6>(length)
  wide = Cast<to = 7>(narrow)
  r = Range(zero, wide, one)
  small = Less(shape, limit)
}"""
FLAT = """g (float[b, 4, h, w] x) => (float[b, 4, n] z, float[b, 4, h2, w2] y) {
  shape = Shape(x)
  head = Constant<value = int64[1] {0}>()
  two = Constant<value = int64[1] {2}>()
  minus = Constant<value = int64[1] {-1}>()
  p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
  q = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(p)
  inner = Shape(q)
  kept = Slice(inner, head, two)
  flat = Concat<axis = 0>(kept, minus)
  z0 = Reshape(q, flat)
  z1 = Transpose<perm = [0, 2, 1]>(z0)
  z2 = Softmax<axis = 2>(z1)
  z = Transpose<perm = [0, 2, 1]>(z2)
  y0 = Reshape(z, inner)
  y = Relu(y0)
}"""
POOLED = """g (float[b, 4, h, w] x) => (float[b, 4, h, w] y) {
  mean = GlobalAveragePool(x)
  shape = Shape(x)
  start = Constant<value = int64[1] {2}>()
  end = Constant<value = int64[1] {4}>()
  zero = Constant<value = int64[1] {0}>()
  image = Slice(shape, start, end)
  small = Shape(mean)
  head = Slice(small, zero, start)
  sizes = Concat<axis = 0>(head, image)
  wide = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">(mean, , , sizes)
  same = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">(x, , , shape)
  y = Add(wide, same)
}"""
FRAMES = """g (float[b, s] x) => (float[b, f, 5, 2] y) {
  step = Constant<value = int64 {3}>()
  length = Constant<value = int64 {8}>()
  window = Constant<value = float[8] {0.1, 0.2, 0.3, 0.4, 0.4, 0.3, 0.2, 0.1}>()
  y = STFT<onesided = 1>(x, step, window, length)
}"""
IMAGES = [{"b": 1, "h": 8, "w": 21}, {"b": 2, "h": 15, "w": 12}]
SIZES = [{"b": 1, "s": 3}, {"b": 2, "s": 5}, {"b": 4, "s": 9}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "dims", "sizes"),
    [
        pytest.param(EXPAND_AS, {"b": (1, 4), "s": (1, 9)}, SIZES, id="Expand by Where of Equal"),
        pytest.param(INT32, {"b": (1, 4), "s": (1, 9)}, SIZES, id="shapes in int32"),
        pytest.param(ENDS, {"b": (1, 4), "s": (3, 9)}, SIZES, id="slices from the end"),
        pytest.param(NUMBERS, {"b": (1, 4), "s": (1, 9)}, SIZES, id="Range and comparisons"),
        pytest.param(POOLED, {"b": (1, 2), "h": (8, 21), "w": (8, 21)}, IMAGES, id="a pooled map resized"),
        pytest.param(FRAMES, {"b": (1, 2), "s": (8, 40)}, [{"b": 1, "s": 8}, {"b": 2, "s": 39}], id="STFT"),
        pytest.param(FLAT, {"b": (1, 2), "h": (8, 21), "w": (8, 21)}, IMAGES,
                     id="flattened images"),
    ],
)  # fmt: skip
def test_shapes(
    text: str, dims: Mapping[str, tuple[int, int]], sizes: Sequence[Mapping[str, int]], tmp_path: Path
) -> None:
    model = onnx.helper.make_model(
        parser.parse_graph(text), opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8
    )
    check(model, dims, sizes, tmp_path)


def check(
    model: onnx.ModelProto, dims: Mapping[str, tuple[int, int]], sizes: Sequence[Mapping[str, int]], folder: Path
) -> None:
    """Compare a bundle with onnxruntime at all sizes: values, element types and shapes."""
    onnx.save(model, folder / "m.onnx")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    path = packager.build(folder / "m.onnx", folder / "m.so", dims=dims, targets=targets_here())
    with packager.load(path) as bundle:
        for size in sizes:
            feeds = {}
            for value in model.graph.input:
                extents = [size[d.dim_param] if d.dim_param else d.dim_value for d in value.type.tensor_type.shape.dim]
                feeds[value.name] = RNG.standard_normal(extents).astype(np.float32)
            for got, want in zip(bundle.run(feeds).values(), session.run(None, feeds), strict=True):
                assert got.dtype == want.dtype
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def past_model(total: str) -> onnx.ModelProto:
    """Return a model with an input that is as long as two others together; ``total`` names its dim."""
    names = ("past", "new", "mask")
    made = [
        onnx.helper.make_tensor_value_info(name, 1, ["b", dim])
        for name, dim in zip(names, ("past length", "length", total), strict=True)
    ]
    nodes = [
        onnx.helper.make_node("Concat", ["past", "new"], ["all"], axis=1),
        onnx.helper.make_node("Mul", ["all", "mask"], ["y"]),
    ]
    output = onnx.helper.make_tensor_value_info("y", 1, None)
    graph = onnx.helper.make_graph(nodes, "past", made, [output])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.slow
def test_a_dim_that_is_named_by_an_expression_needs_no_bounds(tmp_path: Path) -> None:
    model = past_model("past + new")
    for value, dim in (("past", "past"), ("new", "new")):
        next(v for v in model.graph.input if v.name == value).type.tensor_type.shape.dim[1].dim_param = dim
    onnx.save(model, tmp_path / "m.onnx")
    path = packager.build(
        tmp_path / "m.onnx", tmp_path / "m.so", dims={"b": 2, "past": (1, 8), "new": (1, 4)}, targets=targets_here()
    )
    (total,) = (dim for dim in packager.inspect(path).manifest.dims if dim.name not in ("past", "new"))
    assert (total.min, total.max) == (2, 12)
    with packager.load(path) as bundle:
        feeds = {
            name: RNG.random((2, size)).astype(np.float32) for name, size in (("past", 5), ("new", 2), ("mask", 7))
        }
        want = np.concatenate([feeds["past"], feeds["new"]], 1) * feeds["mask"]
        np.testing.assert_allclose(bundle.run(feeds)["y"], want, rtol=1e-6)
        with pytest.raises(packager.PackagerError):
            bundle.run(feeds | {"mask": np.ones((2, 8), np.float32)})


@pytest.mark.parametrize("total", ["past length + other", "past + new +", "total"])
def test_another_name_needs_bounds(total: str, tmp_path: Path) -> None:
    onnx.save(past_model(total), tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="has no bounds"):
        packager.build(
            tmp_path / "m.onnx",
            tmp_path / "m.so",
            dims={"b": 2, "past_length": (1, 8), "length": (1, 4)},
            targets=targets_here(),
        )


@pytest.mark.slow
@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
def test_recurrent_nets_over_a_symbolic_number_of_steps(operator: str, tmp_path: Path) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator]
    weights = {
        "w": RNG.standard_normal((2, gates * 5, 3)) * 0.5,
        "r": RNG.standard_normal((2, gates * 5, 5)) * 0.5,
        "bias": RNG.standard_normal((2, gates * 10)) * 0.5,
    }
    outputs = ["y", "h", "c"][: 3 if operator == "LSTM" else 2]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(operator, ["x", *weights], outputs, hidden_size=5, direction="bidirectional")],
        "steps",
        [onnx.helper.make_tensor_value_info("x", 1, ["t", "b", 3])],
        [onnx.helper.make_tensor_value_info(name, 1, None) for name in outputs],
        [onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    check(model, {"t": (1, 12), "b": (1, 3)}, [{"t": 1, "b": 2}, {"t": 7, "b": 3}, {"t": 12, "b": 1}], tmp_path)


@pytest.mark.slow
def test_dims_are_given_as_the_model_spells_them_and_question_marks_are_no_names(tmp_path: Path) -> None:
    """Exporters of Paddle write ``DynamicDimension.0``, and ``?`` for each extent that they do not know."""
    given = onnx.helper.make_tensor_value_info("x", 1, ["DynamicDimension.0", 3, "?", "?"])
    output = onnx.helper.make_tensor_value_info("y", 1, ["DynamicDimension.0", 3, "?", "?"])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "paddle", [given], [output])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    dims = {"DynamicDimension.0": (1, 4), "x_2": (2, 8), "x_3": (2, 8)}
    path = packager.build(tmp_path / "m.onnx", tmp_path / "m.so", dims=dims, targets=targets_here())
    assert [dim.name for dim in packager.inspect(path).manifest.dims] == ["DynamicDimension_0", "x_2", "x_3"]
    x = RNG.standard_normal((2, 3, 4, 7)).astype(np.float32)
    with packager.load(path) as bundle:
        np.testing.assert_array_equal(bundle.run({"x": x})["y"], np.maximum(x, 0))


@pytest.mark.slow
@pytest.mark.parametrize("declared", [[1, "length"], [4, 3, 6], ["n"]])
def test_what_an_output_is_counts_and_not_what_its_exporter_says(declared: list[int | str], tmp_path: Path) -> None:
    """As onnxruntime does, with a warning: onnx's inference finds the same shape as packager."""
    given = onnx.helper.make_tensor_value_info("x", 1, [4, 3, 5])
    output = onnx.helper.make_tensor_value_info("y", 1, declared)
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "wrong", [given], [output])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    events: list[Event] = []
    path = packager.build(tmp_path / "m.onnx", tmp_path / "m.so", targets=targets_here(), progress=events.append)
    (warning,) = [event.text for event in events if event.warning]
    assert re.fullmatch(r"output 'y' is declared as .*, and is float32\[4, 3, 5\]: so it is in the bundle", warning)
    x = RNG.standard_normal((4, 3, 5)).astype(np.float32)
    with packager.load(path) as bundle:
        np.testing.assert_array_equal(bundle.run({"x": x})["y"], np.maximum(x, 0))
