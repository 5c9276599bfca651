"""Uses of ONNX operators that TVM's importer, or onnx's functions or reference, compute otherwise than the standard."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import Arrays, check, graph, save
from one_cpu import targets_here

import packager

pytestmark = pytest.mark.slow

# Name: operator set, graph, weights.
USES: dict[str, tuple[int, str, Arrays]] = {
    "no axes, no reduction": (
        18,
        """g (float[2,3] x) => (float[2,3] a, float[2,3] b, float[2,3] c) {
            a = ReduceL1 <noop_with_empty_axes=1> (x)
            b = ReduceSumSquare <noop_with_empty_axes=1> (x)
            c = ReduceLogSumExp <noop_with_empty_axes=1> (x)
        }""",
        {},
    ),
    "means and norms of integers": (
        13,
        """g (int32[4,5] x) => (int32[4,1] a, int32[4,1] b) {
            a = ReduceMean <axes=[1]> (x)
            b = ReduceL2 <axes=[1]> (x)
        }""",
        {},
    ),
    "fractions in Shrink of integers": (
        9,
        "g (int32[8] x) => (int32[8] y) { y = Shrink <bias=0.625, lambd=0.5> (x) }",
        {},
    ),
    "fewer indices than data": (
        18,
        """g (float[5,4,3] x, float[3,2,2] u) => (float[5,4,3] a, float[5,4,3] b) {
            a = ScatterElements <axis=2> (x, i, u)
            b = ScatterElements <axis=0, reduction="add"> (x, j, u)
        }""",
        {
            "i": np.array([[[0, 2], [-1, 0]], [[1, 0], [2, -3]], [[0, 1], [1, 2]]], np.int64),
            "j": np.array([[[4, 2], [-1, 0]], [[1, 0], [2, -3]], [[1, 1], [1, 2]]], np.int64),
        },
    ),
    "truth values are equal": (13, "g (bool[9] x, bool[9] z) => (bool[9] y) { y = Equal (x, z) }", {}),
    "the sign of what has none": (13, "g (uint8[5] x) => (uint8[5] y) { y = Sign (x) }", {}),
    "half precision": (
        13,
        """g (float16[2,3,2,2] x) => (float16[2,3,2,2] a, float16[2,3,2,2] b) {
            a = Atan (x)
            b = LRN <size=3> (x)
        }""",
        {},
    ),
    "double precision": (
        17,
        "g (double[3,4] x) => (double[3,4] y) { y = LayerNormalization (x, s, b) }",
        {"s": np.arange(4.0), "b": np.ones(4)},
    ),
    "small integers that are no shapes": (
        14,
        """g (float[2] x) => (float[2] y, uint32[2] a, uint32[1,2] r, int32[2] b) {
            y = Relu (x)
            a = Add (m, m)
            r = Reshape (n, z)
            b = Add (i, i)
        }""",
        {
            "m": np.array([2**32 - 1, 3], np.uint32),
            "n": np.array([[1, 2]], np.uint32),
            "z": np.array([0, -1]),
            "i": np.array([2**31 - 1, -3], np.int32),
        },
    ),
    "numbers that are none": (
        13,
        "g (float[2,3] x) => (float[2,3] y) { y = Add (x, n) }",
        {"n": np.array(np.nan, np.float32)},
    ),
    "no axes at all": (12, "g (float x) => (float a, float b) { a = Celu <alpha=1.5> (x)\n b = PRelu (x, x) }", {}),
    "constants of an odd kind": (
        16,
        """g (float[2] x) => (float[2] y, float[2,3,1,1,1] m, float[1,2] n, float[1,1] v) {
            y = Relu (x)
            m = GlobalMaxPool (p)
            n = LpNormalization <p=1> (q)
            v, i = TopK <axis=0> (r, k)
        }""",
        {
            "p": np.arange(18, dtype=np.float32).reshape(2, 3, 1, 1, 3),
            "q": np.array([[3, -1]], np.float32),
            "r": np.array([[-1.5]], np.float32),
            "k": np.array([1]),
        },
    ),
    "slices of nothing": (
        8,
        """g (float[3,4] x) => (float[0,2] y, float[2,3] z) {
            y = Slice <axes=[1,0], starts=[2,5], ends=[9,4]> (x)
            z = Slice <axes=[1,0], starts=[1,1], ends=[9,4]> (x)
        }""",
        {},
    ),
    "parts of nothing": (7, "g (float[4,2] x) => (float[4,2] a) { a, b = Split <split=[4,0]> (x) }", {}),
    "a recurrent net of one weight": (
        14,
        "g (float[2,4,4] x) => (float[2,1,4,1] y) { y = RNN <hidden_size=1> (x, w, r) }",
        {"w": np.full((1, 1, 4), 0.25, np.float32), "r": np.full((1, 1, 1), 0.125, np.float32)},
    ),
    "a grid of one": (
        20,
        "g (float[1,2,3] x) => (float[1,2,3,2] y) { y = AffineGrid (x, s) }",
        {"s": np.array([1, 1, 2, 3])},
    ),
    "places beyond a constant picture": (
        22,
        "g (float[4,1,1,2] w, float[1,4,6,7] o) => (float[1,4,6,7] y) { y = DeformConv <group=2> (x, w, o) }",
        {"x": np.arange(96, dtype=np.float32).reshape(1, 2, 6, 8)},
    ),
    "the least of their type": (
        14,
        """g (uint8[2,3] x) => (int64[1,3] y, int64[1,3] l) {
            z = Sub (x, x)
            y = ArgMax (z)
            l = ArgMin <select_last_index=1> (m)
        }""",
        {"m": np.full((2, 3), 127, np.int8)},
    ),
    "folded as the version says": (
        10,
        "g (float[2] x) => (float[2] y, float[2,2,3] s) { y = Relu (x)\n s = Softmax <axis=1> (c) }",
        {"c": np.arange(12, dtype=np.float32).reshape(2, 2, 3)},
    ),
    "the share of one": (
        13,
        "g (float[3] x) => (float[3] y) { s = Softmax (c)\n y = Add (s, x) }",
        {"c": np.full(1, 3, np.float32)},
    ),
    "small regions": (
        16,
        """g (float[1,2,4,4] x) => (float[2,2,2,1] y) {
            y = RoiAlign <output_height=2, sampling_ratio=2, spatial_scale=0.5> (x, r, b)
        }""",
        {"r": np.array([[0, 1.5, 1.8, 2.5], [0.7, 0.7, 4, 5]], np.float32), "b": np.zeros(2, np.int64)},
    ),
}


@pytest.mark.parametrize("name", USES)
def test_uses_are_computed_as_onnxruntime_does(name: str, tmp_path: Path) -> None:
    opset, text, weights = USES[name]
    check(graph(text, weights, opset), tmp_path).close()


def test_infinities_have_a_place_and_a_logarithm(tmp_path: Path) -> None:
    model = graph(
        """g (float[2,3] x) => (int64[2,1] at, float[2,1] sum) {
            at = ArgMax <axis=1> (x)
            sum = ReduceLogSumExp <axes=[1]> (x)
        }"""
    )
    path = packager.build(save(model, tmp_path / "model.onnx"), tmp_path / "model.so", targets=targets_here())
    with packager.load(path) as bundle:
        made = bundle.run({"x": np.array([[-np.inf] * 3, [1, np.inf, 2]], np.float32)})
    assert made["at"].ravel().tolist() == [0, 1]
    assert made["sum"].ravel().tolist() == [-np.inf, np.inf]


def test_the_best_of_rows_of_any_length(tmp_path: Path) -> None:
    """Of equal elements it is the first; NaN is the best of all."""
    lengths = [1, 3, 4, 5, 8, 11, 16, 17, 33, 56, 80]
    inputs = ", ".join(f"float[n,2,{k}] x{k}, int32[{k + 1},{k}] i{k}" for k in lengths)
    outputs = ", ".join(f"int64[n,2,1] a{k}, int64[n,2] b{k}, int64[{k + 1}] c{k}" for k in lengths)
    body = "\n".join(
        f"a{k} = ArgMax <axis=-1> (x{k})\nb{k} = ArgMin <axis=2, keepdims=0> (x{k})\n"
        f"c{k} = ArgMax <axis=1, keepdims=0> (i{k})"
        for k in lengths
    )
    model = save(graph(f"g ({inputs}) => ({outputs}) {{ {body} }}"), tmp_path / "model.onnx")
    path = packager.build(model, tmp_path / "model.so", dims={"n": (1, 40)}, targets=targets_here())
    generator = np.random.default_rng(0)
    values = {}
    for k in lengths:
        values[f"x{k}"] = generator.integers(-20, 20, (40, 2, k)).astype(np.float32)
        values[f"i{k}"] = generator.integers(-9, 9, (k + 1, k)).astype(np.int32)
        if k > 3:
            values[f"x{k}"][7, 1, 1:3] = np.nan
            values[f"x{k}"][8, 0] = -np.inf
    with packager.load(path) as bundle:
        made = bundle.run(values)
    for k in lengths:
        x = values[f"x{k}"]
        np.testing.assert_array_equal(made[f"a{k}"], x.argmax(-1)[..., None], err_msg=f"{k}")
        np.testing.assert_array_equal(made[f"b{k}"], x.argmin(-1), err_msg=f"{k}")
        np.testing.assert_array_equal(made[f"c{k}"], values[f"i{k}"].argmax(-1), err_msg=f"{k}")


def test_bounds_of_old_clips_are_finite(tmp_path: Path) -> None:
    model = graph("g (float[3] x) => (float[3] y) { y = Clip <min=-1.0> (x) }", opset=10)
    path = packager.build(save(model, tmp_path / "model.onnx"), tmp_path / "model.so", targets=targets_here())
    with packager.load(path) as bundle:
        made = bundle.run({"x": np.array([np.inf, -np.inf, 2], np.float32)})
    assert made["y"].tolist() == [float(np.finfo(np.float32).max), -1, 2]


def test_bfloat16_is_rounded_and_asked(tmp_path: Path) -> None:
    model = graph(
        """g (float[4] x) => (bool[4] a, bool[4] b, float[4] c) {
            h = Cast <to=16> (x)
            a = IsNaN (h)
            b = IsInf (h)
            c = Cast <to=1> (h)
        }""",
        opset=20,
    )
    onnx.checker.check_model(model)
    path = packager.build(save(model, tmp_path / "model.onnx"), tmp_path / "model.so", targets=targets_here())
    with packager.load(path) as bundle:
        made = bundle.run({"x": np.array([np.nan, 1.007, np.inf, -np.inf], np.float32)})
    assert made["a"].tolist() == [True, False, False, False]
    assert made["b"].tolist() == [False, False, True, True]
    assert made["c"][1] == 1.0078125


def test_long_sums_of_half_precision_are_float32(tmp_path: Path) -> None:
    model = graph(
        """g (float16[2,8,40,40] x) => (float16[2,8] a, float16[2,8,1,1] b, float16[2,8,40,40] c) {
            a = ReduceMean <axes=[2,3], keepdims=0> (x)
            b = GlobalAveragePool (x)
            c = InstanceNormalization (x, s, t)
        }""",
        {"s": np.ones(8, np.float16), "t": np.zeros(8, np.float16)},
    )
    path = packager.build(save(model, tmp_path / "model.onnx"), tmp_path / "model.so", targets=targets_here())
    x = (np.random.default_rng(0).standard_normal((2, 8, 40, 40)) + 1).astype(np.float16)
    with packager.load(path) as bundle:
        made = bundle.run({"x": x})
    exact = x.astype(np.float64)
    mean = exact.mean((2, 3), keepdims=True)
    normal = (exact - mean) / np.sqrt(exact.var((2, 3), keepdims=True) + 1e-5)
    for name, wanted in (("a", mean[..., 0, 0]), ("b", mean), ("c", normal)):
        assert np.abs(made[name] - wanted).max() < 2e-3 * np.abs(wanted).max(), name
