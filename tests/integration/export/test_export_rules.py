"""Relax operators that no ONNX model is imported as, or not in this use: written, against the bundle of the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm
from one_cpu import targets_here
from tvm import relax
from tvm.relax import op

import packager
from packager.errors import ModelError
from packager.graph.normalize import Normalization, normalize
from packager.graph.windows.col2im import Windows, col2im
from packager.pipeline.export import export

Make = Callable[..., Any]
Shape = Sequence[int]

FLOATS: Mapping[str, Make] = {  # of t.x [2, 4, 6, 6], positive y and w of this shape, ids [5] from 0 to 3
    "rsqrt": lambda t: op.rsqrt(t.y),
    "square": lambda t: op.square(t.x),
    "trunc": lambda t: op.trunc(t.x),
    "silu": lambda t: op.nn.silu(t.x),
    "softplus": lambda t: op.nn.softplus(t.x),
    "floor_divide": lambda t: op.floor_divide(t.x, t.y),
    "floor_mod": lambda t: op.floor_mod(t.x, t.y),
    "not_equal": lambda t: op.not_equal(t.x, t.y),
    "batch_flatten": lambda t: op.nn.batch_flatten(t.x),
    "flatten": lambda t: op.flatten(t.x),
    "tile": lambda t: op.tile(t.x, [2, 1, 2]),
    "tile_more": lambda t: op.tile(t.x, [2, 1, 1, 1, 2]),
    "repeat": lambda t: op.repeat(t.x, 3, 1),
    "stack": lambda t: op.stack([t.x, t.y], 2),
    "split_at": lambda t: op.concat([op.split(t.x, [1, 3], 1)[part] for part in (2, 0, 1)], 1),
    "reverse": lambda t: op.strided_slice(t.x, [2], [5], [0], [-2]),
    "variance": lambda t: op.variance(t.x, [1, 3]),
    "std": lambda t: op.std(t.x, [-1], keepdims=True),
    "argmax_all": lambda t: op.argmax(t.x),
    "cumsum_exclusive": lambda t: op.cumsum(t.x, 2, exclusive=True),
    "take_clip": lambda t: op.take(t.x, op.add(t.ids, relax.const(2, "int64")), 1, mode="clip"),
    "index": lambda t: op.index_tensor(t.x, [op.minimum(t.ids, relax.const(1, "int64")), t.ids]),
    "index_one": lambda t: op.index_tensor(op.permute_dims(t.x, [1, 0, 2, 3]), [t.ids]),
    "pool_nhwc": lambda t: op.nn.max_pool2d(t.x, [2, 2], [2, 2], [0, 0, 0, 0], layout="NHWC"),
    "average": lambda t: op.nn.avg_pool2d(t.x, [3, 3], [2, 2], [1, 1, 1, 1], count_include_pad=True),
    "adaptive": lambda t: op.nn.adaptive_avg_pool2d(t.x, [3, 2]),
    "adaptive_one": lambda t: op.nn.adaptive_avg_pool2d(t.x, [1, 1]),
    "conv_nhwc": lambda t: op.nn.conv2d(
        op.permute_dims(t.x, [0, 2, 3, 1]),
        op.permute_dims(op.strided_slice(t.w, [2, 3], [0, 0], [3, 3]), [2, 3, 1, 0]),
        padding=[1, 1, 1, 1],
        data_layout="NHWC",
        kernel_layout="HWIO",
    ),
    "attention": lambda t: op.nn.attention(t.x, t.y, op.multiply(t.x, t.y)),
    "attention_bias": lambda t: op.nn.attention(
        t.x, t.y, t.x, op.reshape(op.strided_slice(t.x, [1, 3], [0, 0], [1, 4]), [2, 6, 1, 4]), scale=0.25
    ),
    "rms": lambda t: op.nn.rms_norm(t.x, op.strided_slice(op.reshape(t.y, [-1]), [0], [0], [6]), [-1], 1e-5),
    "own_rows": lambda t: normalize(t.x, Normalization((3,), 1e-5)),
    "own_rms": lambda t: normalize(t.x, Normalization((3,), 1e-5, centered=False)),
    "own_axes": lambda t: normalize(t.x, Normalization((1, 2), 1e-5)),
    "own_groups": lambda t: normalize(t.x, Normalization((2, 3), 1e-5, channel_axis=1, groups=2)),
    "own_last_groups": lambda t: normalize(t.x, Normalization((1, 2), 1e-5, channel_axis=3, groups=2)),
    "one_hot": lambda t: op.one_hot(t.ids, relax.prim_value(2.0), relax.prim_value(-1.0), 4, 0),
    "col2im": lambda t: col2im(t.x, Windows((12, 11), (2, 2), (6, 6), (2, 2), (1, 1), (0, 1))),
    "resize": lambda t: op.image.resize2d(t.x, (12, 9), layout="NCHW", method="linear"),
    "nearest": lambda t: op.image.resize2d(
        t.x, (12, 12), layout="NCHW", method="nearest_neighbor", coordinate_transformation_mode="asymmetric",
        rounding_method="floor",
    ),
    "nearest_up": lambda t: op.image.resize2d(
        t.x, (9, 9), layout="NCHW", method="nearest_neighbor", rounding_method="round_prefer_ceil",
    ),
    "volume": lambda t: op.image.resize3d(
        op.expand_dims(t.x, 1), (6, 9, 7), coordinate_transformation_mode="half_pixel",
    ),
    "identity": lambda _: op.eye(3, 5, 1),
    "identity_like": lambda t: op.eye_like(op.reshape(t.x, [16, 18]), -2),
    "grid": lambda t: op.concat([op.meshgrid([t.ids, op.add(t.ids, t.ids)])[part] for part in (1, 0)], 0),
    "put": lambda t: op.index_put(
        op.reshape(t.x, [16, 18]),
        (relax.const([0, 15, 7], "int64"), relax.const([3, 0, 2], "int64")),
        op.reshape(op.strided_slice(t.y, [0, 1, 2, 3], [0, 0, 0, 0], [1, 1, 1, 3]), [3]),
    ),
    "put_sum": lambda t: op.index_put(op.reshape(t.x, [-1]), (t.ids,), relax.const([1.0] * 5, "float32"), True),
    "selu": lambda t: op.nn.selu(t.x),
    "reversed": lambda t: op.reverse_sequence(t.x, relax.const([3, 2], "int64"), 1, 0),
    "triangle": lambda t: op.triu(t.x, 1),
    "filled": lambda _: op.full((2, 3), relax.const(1.5, "float32")),
    "counted": lambda _: op.arange(2, 11, 3, "int32"),
    "parametric": lambda t: op.nn.prelu(t.x, op.strided_slice(op.reshape(t.y, [-1]), [0], [0], [4]), 1),
    "padded": lambda t: op.nn.pad(t.x, [0, 0, 0, 0, 1, 2, 2, 0], "reflect"),
    "half": lambda t: op.astype(op.nn.softmax(op.astype(t.x, "float16")), "float32"),
}  # fmt: skip


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal((2, 4, 6, 6)).astype("float32") for _ in range(2))
    y = rng.uniform(0.5, 2, (2, 4, 6, 6)).astype("float32")
    return {"x": x, "y": y, "w": np.repeat(w[:1], 2, 0), "ids": np.array([3, 0, 2, 2, 1])}


def relax_file(folder: Path, given: Mapping[str, np.ndarray], makes: Sequence[Make]) -> Path:
    """Write a module whose ``main`` returns what each of ``makes`` makes of the inputs."""
    parameters = [relax.Var(n, relax.TensorType(a.shape, a.dtype.name)) for n, a in given.items()]
    tensors = SimpleNamespace(**dict(zip(given, parameters, strict=True)))
    builder = relax.BlockBuilder()
    with builder.function("main", parameters):
        with builder.dataflow():
            made = builder.emit_output(relax.Tuple([builder.emit(make(tensors)) for make in makes]))
        builder.emit_func_output(made)
    path = folder / "m.json"
    path.write_text(tvm.ir.save_json(builder.get()))
    return path


def run(path: Path, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return list(session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()}))


@pytest.mark.slow
def test_written_operators_agree_with_the_bundle(tmp_path: Path) -> None:
    feeds = arrays()
    model = relax_file(tmp_path, feeds, list(FLOATS.values()))
    export(model, tmp_path / "m.onnx")
    library = packager.build(model, tmp_path / "m.so", targets=list(targets_here()))
    with packager.load(library) as bundle:
        expected = bundle.run(feeds)
    for name, want, have in zip(FLOATS, expected.values(), run(tmp_path / "m.onnx", feeds), strict=True):
        assert (have.dtype, have.shape) == (want.dtype, want.shape), name
        tolerance = 2e-3 if name == "half" else 2e-5
        np.testing.assert_allclose(have, want, rtol=tolerance, atol=tolerance, err_msg=name)


def test_integers(tmp_path: Path) -> None:
    a, b = np.array([-7, 7, -8, 9], "int32"), np.array([2, -2, 4, 3], "int32")
    small = np.array([[1, -128], [127, 5]], "int8")
    makes: list[Make] = [
        lambda t: op.floor_divide(t.a, t.b),
        lambda t: op.floor_mod(t.a, t.b),
        lambda t: op.matmul(t.s, t.s, out_dtype="int32"),
        lambda t: op.clip(t.a, -5, 2**40),
        lambda t: op.bitwise_and(t.a, t.b),
        lambda t: op.left_shift(op.astype(t.a, "uint32"), relax.const(3, "uint32")),
        lambda t: op.max(op.astype(t.s, "int16"), [1]),
    ]
    feeds = {"a": a, "b": b, "s": small}
    export(relax_file(tmp_path, feeds, makes), tmp_path / "m.onnx")
    wide = small.astype("int32")
    expected = [a // b, a % b, wide @ wide, a.clip(-5), a & b, a.astype("uint32") << np.uint32(3),
                small.max(1).astype("int16")]  # fmt: skip
    for want, have in zip(expected, run(tmp_path / "m.onnx", feeds), strict=True):
        assert have.dtype == want.dtype
        np.testing.assert_array_equal(have, want)


def test_operators_that_a_newer_one_changes(tmp_path: Path) -> None:
    """One operator of opset 20 makes the others those of opset 20: their attributes have moved or have other values."""
    rng = np.random.default_rng(1)
    feeds = {
        "x": rng.standard_normal((1, 2, 5, 5)).astype("float32"),
        "grid": rng.uniform(-1, 1, (1, 2, 4, 4)).astype("float32"),
        "cube": rng.standard_normal((1, 2, 3, 3, 3)).astype("float32"),
        "space": rng.uniform(-1, 1, (1, 3, 2, 2, 2)).astype("float32"),
    }
    older: list[Make] = [
        lambda t: op.image.grid_sample(t.x, t.grid, "bilinear", "NCHW", "zeros", True),
        lambda t: op.max(t.x, [1, 3]),
        lambda t: op.mean(t.x, [2], keepdims=True),
    ]
    newer: Make = lambda t: op.image.grid_sample(t.cube, t.space, "bilinear", "NCDHW", "zeros", True)  # noqa: E731
    assert export(relax_file(tmp_path, feeds, older), tmp_path / "a.onnx").opset == 17
    assert export(relax_file(tmp_path, feeds, [*older, newer]), tmp_path / "b.onnx").opset == 20
    expected, found = (run(tmp_path / name, feeds) for name in ("a.onnx", "b.onnx"))
    for want, have in zip(expected, found, strict=False):
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)


def test_sorting(tmp_path: Path) -> None:
    x = np.random.default_rng(0).permutation(24).reshape(4, 6).astype("float32")
    makes: list[Make] = [
        lambda t: op.sort(t.x, 1, descending=True),
        lambda t: op.argsort(t.x, 0),
        lambda t: op.topk(t.x, 2, 1, "values"),
        lambda t: op.topk(t.x, 2, 1, "indices", largest=False),
    ]
    export(relax_file(tmp_path, {"x": x}, makes), tmp_path / "m.onnx")
    order = np.argsort(x, 1)
    expected = [-np.sort(-x, 1), np.argsort(x, 0), -np.sort(-x, 1)[:, :2], order[:, :2]]
    for want, have in zip(expected, run(tmp_path / "m.onnx", {"x": x}), strict=True):
        np.testing.assert_array_equal(have, want)


def test_a_result_that_is_an_input_a_constant_or_returned_twice(tmp_path: Path) -> None:
    x = np.arange(3, dtype="float32")
    parameter = relax.Var("x", relax.TensorType([3], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [parameter]):
        with builder.dataflow():
            y = builder.emit(op.exp(parameter))
            made = builder.emit_output(relax.Tuple([y, parameter, y, relax.const(np.float32([4, 5]))]))
        builder.emit_func_output(made)
    (tmp_path / "m.json").write_text(tvm.ir.save_json(builder.get()))
    export(tmp_path / "m.json", tmp_path / "m.onnx")
    for want, have in zip(
        [np.exp(x), x, np.exp(x), np.float32([4, 5])], run(tmp_path / "m.onnx", {"x": x}), strict=True
    ):
        np.testing.assert_allclose(have, want, rtol=1e-6)


def test_every_operator_that_is_refused_is_listed(tmp_path: Path) -> None:
    makes: list[Make] = [
        lambda t: op.left_shift(op.astype(t.x, "int32"), relax.const(1, "int32")),
        lambda t: op.nn.adaptive_avg_pool2d(t.x, [4, 4]),
        lambda t: op.median(t.x, [1])[0],
    ]
    model = relax_file(tmp_path, {"x": np.zeros((1, 2, 6, 6), "float32")}, makes)
    with pytest.raises(ModelError, match="3 operators cannot be written as ONNX") as caught:
        export(model, tmp_path / "m.onnx")
    detail = caught.value.detail or ""
    assert "left_shift" in detail
    assert "ONNX shifts unsigned integers only" in detail
    assert "with windows of several sizes" in detail
    assert "median" in detail
    assert not (tmp_path / "m.onnx").exists()
