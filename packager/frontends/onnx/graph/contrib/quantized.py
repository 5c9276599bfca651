"""Rules of 8-bit operators: dequantize, compute, quantize, as in QDQ models, which are rewritten to integer arithmetic.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from onnx import TensorProto

from packager.frontends.onnx.graph.contrib.body import Body, Rule


def dequantized(b: Body, first: int) -> str:
    """Dequantize input ``first`` by the scale and the zero point after it."""
    return b("DequantizeLinear", *filter(None, (b.input(first), b.input(first + 1), b.input(first + 2))))


def quantized(b: Body, x: str, first: int) -> str:
    """Quantize by the scale at input ``first`` and the zero point after it."""
    return b("QuantizeLinear", *filter(None, (x, b.input(first), b.input(first + 1))))


def _binary(operator: str) -> Rule:
    return lambda b: [quantized(b, b(operator, dequantized(b, 0), dequantized(b, 3)), 6)]


def _unary(operator: str, *attributes: str) -> Rule:
    def rule(b: Body) -> list[str]:
        given = {name: b.flag(name) for name in attributes if name in b.attributes}
        return [quantized(b, b(operator, dequantized(b, 0), **given), 3)]

    return rule


def _pool(operator: str) -> Rule:
    def rule(b: Body) -> list[str]:
        rank = len(b.extents(b.input(0)))
        last = b.flag("channels_last")
        x = dequantized(b, 0)
        x = b("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)]) if last else x
        given = {name: value for name, value in b.attributes.items() if name != "channels_last"}
        x = b(operator, x, **given)
        x = b("Transpose", x, perm=[0, *range(2, rank), 1]) if last else x
        return [quantized(b, x, 3)]

    return rule


def _concat(b: Body) -> list[str]:
    """Inputs: the result's scale and zero point, then (tensor, scale, zero point) of each part."""
    parts = [dequantized(b, index) for index in range(2, len(b.node.input), 3)]
    return [quantized(b, b("Concat", *parts, axis=b.required("axis")), 0)]


def _softmax(b: Body) -> list[str]:
    axis, rank = b.flag("axis", -1), len(b.extents(b.input(0)))
    if b.flag("opset", 13) < 13 and axis % rank != rank - 1:
        raise ValueError("a softmax over several axes is not supported")
    return [quantized(b, b("Softmax", dequantized(b, 0), axis=axis), 3)]


def _where(b: Body) -> list[str]:
    return [quantized(b, b("Where", b.input(0), dequantized(b, 1), dequantized(b, 4)), 7)]


def _gemm(b: Body) -> list[str]:
    """alpha A' B' + C, with C in int32 in units of alpha times the operands' scales; float without an output scale."""
    a, w = dequantized(b, 0), _weights(b, 3)
    given = {name: b.flag(name) for name in ("alpha", "transA", "transB") if name in b.attributes}
    result = b("Gemm", a, w, **given)
    if b.input(6):
        unit = b("Mul", b.input(1), b.input(4))
        unit = b("Mul", unit, b.number(b.flag("alpha", 1.0), b.input(1))) if b.flag("alpha", 1.0) != 1 else unit
        result = b("Add", result, b("Mul", b("Cast", b.input(6), to=TensorProto.FLOAT), unit))
    return [quantized(b, result, 7) if b.input(7) else result]


def _weights(b: Body, first: int) -> str:
    """Dequantize the second operand of a product, whose scales may be one for each column."""
    per_column = b.extents(b.input(first + 1)) not in ((), (1,))
    axis = 0 if b.flag("transB") else len(b.extents(b.input(first))) - 1
    operands = [name for name in (b.input(first), b.input(first + 1), b.input(first + 2)) if name]
    return b("DequantizeLinear", *operands, **({"axis": axis} if per_column else {}))


def _matmul_to_float(b: Body) -> list[str]:
    """Inputs A, B, their scales, their zero points, a bias."""
    a = b("DequantizeLinear", *filter(None, (b.input(0), b.input(2), b.input(4))))
    return [_product(b, a, b.input(1), b.input(3), b.input(5), b.input(6))]


