"""Rules of activations, and of products and convolutions with a fused activation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from packager.frontends.onnx.graph.contrib.body import Body, Rule


def gelu(b: Body, x: str) -> str:
    """x / 2 (1 + erf(x / sqrt(2)))."""
    inner = b("Erf", b("Div", x, b.number(math.sqrt(2), b.input(0))))
    return b("Mul", b("Mul", x, b("Add", inner, b.number(1, b.input(0)))), b.number(0.5, b.input(0)))


def fast_gelu(b: Body, x: str) -> str:
    """x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""

    def number(value: float) -> str:
        return b.number(value, b.input(0))

    cube = b("Mul", b("Mul", x, x), x)
    inner = b("Mul", b("Add", x, b("Mul", cube, number(0.044715))), number(math.sqrt(2 / math.pi)))
    return b("Mul", b("Mul", x, b("Add", b("Tanh", inner), number(1))), number(0.5))


def activated(b: Body, x: str, name: str, parameters: Sequence[float]) -> str:
    """Apply the activation of a fused operator. Raises ValueError for one that onnxruntime does not fuse either."""
    names = dict.fromkeys(("LeakyRelu", "Elu", "ThresholdedRelu"), ("alpha",)) | {"HardSigmoid": ("alpha", "beta")}
    if not name:
        return x
    if name == "Clip":
        low, high = parameters
        return b("Clip", x, b.number(low, b.input(0)), b.number(high, b.input(0)))
    if name == "HardSwish":
        return b("HardSwish", x)
    if name in ("Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", *names):
        return b(name, x, **dict(zip(names.get(name, ()), parameters, strict=False)))
    raise ValueError(f"the fused activation {name} is not known")


def _bias_gelu(b: Body) -> list[str]:
    return [gelu(b, b("Add", b.input(0), b.input(1)))]


def _fast_gelu(b: Body) -> list[str]:
    return [fast_gelu(b, b("Add", b.input(0), b.input(1)) if b.input(1) else b.input(0))]


def _quick_gelu(b: Body) -> list[str]:
    scaled = b("Mul", b.input(0), b.number(b.flag("alpha", 1.702), b.input(0)))
    return [b("Mul", b.input(0), b("Sigmoid", scaled))]


def _bias_split_gelu(b: Body) -> list[str]:
    width = b.extents(b.input(1))[-1]
    if width is None:
        raise ValueError("the bias has an unknown extent")
    x, gate = b.split(b("Add", b.input(0), b.input(1)), [width // 2] * 2)
    return [b("Mul", x, gelu(b, gate))]


def _bias_softmax(b: Body) -> list[str]:
    axis, rank = b.flag("axis", 1), len(b.extents(b.input(0)))
    if axis % rank != rank - 1:
        raise ValueError("BiasSoftmax over several axes is not supported")
    return [b("Softmax", b("Add", b.input(0), b.input(1)), axis=-1)]


def _fused_matmul(b: Body) -> list[str]:
    if b.flag("transBatchA") or b.flag("transBatchB"):
        raise ValueError("transposed batches are not supported")
    operands = []
    for index, flag in enumerate(("transA", "transB")):
        name, rank = b.input(index), len(b.extents(b.input(index)))
        swapped = [*range(rank - 2), rank - 1, rank - 2]
        operands.append(b("Transpose", name, perm=swapped) if b.flag(flag) and rank > 1 else name)
    product = b("MatMul", *operands)
    alpha = b.flag("alpha", 1.0)
    product = product if alpha == 1 else b("Mul", product, b.number(alpha, b.input(0)))
    parameters = [b.flag(f"activation_{name}", 0.0) for name in ("alpha", "beta", "gamma")]
    return [activated(b, product, b.flag("activation", ""), parameters)]


def _fused_gemm(b: Body) -> list[str]:
    given = {name: b.flag(name) for name in ("alpha", "beta", "transA", "transB") if name in b.attributes}
    product = b("Gemm", *b.node.input, **given)
    parameters = [b.flag(f"activation_{name}", 0.0) for name in ("alpha", "beta", "gamma")]
    return [activated(b, product, b.flag("activation", ""), parameters)]


def _fused_conv(b: Body) -> list[str]:
    extra = ("activation", "activation_params")
    given = {name: value for name, value in b.attributes.items() if name not in extra}
    result = b("Conv", *[b.input(index) for index in range(3) if b.input(index)], **given)
    result = b("Add", result, b.input(3)) if b.input(3) else result
    return [activated(b, result, b.flag("activation", ""), b.flag("activation_params", ()))]


RULES: Mapping[str, Rule] = {
    "Gelu": lambda b: [gelu(b, b.input(0))],
    "BiasGelu": _bias_gelu,
    "FastGelu": _fast_gelu,
    "QuickGelu": _quick_gelu,
    "BiasSplitGelu": _bias_split_gelu,
    "BiasAdd": lambda b: [b("Add", b("Add", b.input(0), b.input(1)), b.input(2))],
    "BiasSoftmax": _bias_softmax,
    "FusedMatMul": _fused_matmul,
    "TransposeMatMul": _fused_matmul,
    "FusedMatMulActivation": _fused_matmul,
    "FusedGemm": _fused_gemm,
    "FusedConv": _fused_conv,
}
