"""Models of a batch that are compiled for a part of it: which are, and that they compute what onnxruntime does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import check, feeds, graph, normal, reference, save

import packager
from packager.pipeline.import_models import import_model
from packager.pipeline.options import BuildOptions
from packager.pipeline.request import make_build_request

INT = np.int64
Weights = dict[str, np.ndarray]
EACH = ("llvm -micro_batch=1", "ccompiler")

SEPARABLE: dict[str, tuple[str, Weights]] = {
    "convolutions": (
        """g (float[4,3,8,8] x) => (float[4,5] y) {
          a = Conv<pads=[1,1,1,1]>(x, w, b)\n r = Relu(a)\n p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
          c = Concat<axis=1>(p, p)\n m = GlobalAveragePool(c)\n f = Flatten(m)\n y = Gemm<transB=1>(f, v, u) }""",
        {"w": normal(6, 3, 3, 3), "b": normal(6), "v": normal(5, 12), "u": normal(5)},
    ),
    "attention": (
        """g (int64[4,6] ids, float[4,6] mask) => (float[4,6,8] y) {
          e = Gather(table, ids)\n p = Add(e, position)\n q = MatMul(p, wq)\n k = MatMul(p, wk)
          qh = Reshape(q, heads)\n kh = Reshape(k, heads)\n qt = Transpose<perm=[0,2,1,3]>(qh)
          kt = Transpose<perm=[0,2,3,1]>(kh)\n s = MatMul(qt, kt)\n m = Reshape(mask, four)\n t = Add(s, m)
          a = Softmax<axis=-1>(t)\n v = MatMul(a, qt)\n vt = Transpose<perm=[0,2,1,3]>(v)\n y = Reshape(vt, three) }""",
        {
            "table": normal(5, 8),
            "position": normal(1, 6, 8),
            "wq": normal(8, 8),
            "wk": normal(8, 8, seed=1),
            "heads": np.array([4, 6, 2, 4], INT),
            "four": np.array([4, 1, 1, 6], INT),
            "three": np.array([4, 6, 8], INT),
        },
    ),
    "rows of several": (  # a batch of 4 times 3 rows
        """g (float[4,3,2] x) => (float[4,3,7] y) {
          r = Reshape(x, flat)\n m = MatMul(r, w)\n t = Tanh(m)\n y = Reshape(t, back) }""",
        {"flat": np.array([12, 2], INT), "w": normal(2, 7), "back": np.array([4, 3, 7], INT)},
    ),
    "inputs that are not of the batch": (
        "g (float[4,3] x, float[3] scale, float shift) => (float[4,3] y) { m = Mul(x, scale)\n y = Add(m, shift) }",
        {},
    ),
    "several outputs": (
        """g (float[4,6] x, float[4,2] z) => (float[4,2] a, float[4] b, float[4,6] x2, float[4,2] z2) {
          h, t = Split<axis=1>(x, s)\n a = Mul(h, z)\n b = ReduceSum<keepdims=0>(t, axis)\n x2 = Exp(x)
          z2 = Identity(z) }""",
        {"s": np.array([2, 4], INT), "axis": np.array([1], INT)},
    ),
    "the same token for each": (
        """g (float[4,3,2] x) => (float[4,4,2] y) {
          t = Expand(token, shape)\n y = Concat<axis=1>(t, x) }""",
        {"token": normal(1, 1, 2), "shape": np.array([4, 1, 2], INT)},
    ),
    "norms, indices and slices": (
        """g (float[4,3,6] x) => (float[4,3,6] n, int64[4,3] i, float[4,3,3] s) {
          n = LayerNormalization<axis=2>(x, w, b)\n i = ArgMax<axis=2, keepdims=0>(x)
          s = Slice(x, from, to, axes) }""",
        {
            "w": normal(6),
            "b": normal(6, seed=1),
            "from": np.array([1], INT),
            "to": np.array([4], INT),
            "axes": np.array([2], INT),
        },
    ),
    "quantized": (
        """g (float[4,3] x) => (float[4,2] y) {
          q = QuantizeLinear(x, scale, zero)\n d = DequantizeLinear(q, scale, zero)\n y = MatMul(d, w) }""",
        {"scale": np.float32(0.05).reshape(()), "zero": np.uint8(128).reshape(()), "w": normal(3, 2)},
    ),
}

MIXED: dict[str, tuple[str, Weights]] = {
    "a softmax over the batch": ("g (float[4,3] x) => (float[4,3] y) { y = Softmax<axis=0>(x) }", {}),
    "a mean over the batch": (
        "g (float[4,3] x) => (float[4,3] y) { m = ReduceMean<axes=[0]>(x)\n y = Sub(x, m) }",
        {},
    ),
    "a mean over everything": ("g (float[4,3] x) => (float[4,3] y) { m = ReduceMean(x)\n y = Sub(x, m) }", {}),
    "a transpose": (
        "g (float[4,4] x) => (float[4,4] y) { t = Transpose<perm=[1,0]>(x)\n y = Exp(t) }",
        {},
    ),
    "similarities": (
        "g (float[4,3] x) => (float[4,4] y) { t = Transpose<perm=[1,0]>(x)\n y = MatMul(x, t) }",
        {},
    ),
    "rows side by side": (
        "g (float[4,6] x) => (float[4,6] y) { r = Reshape(x, s)\n t = Softmax<axis=1>(r)\n y = Reshape(t, b) }",
        {"s": np.array([2, 12], INT), "b": np.array([4, 6], INT)},
    ),
    "more rows than the batch": (
        "g (float[4,3] x) => (float[8,3] y) { y = Concat<axis=0>(x, x) }",
        {},
    ),
    "one row of the batch": (
        "g (float[4,3] x) => (float[4,3] y) { i = Gather<axis=0>(x, one)\n y = Mul(x, i) }",
        {"one": np.array(1, INT)},
    ),
    "a constant of the batch": ("g (float[4,3] x) => (float[4,3] y) { y = Mul(x, w) }", {"w": normal(4, 3)}),
    # It is the same for all, but a session can give it another value.
    "a constant of equal rows": ("g (float[4,3] x) => (float[4,3] y) { y = Mul(x, w) }", {"w": np.ones((4, 3), "f4")}),
    "an output without a batch": (
        "g (float[4,3] x) => (float[4,3] y, float[3] z) { y = Exp(x)\n z = ReduceMean<axes=[0], keepdims=0>(x) }",
        {},
    ),
    "an axis of the same extent": ("g (float[4,2,4] x, float[4] z) => (float[4,2,4] y) { y = Add(x, z) }", {}),
    "the batch in the middle": (
        """g (float[4,2,3] x) => (float[4,2,3] y) {
          t = Transpose<perm=[1,0,2]>(x)\n e = Exp(t)\n y = Transpose<perm=[1,0,2]>(e) }""",
        {},
    ),
    "a running sum": (
        "g (float[4,3] x) => (float[4,3] y) { y = CumSum(x, axis) }",
        {"axis": np.array(0, INT)},
    ),
}


def count_batches(path: Path, *targets: str, **options: object) -> int:
    imported = import_model(make_build_request(BuildOptions(path, targets=targets, **options)))
    return imported.signature.batches.count


@pytest.mark.slow
@pytest.mark.parametrize("name", SEPARABLE)
def test_each_row_apart(name: str, tmp_path: Path) -> None:
    text, weights = SEPARABLE[name]
    model = graph(text, weights)
    assert count_batches(save(model, tmp_path / "m.onnx"), *EACH) == 4
    bundle = check(model, tmp_path, targets=EACH)
    arrays = feeds(model, {})
    results = []
    for threads in (1, 2, 3, 4, 7):
        bundle.set_threads(threads)
        results.append(bundle.run(arrays))
    for result in results[1:]:
        for output, array in results[0].items():
            np.testing.assert_array_equal(result[output], array)


def opened(text: str, weights: Weights) -> tuple[str, Weights]:
    """Return a model whose batch is a dim: shapes of reshapes leave it open."""
    shapes = {name: array.copy() for name, array in weights.items()}
    for array in shapes.values():
        if array.dtype == INT and array.size > 1 and array[0] in (4, 12):
            array[0] = -1
    return text.replace("[4,", "[n,").replace("[4]", "[n]"), shapes


TOKEN = """g (float[n,3,2] x) => (float[n,4,2] y) {
  s = Shape<end=1>(x)\n c = Concat<axis=0>(s, rest)\n t = Expand(token, c)\n y = Concat<axis=1>(t, x) }"""
OPENED = {name: opened(*case) for name, case in SEPARABLE.items() if "token" not in name} | {
    "the same token for each": (TOKEN, {"token": normal(1, 1, 2), "rest": np.array([1, 2], INT)})
}


@pytest.mark.sampled(3, every_value=False)
@pytest.mark.slow
@pytest.mark.parametrize("name", OPENED)
def test_each_row_of_a_batch_that_is_a_dim(name: str, tmp_path: Path) -> None:
    model, dims = graph(*OPENED[name]), {"n": (1, 5)}
    path = save(model, tmp_path / "m.onnx")
    assert count_batches(path, *EACH, dims=dims) == "n"
    bundle = check(model, tmp_path, dims, ({"n": 1}, {"n": 5}, {"n": 4}), targets=EACH)
    arrays = feeds(model, {"n": 5})
    expected = bundle.run(arrays)
    for threads in (2, 3, 4):
        bundle.set_threads(threads)
        for output, array in bundle.run(arrays).items():
            np.testing.assert_array_equal(array, expected[output])


# In these the batch is not only the extent of an axis.
FIXED = ("a transpose", "similarities", "rows side by side", "a constant of the batch", "a constant of equal rows")


@pytest.mark.parametrize("name", sorted(MIXED.keys() - set(FIXED)))
def test_what_mixes_rows_of_a_dim_stays_whole(name: str, tmp_path: Path) -> None:
    text, weights = opened(*MIXED[name])
    text = text.replace("[8,", "[m,")
    path = save(graph(text, weights), tmp_path / "m.onnx")
    assert count_batches(path, *EACH, dims={"n": (1, 5)}) == 1


@pytest.mark.parametrize("name", MIXED)
def test_what_mixes_rows_stays_whole(name: str, tmp_path: Path) -> None:
    text, weights = MIXED[name]
    assert count_batches(save(graph(text, weights), tmp_path / "m.onnx"), *EACH) == 1


@pytest.mark.slow
def test_two_rows_at_a_time_with_an_open_dim(tmp_path: Path) -> None:
    model = graph(
        "g (float[4,s,3] x) => (float[4,s,2] y) { m = MatMul(x, w)\n y = Softmax<axis=1>(m) }", {"w": normal(3, 2)}
    )
    targets, dims = ("llvm -micro_batch=2", "ccompiler"), {"s": (1, 5)}
    assert count_batches(save(model, tmp_path / "m.onnx"), *targets, dims=dims) == 2
    check(model, tmp_path, dims, ({"s": 1}, {"s": 3}, {"s": 5}), targets=targets).set_threads(1)


@pytest.mark.slow
def test_buckets_of_a_batch(tmp_path: Path) -> None:
    model = graph("g (float[n,3] x) => (float[n,2] y) { m = MatMul(x, w)\n y = Relu(m) }", {"w": normal(3, 2)})
    path = save(model, tmp_path / "m.onnx")
    with packager.load(
        packager.build(path, tmp_path / "m.so", targets=EACH, dims={"n": packager.Buckets(1, 2, 6)})
    ) as bundle:
        for size in (6, 1, 2):
            arrays = feeds(model, {"n": size})
            np.testing.assert_allclose(bundle.run(arrays)["y"], reference(model).run(None, arrays)[0], rtol=1e-5)


def test_a_part_that_does_not_divide_the_batch_is_not_used(tmp_path: Path) -> None:
    path = save(graph(*SEPARABLE["convolutions"]), tmp_path / "m.onnx")
    assert [count_batches(path, f"llvm -micro_batch={rows}") for rows in (1, 2, 3, 4, 8)] == [4, 2, 1, 1, 1]


def test_states_are_of_the_whole_batch(tmp_path: Path) -> None:
    model = graph("g (float[4,3] x, float[4,3] s) => (float[4,3] y, float[4,3] t) { y = Add(x, s)\n t = Exp(y) }")
    path = save(model, tmp_path / "m.onnx")
    assert count_batches(path, *EACH) == 4
    assert count_batches(path, *EACH, states={"s": "t"}) == 1


def network(channels: int, side: int, features: int, batch: str = "8") -> onnx.ModelProto:
    """A convolution over images of this side, then a product with as many weights as ``features`` says."""
    return graph(
        f"""g (float[{batch},3,{side},{side}] x) => (float[{batch},{features}] y) {{
          c = Conv<pads=[1,1,1,1]>(x, w)\n r = Relu(c)\n p = GlobalAveragePool(r)
          f = Flatten(p)\n y = MatMul(f, v) }}""",
        {"w": normal(channels, 3, 3, 3), "v": normal(channels, features)},
    )


@pytest.mark.parametrize(
    ("channels", "side", "features", "count"),
    [(16, 64, 10, 8), (16, 64, 20000, 4), (16, 64, 60000, 1), (16, 16, 10, 1), (16, 32, 10, 2)],
    ids=["large activations", "more weights", "too many weights", "small", "not large"],
)
def test_activations_are_weighed_against_weights(
    channels: int, side: int, features: int, count: int, tmp_path: Path
) -> None:
    path = save(network(channels, side, features), tmp_path / "m.onnx")
    assert count_batches(path) == count
    assert count_batches(path, "cuda -arch=sm_90a") == 1


@pytest.mark.parametrize(
    ("side", "features", "count"),
    [(64, 10, "n"), (64, 60000, "n"), (16, 60000, 1), (8, 10, 1)],
    ids=["large activations", "more weights", "too many weights", "small"],
)
def test_rows_of_a_dim_are_weighed_against_weights(side: int, features: int, count: object, tmp_path: Path) -> None:
    path = save(network(16, side, features, "n"), tmp_path / "m.onnx")
    found = [
        count_batches(path, target, dims={"n": (1, 4)})
        for target in ("llvm", "llvm -micro_batch=1", "llvm -micro_batch=2")
    ]
    assert found == [count, "n", 1]