def _dynamic_matmul(b: Body) -> list[str]:
    """Inputs A (float, quantized for each call), B, its scale and zero point, a bias."""
    parts = b.several("DynamicQuantizeLinear", [b.input(0)], 3)
    return [_product(b, b("DequantizeLinear", *parts), b.input(1), b.input(2), b.input(3), b.input(4))]


def _product(b: Body, a: str, w: str, scale: str, zero: str, bias: str) -> str:
    per_column = b.extents(scale) not in ((), (1,))
    attributes = {"axis": len(b.extents(w)) - 1} if per_column else {}
    result = b("MatMul", a, b("DequantizeLinear", *filter(None, (w, scale, zero)), **attributes))
    return b("Add", result, bias) if bias else result


def _same(operator: str) -> Rule:
    """Take the operator of onnxruntime's domain for the standard's: other element types of the zero points."""

    def rule(b: Body) -> Sequence[str]:
        return b.several(operator, b.node.input, len(b.node.output), **b.attributes)

    return rule


def _conv(b: Body) -> Sequence[str]:
    given = {name: value for name, value in b.attributes.items() if name != "channels_last"}
    if not b.flag("channels_last"):
        return b.several("QLinearConv", b.node.input, 1, **given)
    return [channels_last(b, lambda x: b("QLinearConv", x, *b.node.input[1:], **given))]


def _max_pool(b: Body) -> list[str]:
    return [channels_last(b, lambda x: b("MaxPool", x, **b.attributes))]


def channels_last(b: Body, compute: Callable[[str], str]) -> str:
    """Compute input 0 [N, .., C] as [N, C, ..]; the weights of such operators are as the standard has them."""
    rank = len(b.extents(b.input(0)))
    result = compute(b("Transpose", b.input(0), perm=[0, rank - 1, *range(1, rank - 1)]))
    return b("Transpose", result, perm=[0, *range(2, rank), 1])


def _lstm(b: Body) -> Sequence[str]:
    """LSTM with weights [directions, inputs, 4 hidden] and [directions, hidden, 4 hidden] in 8 bits. The operands that
    onnxruntime quantizes for each call stay floats."""
    operands = [*map(b.input, range(8))]
    for index, first in ((1, 8), (2, 10)):
        rank = len(b.extents(b.input(first)))
        scale, zero = (_per_column(b, name, rank) for name in (b.input(first), b.input(first + 1)))
        wide = b("Cast", operands[index], to=TensorProto.FLOAT)
        if zero:
            wide = b("Sub", wide, b("Cast", zero, to=TensorProto.FLOAT))
        operands[index] = b("Transpose", b("Mul", wide, scale), perm=[0, 2, 1])
    while not operands[-1]:
        operands.pop()
    return b.several("LSTM", operands, len(b.node.output), **b.attributes)


def _per_column(b: Body, name: str, rank: int) -> str:
    """Return a scale or zero point [directions] or [directions, columns] as [directions, 1, 1 or columns]."""
    if not name:
        return ""
    name = name if rank == 2 else b.unsqueezed(name, 1)
    return b.unsqueezed(name, 1)


RULES: Mapping[str, Rule] = {
    "QLinearAdd": _binary("Add"),
    "QLinearMul": _binary("Mul"),
    "QLinearSigmoid": _unary("Sigmoid"),
    "QLinearLeakyRelu": _unary("LeakyRelu", "alpha"),
    "QLinearAveragePool": _pool("AveragePool"),
    "QLinearGlobalAveragePool": _pool("GlobalAveragePool"),
    "QLinearConcat": _concat,
    "QLinearSoftmax": _softmax,
    "QLinearWhere": _where,
    "QLinearConv": _conv,
    "NhwcMaxPool": _max_pool,
    "DynamicQuantizeLSTM": _lstm,
    "QGemm": _gemm,
    "MatMulIntegerToFloat": _matmul_to_float,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "QuantizeLinear": _same("QuantizeLinear"),
    "DequantizeLinear": _same("DequantizeLinear"),
}
