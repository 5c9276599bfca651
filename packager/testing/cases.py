"""Small ONNX models, a few per family of operators, that every backend must compute correctly or decline."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from packager.bundle.arrays import Array

if TYPE_CHECKING:
    from onnx import ModelProto


Weights = Mapping[str, tuple[int, ...] | Array]

OPSET = 17
SYMBOLIC = (1, 5)
"""Bounds of every symbolic dim of a case."""


@dataclass(frozen=True)
class Case:
    """A model as ONNX text, and its weights: arrays, or shapes of random float32 arrays.

    ``inputs`` and ``outputs`` are declarations such as ``float[n, 8] x``. ``reference`` computes the outputs if ONNX's
    evaluator cannot; ``imports`` are operator domains besides ONNX's.
    """

    name: str
    family: str
    inputs: str
    body: str
    outputs: str
    weights: Weights = field(default_factory=dict)
    rtol: float = 1e-4
    atol: float = 1e-5
    imports: Mapping[str, int] = field(default_factory=dict)
    reference: Callable[[Mapping[str, Array]], Sequence[Array]] | None = None

    def model(self) -> ModelProto:
        """Return the model."""
        from onnx import helper, numpy_helper, parser

        rng = np.random.default_rng(sum(self.name.encode()))
        graph = parser.parse_graph(f"case ({self.inputs}) => ({self.outputs}) {{ {self.body} }}")
        for name, weight in self.weights.items():
            array = weight if isinstance(weight, np.ndarray) else _random_weight(rng, weight)
            graph.initializer.append(numpy_helper.from_array(array, name))
        imports = {"": OPSET, **self.imports}
        opsets = [helper.make_opsetid(domain, version) for domain, version in imports.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def expected(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Compute the outputs in numpy."""
        if self.reference is not None:
            return list(self.reference(inputs))
        from onnx.reference import ReferenceEvaluator

        return [np.asarray(array) for array in ReferenceEvaluator(self.model()).run(None, dict(inputs))]


