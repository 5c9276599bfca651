"""Models with ``-t ccompiler`` against onnxruntime, and what the command line says about the backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import Cli, assert_refused
from graphs import DimBounds, check, graph, normal
from hypothesis import given, settings
from one_cpu import targets_here
from test_random_graphs import QUIET, compare, models

import packager
from packager.bundle.reader import inspect

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Case:
    """A graph, its weights, its dims, what the backend has of it, and operators that it leaves."""

    text: str
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    dims: DimBounds = field(default_factory=dict)
    points: tuple[dict[str, int], ...] = ({},)
    composites: frozenset[str] = frozenset()
    left: bool = False


def batches() -> dict[str, object]:
    """Bounds of a dim n, and three sizes."""
    return {"dims": {"n": (1, 7)}, "points": ({"n": 1}, {"n": 4}, {"n": 7})}


CONV = "ccompiler.conv2d+ccompiler.elementwise"
FIRST = f"ccompiler.transpose+{CONV}"
DENSE = "ccompiler.dense+ccompiler.elementwise"
CASES = {
    "multi-layer perceptron": Case(
        "g (float[n,12] x) => (float[n,5] y) { a = Gemm(x, w, b)  r = Relu(a)  y = Gemm<transB=1>(r, v, c) }",
        {"w": normal(12, 40), "b": normal(40), "v": normal(5, 40), "c": normal(5)},
        **batches(),
        composites=frozenset({DENSE}),
    ),
    "residual block": Case(
        """g (float[n,8,9,7] x) => (float[n,8] y) {
          a = Conv<pads=[1,1,1,1]>(x, w0, b0)  r = Relu(a)  c = Conv<pads=[1,1,1,1]>(r, w1, b1)  s = Add(c, x)
          t = Relu(s)  p = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(t)
          q = GlobalAveragePool(p)  y = Flatten(q) }""",
        {"w0": normal(8, 8, 3, 3), "b0": normal(8), "w1": normal(8, 8, 3, 3, seed=1), "b1": normal(8, seed=1)},
        **batches(),
        composites=frozenset({CONV, "ccompiler.max_pool2d", "ccompiler.avg_pool2d"}),
    ),
    "resizing of channels last": Case(
        """g (float[1,3,8,9] x) => (float[1,8,24,40] y) {
          c = Conv<pads=[1,1,1,1]>(x, w, b)  r = Relu(c)  y = Resize<mode="linear">(r, roi, scales) }""",
        {
            "w": normal(8, 3, 3, 3),
            "b": normal(8),
            "roi": np.zeros(0, np.float32),
            "scales": np.array([1, 1, 3, 4.5], np.float32),
        },
        composites=frozenset({f"{FIRST}+ccompiler.resize"}),
    ),
    "residual block with Sum": Case(
        """g (float[1,8,5,5] x) => (float[1,8,5,5] y) { a = Conv(x, w, b)  s = Sum(a, x)  y = Relu(s) }""",
        {"w": normal(8, 8, 1, 1), "b": normal(8)},
        composites=frozenset({FIRST}),
    ),
    "depthwise separable": Case(
        """g (float[1,6,8,8] x) => (float[1,10,4,4] y) {
          a = Conv<group=6, strides=[2,2], pads=[1,1,1,1]>(x, w)  r = LeakyRelu(a)  y = Conv(r, v) }""",
        {"w": normal(6, 1, 3, 3), "v": normal(10, 6, 1, 1)},
        composites=frozenset({FIRST, "ccompiler.conv2d+ccompiler.transpose"}),
    ),
    "attention": Case(
        """g (float[n,6,16] x, float[n,1,6] m) => (float[n,6,16] y) {
          q = MatMul(x, wq)  k = MatMul(x, wk)  v = MatMul(x, wv)  t = Transpose<perm=[0,2,1]>(k)  s = MatMul(q, t)
          h = Mul(s, scale)  o = Add(h, m)  p = Softmax(o)  z = MatMul(p, v)  r = Add(z, x)
          y = LayerNormalization<axis=-1>(r, g, b) }""",
        {
            **{name: normal(16, 16, seed=seed) for seed, name in enumerate(("wq", "wk", "wv"))},
            "scale": np.array(0.25, np.float32),
            "g": normal(16),
            "b": normal(16, seed=1),
        },
        **batches(),
        composites=frozenset({"ccompiler.dense", DENSE, "ccompiler.softmax", "ccompiler.layer_norm"}),
    ),
    "decomposed layer norm and gelu": Case(
        """g (float[n,20] x) => (float[n,20] y) {
          m = ReduceMean<axes=[-1]>(x)  d = Sub(x, m)  s = Pow(d, two)  v = ReduceMean<axes=[-1]>(s)  e = Add(v, eps)
          r = Sqrt(e)  z = Div(d, r)  a = Mul(z, w)  h = Mul(a, rsqrt)  f = Erf(h)  o = Add(f, one)  p = Mul(a, o)
          y = Mul(p, half) }""",
        {
            "w": normal(20),
            **{
                name: np.array(value, np.float32)
                for name, value in {"two": 2, "eps": 1e-5, "rsqrt": 0.7071068, "one": 1, "half": 0.5}.items()
            },
        },
        **batches(),
        composites=frozenset({"ccompiler.normalize+ccompiler.elementwise"}),
    ),
    "layer norm of one element": Case(
        """g (float[n,3,1] x) => (float[n,3,1] y) { r = Relu(x)  l = LayerNormalization<axis=-1>(r, g, b)
          y = Sigmoid(l) }""",
        {"g": normal(1), "b": normal(1)},
        **batches(),
        composites=frozenset(),  # a row of one number is given back
        left=True,
    ),
    "lines": Case(
        """g (float[n,t,6] x) => (float[n,u,9] y, float[n,12] z) {
          i = Transpose<perm=[0,2,1]>(x)  c = Conv<dilations=[2], pads=[4,0]>(i, w, b)  k = Relu(c)
          d = Conv<group=8, pads=[1,1]>(k, v)  e = Add(d, k)  p = MaxPool<kernel_shape=[3], strides=[2], pads=[1,1]>(e)
          q = Pad(p, pads)  r = Slice(q, starts, ends, axes)  s = AveragePool<kernel_shape=[3], pads=[1,1]>(r)
          a = Concat<axis=1>(r, s)  f = Conv(a, u, h)  o = Tanh(f)  y = Transpose<perm=[0,2,1]>(o)
          m = Conv<strides=[3]>(a, l)  z = ReduceMean<axes=[2], keepdims=0>(m) }""",
        {
            "w": normal(8, 6, 3),
            "b": normal(8),
            "v": normal(8, 1, 3),
            "u": normal(9, 12, 1),
            "h": normal(9),
            "l": normal(12, 12, 5),
            "pads": np.array([0, 0, 1, 0, 0, 2]),
            "starts": np.array([1, 1]),
            "ends": np.array([7, 1 << 40]),
            "axes": np.array([1, 2]),
        },
        {"n": (1, 3), "t": (16, 200)},
        ({"n": 1, "t": 16}, {"n": 3, "t": 131}),
        composites=frozenset({"ccompiler.conv1d", "ccompiler.conv1d+ccompiler.elementwise"}),
        left=True,
    ),
    "transposed convolutions": Case(
        """g (float[n,8,h,5] x, float[n,6,l] t, float[n,4,3,2,4] v)
          => (float[n,3,u,20] y, float[n,2,k] z, float[n,5,d,e,f] q) {
          a = ConvTranspose<strides=[2,2], pads=[1,1,1,1]>(x, w0, b0)
          n0 = BatchNormalization(a, s, c, m, r)  p = LeakyRelu(n0)
          o = ConvTranspose<strides=[2,2], pads=[1,1,1,1], output_padding=[1,1]>(p, w1)  y = Tanh(o)
          i = ConvTranspose<strides=[8], pads=[4,4]>(t, w2)  j = Relu(i)  z = ConvTranspose<strides=[3], group=2>(j, w3)
          q = ConvTranspose<strides=[2,2,2]>(v, w4, b4) }""",
        {
            "w0": normal(8, 16, 4, 4),
            "b0": normal(16),
            **{name: np.abs(normal(16, seed=seed)) + 0.5 for seed, name in enumerate("scmr", 1)},
            "w1": normal(16, 3, 3, 3),
            "w2": normal(6, 4, 16),
            "w3": normal(4, 1, 5),
            "w4": normal(4, 5, 2, 2, 2),
            "b4": normal(5),
        },
        {"n": (1, 3), "h": (1, 9), "l": (1, 40)},
        ({"n": 1, "h": 1, "l": 40}, {"n": 3, "h": 7, "l": 9}),
        composites=frozenset({FIRST}),
        left=True,
    ),
    "half precision": Case(
        """g (float16[n,3,6,6] x) => (float16[n,9] y) {
          a = Conv<pads=[1,1,1,1]>(x, w, b)  r = Relu(a)  p = AveragePool<kernel_shape=[6,6]>(r)  f = Flatten(p)
          m = MatMul(f, v)  y = Softmax(m) }""",
        {
            "w": normal(8, 3, 3, 3, dtype="float16"),
            "b": normal(8, dtype="float16"),
            "v": normal(8, 9, dtype="float16"),
        },
        **batches(),
        composites=frozenset({FIRST, "ccompiler.avg_pool2d", "ccompiler.dense", "ccompiler.softmax"}),
    ),
    "integers": Case(
        "g (int32[n,5] x, int32[5] z) => (int32[n,4] y, int32[n,5] m) { m = Mul(x, z)  y = MatMul(m, w) }",
        {"w": np.arange(20, dtype=np.int32).reshape(5, 4)},
        **batches(),
        composites=frozenset({"ccompiler.elementwise+ccompiler.dense"}),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_models(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    check(graph(case.text, case.weights), tmp_path, case.dims, case.points)
    manifest = inspect(tmp_path / "model.so").manifest
    by_backend: dict[str, set[str]] = {}
    for backend, primitive in manifest.primitives():
        by_backend.setdefault(backend, set()).add(str(primitive.composite))
    assert case.composites <= by_backend.get("ccompiler", set())
    assert case.left == ("llvm" in by_backend)


@settings(max_examples=5, **QUIET)
@given(drawn=models(operators=6))
def test_random_models(drawn: tuple[onnx.ModelProto, bool], tmp_path_factory: pytest.TempPathFactory) -> None:
    compare(*drawn, tmp_path_factory.mktemp("random"), targets_here())


@pytest.mark.thorough  # test_random_graphs.py has as many of them
@settings(max_examples=40, **QUIET)
@given(drawn=models(operators=25))
def test_large_random_models(drawn: tuple[onnx.ModelProto, bool], tmp_path_factory: pytest.TempPathFactory) -> None:
    compare(*drawn, tmp_path_factory.mktemp("random"), targets_here())


def test_operators_that_are_not_named_are_left(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "mlp.so"
    packager.build(models / "mlp.onnx", path, targets=["llvm", "ccompiler -operators=elementwise"])
    found = {(backend, primitive.composite) for backend, primitive in inspect(path).manifest.primitives()}
    assert ("ccompiler", "ccompiler.elementwise") in found
    assert {composite for backend, composite in found if backend == "ccompiler"} == {"ccompiler.elementwise"}
    assert any(backend == "llvm" for backend, _ in found)


@pytest.mark.usefixtures("leaves_nothing")
def test_a_bogus_header_fails_the_build_with_the_compilers_message(models: Path, warm_cli: Cli) -> None:
    done = warm_cli(
        "build", models / "mlp.onnx", "-o", "m.so", "-t", "llvm", "-t", "ccompiler -header=bogus.h", "--no-cache"
    )
    assert_refused(done, 5, "ccompiler", "bogus.h: No such file or directory", hint="absolute path")


@pytest.mark.usefixtures("leaves_nothing")
def test_a_cpu_that_the_compiler_does_not_know(models: Path, warm_cli: Cli) -> None:
    done = warm_cli("build", models / "mlp.onnx", "-o", "m.so", "-t", "ccompiler -march=x86-64-v9", "--no-cache")
    assert_refused(done, 2, "march", "x86-64-v9", hint="x86-64-v3")


def test_a_good_header_is_included_and_its_folder_is_nobodys_business(
    models: Path, warm_cli: Cli, tmp_path: Path
) -> None:
    header = tmp_path / "ours.h"
    header.write_text("#define OURS 1\n")
    bundle = tmp_path / "m.so"
    done = warm_cli("build", models / "mlp.onnx", "-o", bundle, "-t", "llvm", "-t", f"ccompiler -header={header}")
    assert done.returncode == 0, done.stderr
    assert str(tmp_path).encode() not in bundle.read_bytes()
