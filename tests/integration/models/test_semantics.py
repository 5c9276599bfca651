"""Models against onnxruntime: dtypes, ranks, symbolic dims, and outputs that are no result of a kernel of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import DimBounds, check, graph, normal
from onnx import TensorProto, helper, numpy_helper

import packager


@dataclass(frozen=True)
class Case:
    """A graph as text, its weights, the bounds of its dims and the sizes at which it is run."""

    text: str
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    dims: DimBounds = field(default_factory=dict)
    points: tuple[dict[str, int], ...] = ({},)
    opset: int = 17


def batches(name: str = "n", low: int = 1, high: int = 5) -> dict[str, object]:
    """Bounds of one dim, and its smallest, a middle and its largest size."""
    return {"dims": {name: (low, high)}, "points": tuple({name: size} for size in (low, (low + high) // 2, high))}


INT = np.int64
CASES = {
    "math functions": Case(
        """g (float[n,35] x) => (float[n,35] sh, float[n,35] ch, float[n,35] as, float[n,35] ac, float[n,35] at) {
          p = Sigmoid(x)\n sh = Sinh(x)\n ch = Cosh(x)\n as = Asinh(x)\n ac = Acos(p)\n at = Atanh(p) }""",
        **batches(),
    ),
    # outputs that are not simply the result of the last kernel
    "output is input": Case("g (float[3] x) => (float[3] y) { y = Identity(x) }"),
    "output is symbolic input": Case("g (float[n,3] x) => (float[n,3] y) { y = Identity(x) }", **batches()),
    "output is constant": Case(
        "g (float[3] x) => (float[3] y, float[2] c) { y = Neg(x)\n c = Identity(w) }", {"w": normal(2)}
    ),
    "output is large constant": Case(
        "g (float[3] x) => (float[3] y, float[8,64] c) { y = Neg(x)\n c = Identity(w) }", {"w": normal(8, 64)}
    ),
    "output is initializer": Case("g (float[3] x) => (float[3] y, float[2] w) { y = Neg(x) }", {"w": normal(2)}),
    "outputs are twice the same value": Case(
        "g (float[3] x) => (float[3] y, float[3] z) { y = Neg(x)\n z = Identity(y) }"
    ),
    "outputs are equal results": Case("g (float[3] x) => (float[3] y, float[3] z) { y = Neg(x)\n z = Neg(x) }"),
    "output is a reshape of an output": Case(
        "g (float[2,6] x) => (float[2,6] y, float[3,4] z) { y = Neg(x)\n z = Reshape(y, s) }",
        {"s": np.array([3, 4], INT)},
    ),
    "outputs are reshapes of one value": Case(
        "g (float[2,6] x) => (float[12] y, float[3,4] z) { t = Neg(x)\n y = Reshape(t, r)\n z = Reshape(t, s) }",
        {"r": np.array([12], INT), "s": np.array([3, 4], INT)},
    ),
    "output is a reshape of the input": Case(
        "g (float[2,6] x) => (float[4,3] y) { y = Reshape(x, s) }", {"s": np.array([4, 3], INT)}
    ),
    "output is a reshape of a constant": Case(
        "g (float[2] x) => (float[4,3] y, float[2] z) { y = Reshape(w, s)\n z = Abs(x) }",
        {"w": normal(12), "s": np.array([4, 3], INT)},
    ),
    "output is used further": Case("g (float[4] x) => (float[4] y, float[4] z) { y = Exp(x)\n z = Mul(y, y) }"),
    "two inputs swap places": Case(
        "g (float[4] a, float[4] b) => (float[4] y, float[4] z) { y = Identity(b)\n z = Identity(a) }"
    ),
    "an input is not used": Case("g (float[4] a, float[3] b) => (float[4] y) { y = Neg(a) }"),
    "an unused input has a dim": Case(
        "g (float[4] a, float[n] b) => (float[4] y) { y = Neg(a) }", dims={"n": (1, 3)}, points=({"n": 2},)
    ),
    # ranks
    "scalar in and out": Case("g (float x) => (float y) { y = Exp(x) }"),
    "scalar broadcast": Case("g (float s, float[3] x) => (float[3] y) { y = Mul(s, x) }"),
    "reduce to a scalar": Case("g (float[3,4] x) => (float y) { y = ReduceSum<keepdims=0>(x) }"),
    "scalar identity": Case("g (float x) => (float y) { y = Identity(x) }"),
    "rank 6": Case("g (float[1,2,1,3,2,2] x) => (float[2,1,2,2,3,1] y) { y = Transpose<perm=[5,0,4,1,3,2]>(x) }"),
    "no inputs": Case("g () => (float[2] y) { y = Identity(w) }", {"w": normal(2)}),
    "no inputs, computed": Case("g () => (float[2] y) { y = Exp(w) }", {"w": normal(2)}),
    # element types
    "int64": Case("g (int64[4] x) => (int64[4] y) { y = Mul(x, x) }"),
    "int32": Case("g (int32[4] x, int32[4] z) => (int32[4] y) { y = Sub(x, z) }"),
    "int8": Case("g (int8[4] x) => (int8[4] y) { y = Abs(x) }"),
    "uint8": Case("g (uint8[4] x) => (float[4] y) { y = Cast<to=1>(x) }"),
    "uint8 identity": Case("g (uint8[4] x) => (uint8[4] y) { y = Identity(x) }"),
    "bool": Case("g (bool[4] a, bool[4] b) => (bool[4] y) { t = And(a, b)\n y = Not(t) }"),
    "bool input, float output": Case("g (bool[4] c, float[4] a, float[4] b) => (float[4] y) { y = Where(c, a, b) }"),
    "comparison": Case("g (float[4] a, float[4] b) => (bool[4] y) { y = Less(a, b) }"),
    "float16": Case("g (float16[4,4] a, float16[4,4] b) => (float16[4,4] y) { t = MatMul(a, b)\n y = Tanh(t) }"),
    "float64": Case("g (double[4,4] a, double[4,4] b) => (double[4,4] y) { t = MatMul(a, b)\n y = Sigmoid(t) }"),
    "argmax": Case("g (float[n,7] x) => (int64[n] y) { y = ArgMax<axis=1, keepdims=0>(x) }", **batches()),
    "embedding": Case(
        "g (int64[n,3] i) => (float[n,3,6] y) { a = Abs(i)\n y = Gather(w, a) }", {"w": normal(5, 6)}, **batches()
    ),
    # weights
    "weight shared by two nodes": Case(
        "g (float[4,4] x) => (float[4,4] y) { t = MatMul(x, w)\n y = MatMul(t, w) }", {"w": normal(4, 4)}
    ),
    "two weights of equal content": Case(
        "g (float[4,4] x) => (float[4,4] y) { t = MatMul(x, w)\n y = MatMul(t, v) }",
        {"w": normal(4, 4), "v": normal(4, 4)},
    ),
    "weight used transposed and plain": Case(
        "g (float[4,4] x) => (float[4,4] y) { a = Gemm<transB=1>(x, w)\n y = Gemm<transB=0>(a, w) }",
        {"w": normal(4, 4)},
    ),
    # symbolic dims
    "concat along a symbolic axis": Case(
        "g (float[n,3] a, float[m,3] b) => (float[k,3] y) { y = Concat<axis=0>(a, b) }",
        dims={"n": (1, 4), "m": (2, 5)},
        points=({"n": 1, "m": 2}, {"n": 4, "m": 5}, {"n": 3, "m": 2}),
    ),
    "twice n": Case("g (float[n,3] a) => (float[k,3] y) { y = Concat<axis=0>(a, a) }", **batches()),
    "half of n by a strided slice": Case(
        "g (float[n,3] x) => (float[k,3] y) { y = Slice(x, zero, end, zero, two) }",
        {"zero": np.array([0], INT), "end": np.array([2**31 - 1], INT), "two": np.array([2], INT)},
        **batches(low=2, high=7),
    ),
    "pooling over symbolic sides": Case(
        "g (float[1,2,h,w] x) => (float[1,2,p,q] y) { y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }",
        dims={"h": (4, 9), "w": (4, 9)},
        points=({"h": 4, "w": 9}, {"h": 7, "w": 6}, {"h": 9, "w": 9}),
    ),
    "conv over symbolic sides": Case(
        "g (float[1,3,h,w] x) => (float[1,4,p,q] y)"
        " { t = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w0, b)\n y = Relu(t) }",
        {"w0": normal(4, 3, 3, 3), "b": normal(4)},
        dims={"h": (5, 12), "w": (5, 12)},
        points=({"h": 5, "w": 12}, {"h": 8, "w": 7}, {"h": 12, "w": 12}),
    ),
    "symbolic batch and sequence": Case(
        """g (float[b,s,8] x) => (float[b,s,8] y) {
             q = MatMul(x, wq)  k = MatMul(x, wk)  v = MatMul(x, wv)
             kt = Transpose<perm=[0,2,1]>(k)  a = MatMul(q, kt)  p = Softmax<axis=-1>(a)  y = MatMul(p, v) }""",
        {"wq": normal(8, 8), "wk": normal(8, 8, seed=1), "wv": normal(8, 8, seed=2)},
        dims={"b": (1, 3), "s": (1, 9)},
        points=({"b": 1, "s": 1}, {"b": 2, "s": 5}, {"b": 3, "s": 9}),
    ),
    "dim fixed by a request": Case("g (float[n,3] x) => (float[n,3] y) { y = Neg(x) }", dims={"n": 4}),
    "one fixed, one bounded": Case(
        "g (float[n,m] x) => (float[m,n] y) { y = Transpose<perm=[1,0]>(x) }",
        dims={"n": 3, "m": (1, 4)},
        points=({"m": 1}, {"m": 4}),
    ),
    "flatten of a symbolic batch": Case("g (float[n,3,2] x) => (float[n,k] y) { y = Flatten<axis=1>(x) }", **batches()),
    "reshape through the shape of the input": Case(
        """g (float[n,6] x) => (float[n,2,3] y) {
             s = Shape(x)  b = Slice(s, zero, one, zero)  t = Concat<axis=0>(b, rest)  y = Reshape(x, t) }""",
        {"zero": np.array([0], INT), "one": np.array([1], INT), "rest": np.array([2, 3], INT)},
        **batches(),
    ),
    "reduce over a symbolic axis": Case(
        "g (float[n,3] x) => (float[1,3] y) { y = ReduceMean<axes=[0]>(x) }", **batches()
    ),
    "a dim that stands twice": Case("g (float[n,n] x) => (float[n,n] y) { y = Softmax<axis=1>(x) }", **batches()),
    "expand to a symbolic extent": Case(
        "g (float[n,3] x, float[1,3] b) => (float[n,3] y) { s = Shape(x)\n y = Expand(b, s) }", **batches()
    ),
    # operators with structure
    "split": Case("g (float[2,6] x) => (float[2,3] y, float[2,3] z) { y, z = Split<axis=1>(x) }", opset=13),
    "gather along an axis": Case(
        "g (float[n,5] x) => (float[n,2] y) { y = Gather<axis=1>(x, i) }", {"i": np.array([3, 1], INT)}, **batches()
    ),
    "layer normalization": Case(
        "g (float[n,8] x) => (float[n,8] y) { y = LayerNormalization<axis=-1>(x, s, b) }",
        {"s": normal(8), "b": normal(8)},
        **batches(),
    ),
    "gelu from erf": Case(
        """g (float[n,8] x) => (float[n,8] y) {
             a = Div(x, r)  e = Erf(a)  f = Add(e, one)  m = Mul(x, f)  y = Mul(m, half) }""",
        {"r": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)},
        **batches(),
    ),
    "grouped conv": Case(
        "g (float[n,4,6,6] x) => (float[n,8,6,6] y) { y = Conv<group=2, pads=[1,1,1,1]>(x, w) }",
        {"w": normal(8, 2, 3, 3)},
        **batches(high=3),
    ),
    "conv, batch norm, relu": Case(
        "g (float[n,3,6,6] x) => (float[n,4,4,4] y)"
        " { c = Conv(x, w)\n b = BatchNormalization(c, s, t, m, v)\n y = Relu(b) }",
        {"w": normal(4, 3, 3, 3), "s": normal(4), "t": normal(4), "m": normal(4), "v": abs(normal(4)) + 0.5},
        **batches(high=3),
    ),
    "conv 1d": Case("g (float[n,3,9] x) => (float[n,4,7] y) { y = Conv(x, w) }", {"w": normal(4, 3, 3)}, **batches()),
    "transposed conv": Case(
        "g (float[1,3,5,5] x) => (float[1,4,10,10] y) { y = ConvTranspose<strides=[2,2], kernel_shape=[2,2]>(x, w) }",
        {"w": normal(3, 4, 2, 2)},
    ),
    "average pools": Case(
        "g (float[n,3,8,8] x) => (float[n,3,4,4] y, float[n,3,1,1] z) "
        "{ y = AveragePool<kernel_shape=[2,2], strides=[2,2]>(x)\n z = GlobalAveragePool(x) }",
        **batches(high=3),
    ),
    "pad": Case(
        "g (float[2,3] x) => (float[4,4] y) { y = Pad(x, p, v) }",
        {"p": np.array([1, 0, 1, 1], INT), "v": np.float32(0.5)},
    ),
    "gemm with a parallel loop": Case(
        "g (float[n,256] x) => (float[n,256] y) { t = Gemm(x, w, b)\n y = Relu(t) }",
        {"w": normal(256, 256), "b": normal(256)},
        **batches(high=33),
    ),
    "a chain of equal layers": Case(
        "g (float[n,16] x) => (float[n,16] y) { a = MatMul(x, u)\n b = Relu(a)\n c = MatMul(b, v)\n d = Relu(c)\n"
        " e = MatMul(d, w)\n y = Relu(e) }",
        {"u": normal(16, 16), "v": normal(16, 16, seed=1), "w": normal(16, 16, seed=2)},
        **batches(),
    ),
    "resize": Case(
        'g (float[1,2,4,4] x) => (float[1,2,8,8] y) { y = Resize<mode="nearest">(x, , s) }',
        {"s": np.array([1, 1, 2, 2], np.float32)},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_model_computes_what_onnxruntime_computes(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    check(graph(case.text, case.weights, case.opset), tmp_path, case.dims, case.points).close()


@pytest.mark.slow
def test_every_node_stands_in_the_manifest_with_the_function_that_computes_it(tmp_path: Path) -> None:
    """A fused function names all of its nodes, the first and the last too; a view computes nothing and is in none."""
    text = """g (float[n,3,8,8] x) => (float[n,5] y) {
      [conv] c = Conv<pads=[1,1,1,1]>(x, w, b)  [relu] r = Relu(c)  [pool] p = GlobalAveragePool(r)
      [flatten] f = Flatten<axis=1>(p)  [gemm] g = Gemm(f, v, u)  [act] h = Sigmoid(g)  [scale] y = Mul(h, h) }"""
    weights = {"w": normal(4, 3, 3, 3), "b": normal(4), "v": normal(4, 5), "u": normal(5)}
    bundle = check(graph(text, weights), tmp_path, {"n": (1, 3)}, ({"n": 1}, {"n": 3}))
    primitives = [primitive for backend in bundle.manifest.backends for primitive in backend.primitives]
    nodes = [node for primitive in primitives for node in primitive.nodes]
    assert set(nodes) - {"flatten"} == {"conv", "relu", "pool", "gemm", "act", "scale"}
    conv = next(primitive for primitive in primitives if "conv" in primitive.nodes)
    assert "relu" in conv.nodes
    bundle.close()


def test_external_data_in_functions_and_branches(tmp_path: Path) -> None:
    """Large data are taken out of the model before functions are inlined; those of branches go into the model."""
    rng = np.random.default_rng(0)
    shared, own = rng.standard_normal((2, 64, 64), np.float32)
    product = helper.make_node("MatMul", ["a", "b"], ["c"])
    function = helper.make_function("own", "Product", ["a", "b"], ["c"], [product], [helper.make_opsetid("", 18)])

    def branch(source: str, *tensors: onnx.TensorProto) -> onnx.GraphProto:
        result = helper.make_tensor_value_info(f"{source}.out", TensorProto.FLOAT, [64, 64])
        node = helper.make_node("Identity", [source], [result.name])
        return helper.make_graph([node], source, [], [result], tensors)

    chosen = {"then_branch": branch("own", numpy_helper.from_array(own, "own")), "else_branch": branch("shared")}
    nodes = [
        helper.make_node("Product", ["x", "shared"], ["h"], domain="own"),
        helper.make_node("If", ["flag"], ["w"], **chosen),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 64]),
        helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 64])
    graph = helper.make_graph(nodes, "g", inputs, [output], [numpy_helper.from_array(shared, "shared")])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    x = rng.standard_normal((4, 64), np.float32)
    with packager.load(packager.build(tmp_path / "m.onnx", tmp_path / "m.so", targets=["llvm"])) as bundle:
        for flag, weight in ((True, own), (False, shared)):
            y = bundle.run({"x": x, "flag": np.array(flag)})["y"]
            np.testing.assert_allclose(y, x @ shared @ weight, rtol=1e-3, atol=1e-3)