def _random_weight(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    fan_in = max(math.prod(shape) // max(shape[:1] or (1,)), 1)
    return (rng.standard_normal(shape) / math.sqrt(fan_in)).astype(np.float32)


def _integers(dtype: str, *shape: int) -> Array:
    return np.random.default_rng(len(shape)).integers(-9, 9, shape).astype(dtype)


def _halves(*shape: int) -> Array:
    return (np.random.default_rng(len(shape)).standard_normal(shape) / 4).astype(np.float16)


def cases(*families: str) -> tuple[Case, ...]:
    """Return the cases of these families, in the order of ``CASES``. Raises ValueError for an unknown family."""
    if unknown := set(families) - {case.family for case in CASES}:
        raise ValueError(f"no families of cases: {sorted(unknown)}")
    return tuple(case for case in CASES if case.family in families)


def _f32(name: str, family: str, inputs: str, body: str, outputs: str, **weights: tuple[int, ...] | Array) -> Case:
    return Case(name, family, inputs, body, outputs, weights)


def _exact(name: str, family: str, inputs: str, body: str, outputs: str, **weights: Array) -> Case:
    return Case(name, family, inputs, body, outputs, weights, rtol=0, atol=0)


def _f16(name: str, family: str, inputs: str, body: str, outputs: str, **weights: Array) -> Case:
    return Case(name, family, inputs, body, outputs, weights, rtol=1e-2, atol=1e-2)


_BODY_NORM = """
    m = ReduceMean<axes=[-1]>(x)  d = Sub(x, m)  q = Mul(d, d)  v = ReduceMean<axes=[-1]>(q)  e = Add(v, eps)
    s = Sqrt(e)  z = Div(d, s)  g = Mul(z, scale)  y = Add(g, shift)
"""
_HEADS = """
    a = Reshape(x, split) q = Transpose<perm=[0,2,1,3]>(a) b = Reshape(z, split) k = Transpose<perm=[0,2,3,1]>(b)
    c = Reshape(u, split) v = Transpose<perm=[0,2,1,3]>(c) d = MatMul(q, k) s = Mul(d, scale)
"""
_WEIGHTED = "p = Softmax<axis=-1>(t) r = MatMul(p, v) m = Transpose<perm=[0,2,1,3]>(r) y = Reshape(m, joined)"


def _attention(name: str, mask: str = "", **weights: Array) -> Case:
    """Attention of 3 heads of 8 over 13 rows; ``mask`` is an input, a weight, or nothing."""
    given = "" if mask in weights or not mask else f", float[2, 1, 1, 13] {mask}"
    masked = f"t = Add(s, {mask})" if mask else "t = Identity(s)"
    shapes = {"split": np.array([2, 13, 3, 8], np.int64), "joined": np.array([2, 13, 24], np.int64)}
    return _f32(
        name, "attention", f"float[2, 13, 24] x, float[2, 13, 24] z, float[2, 13, 24] u{given}",
        f"{_HEADS} {masked} {_WEIGHTED}", "float[2, 13, 24] y",
        scale=np.array(8**-0.5, np.float32), **shapes, **weights,
    )  # fmt: skip


CASES: tuple[Case, ...] = (
    # Matmul: 1 row, extents that no tile divides, rows in several dims, both operands computed, bias.
    _f32("product", "matmul", "float[7, 24] x", "y = MatMul(x, w)", "float[7, 40] y", w=(24, 40)),
    _f32("product_odd", "matmul", "float[3, 5, 13] x", "y = MatMul(x, w)", "float[3, 5, 21] y", w=(13, 21)),
    _f32("product_one_row", "matmul", "float[1, 65] x", "y = MatMul(x, w)", "float[1, 9] y", w=(65, 9)),
    _f32("product_symbolic", "matmul", "float[n, 6, 16] x", "y = MatMul(x, w)", "float[n, 6, 8] y", w=(16, 8)),
    _f32("product_large", "matmul", "float[130, 96] x", "y = MatMul(x, w)", "float[130, 136] y", w=(96, 136)),
    _f32("product_of_inputs", "matmul", "float[9, 12] x, float[12, 10] z", "y = MatMul(x, z)", "float[9, 10] y"),
    _f32("product_batched", "matmul", "float[2, n, 5, 8] x, float[2, n, 8, 6] z", "y = MatMul(x, z)",
         "float[2, n, 5, 6] y"),
    _f32("product_broadcast", "matmul", "float[2, 3, 5, 8] x, float[3, 8, 6] z", "y = MatMul(x, z)",
         "float[2, 3, 5, 6] y"),
    _f32("product_of_one_tensor", "matmul", "float[8, 8] x", "y = MatMul(x, x)", "float[8, 8] y"),
    _f32("product_bias", "dense", "float[7, 24] x", "t = MatMul(x, w) y = Add(t, b)", "float[7, 40] y",
         w=(24, 40), b=(40,)),
    _f32("product_bias_first", "dense", "float[n, 24] x", "t = MatMul(x, w) y = Add(b, t)", "float[n, 33] y",
         w=(24, 33), b=(33,)),
    _f32("product_bias_relu", "dense", "float[5, 20] x", "t = MatMul(x, w) u = Add(t, b) y = Relu(u)", "float[5, 12] y",
         w=(20, 12), b=(12,)),
    _f32("gemm_transposed", "dense", "float[6, 20] x", "y = Gemm<transB=1>(x, w, b)", "float[6, 12] y",
         w=(12, 20), b=(12,)),
    _f32("two_layers", "dense", "float[6, 20] x", "t = Gemm(x, w, b) u = Relu(t) y = Gemm(u, v, c)", "float[6, 4] y",
         w=(20, 12), b=(12,), v=(12, 4), c=(4,)),
    _f32("product_tapped", "dense", "float[4, 8] x", "t = MatMul(x, w) y = Add(t, b)", "float[4, 8] y, float[4, 8] t",
         w=(8, 8), b=(8,)),
    _f16("product_float16", "dense_types", "float16[5, 16] x", "t = MatMul(x, w) y = Add(t, b)", "float16[5, 8] y",
         w=_halves(16, 8), b=_halves(8)),
    _exact("product_int32", "dense_types", "int32[5, 16] x", "y = MatMul(x, w)", "int32[5, 8] y",
           w=_integers("int32", 16, 8)),
    # Convolutions: padding, strides, groups, dilation, bias, an activation.
    _f32("conv", "conv", "float[1, 3, 9, 9] x", "y = Conv<pads=[1,1,1,1]>(x, w)", "float[1, 8, 9, 9] y",
         w=(8, 3, 3, 3)),
    _f32("conv_bias_relu", "conv", "float[2, 4, 8, 10] x",
         "t = Conv<strides=[2,2], pads=[1,1,1,1]>(x, w, b) y = Relu(t)", "float[2, 8, 4, 5] y", w=(8, 4, 3, 3), b=(8,)),
    _f32("conv_depthwise", "conv", "float[1, 6, 7, 7] x", "y = Conv<group=6>(x, w, b)", "float[1, 6, 5, 5] y",
         w=(6, 1, 3, 3), b=(6,)),
    _f32("conv_dilated", "conv", "float[n, 3, 9, 9] x", "y = Conv<dilations=[2,2]>(x, w)", "float[n, 5, 5, 5] y",
         w=(5, 3, 3, 3)),
    _f32("conv_pointwise", "conv", "float[1, 16, 20, 20] x", "y = Conv(x, w, b)", "float[1, 24, 20, 20] y",
         w=(24, 16, 1, 1), b=(24,)),
    # Pooling.
    _f32("max_pool", "pool", "float[1, 4, 9, 9] x", "y = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x)",
         "float[1, 4, 5, 5] y"),
    _f32("average_pool", "pool", "float[2, 3, 8, 8] x", "y = AveragePool<kernel_shape=[2,2], strides=[2,2]>(x)",
         "float[2, 3, 4, 4] y"),
    _f32("global_average_pool", "pool", "float[n, 5, 6, 7] x", "y = GlobalAveragePool(x)", "float[n, 5, 1, 1] y"),
    # Between convolutions: concat, channel shuffle, LRN.
    _f32("concat", "move", "float[2, 4, 20] x, float[2, 4, 7] z", "y = Concat<axis=-1>(x, z)", "float[2, 4, 27] y"),
    _f32("concat_symbolic", "move", "float[n, 5] x, float[n, 3] z", "t = Concat<axis=1>(x, z, x) y = Relu(t)",
         "float[n, 13] y"),
    _f32("channel_shuffle", "move", "float[1, 4, 6, 5] x",
         "a = Conv(x, w) b = Reshape(a, parts) c = Transpose<perm=[0,2,1,3,4]>(b) d = Reshape(c, whole) y = Conv(d, v)",
         "float[1, 5, 6, 5] y", w=(12, 4, 1, 1), v=(5, 12, 1, 1), parts=np.array([1, 3, 4, 6, 5], np.int64),
         whole=np.array([1, 12, 6, 5], np.int64)),
    # Batch equals channels: ONNX's evaluator confuses the axes.
    _f32("neighboring_channels", "move", "float[12, 4, 3, 2] x",
         "a = Conv(x, w) y = LRN<size=5, alpha=0.5, beta=0.75, bias=1.0>(a)", "float[12, 12, 3, 2] y", w=(12, 4, 1, 1)),
    # Normalization over the last axis.
    _f32("softmax", "softmax", "float[3, 4, 17] x", "y = Softmax<axis=-1>(x)", "float[3, 4, 17] y"),
    _f32("softmax_symbolic", "softmax", "float[n, 9] x", "y = Softmax<axis=-1>(x)", "float[n, 9] y"),
    _f32("log_softmax", "softmax", "float[5, 11] x", "y = LogSoftmax<axis=-1>(x)", "float[5, 11] y"),
    _f32("layer_norm", "layer_norm", "float[2, 5, 24] x", "y = LayerNormalization<axis=-1>(x, scale, shift)",
         "float[2, 5, 24] y", scale=(24,), shift=(24,)),
    _f32("layer_norm_written_out", "layer_norm", "float[n, 16] x", _BODY_NORM, "float[n, 16] y",
         scale=(16,), shift=(16,), eps=np.array([1e-5], np.float32)),
    # Attention: no mask, mask as an input, causal mask as a constant.
    _attention("attention"),
    _attention("attention_masked", "mask"),
    _attention("attention_causal", "later", later=np.triu(np.full((13, 13), -1e9, np.float32), 1)),
    # Elementwise chains: broadcasting, an operand used twice, a large one, other types.
    _f32("chain", "elementwise", "float[4, 33] x, float[33] z", "t = Add(x, z) u = Sigmoid(t) y = Mul(u, x)",
         "float[4, 33] y"),
    _f32("chain_symbolic", "elementwise", "float[n, 8] x", "t = Tanh(x) u = Mul(t, t) y = Sub(u, c)", "float[n, 8] y",
         c=np.array(0.25, np.float32)),
    _f32("chain_large", "elementwise", "float[64, 4096] x", "t = Relu(x) u = Exp(t) y = Div(t, u)",
         "float[64, 4096] y"),
    _f32("diamond", "elementwise", "float[6, 6] x", "a = Abs(x) b = Sqrt(a) c = Neg(a) y = Add(b, c)", "float[6, 6] y"),
    _exact("chain_int32", "elementwise_types", "int32[5, 7] x, int32[5, 7] z",
           "t = Add(x, z) u = Mul(t, x) y = Sub(u, z)", "int32[5, 7] y"),
    _exact("chain_int8", "elementwise_types", "int8[5, 7] x, int8[5, 7] z", "t = Add(x, z) y = Max(t, z)",
           "int8[5, 7] y"),
    _f16("chain_float16", "elementwise_types", "float16[4, 9] x", "t = Mul(x, c) y = Relu(t)", "float16[4, 9] y",
         c=_halves(9)),
)  # fmt: skip
