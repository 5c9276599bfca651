"""Rules of attention over sequences without padding, one behind the other: PackedAttention, PackedMultiHeadAttention.

All tokens are one sequence whose mask lets a token see those of its own sequence: the time grows with the square of the
number of all tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import TensorProto

from packager.frontends.onnx.graph.contrib.body import Body, Rule


def _attend(b: Body, operands: tuple[str, str, str], width: int, ends: str) -> list[str]:
    """Attend by q, k, v [tokens, width]; ``ends`` [sequences + 1] are the tokens before each sequence, and all."""
    heads = b.required("num_heads")
    count = b("Gather", b("Shape", operands[0]), b.array(0, np.int64))
    tokens = b("Range", b.array(0, np.int64), count, b.array(1, np.int64))
    begun = b("LessOrEqual", b("Cast", ends, to=TensorProto.INT64), b.unsqueezed(tokens, 1))
    sequence = b("Cast", begun, to=TensorProto.INT64)
    number = b("ReduceSum", sequence, b.integers(-1)) if b.opset >= 13 else b("ReduceSum", sequence, axes=[-1])
    same = b("Equal", number, b("Transpose", number, perm=[1, 0]))
    attributes = {"scale": scale} if (scale := b.flag("scale", 0.0)) else {}
    given = [b.unsqueezed(name, 0) for name in operands]
    result = b("Attention", *given, same, q_num_heads=heads, kv_num_heads=heads, **attributes)
    result = b("Reshape", result, b.integers(-1, width))
    b.declare(result, b.type_of(b.input(0)), (None, width))
    return [result]


def _packed(b: Body) -> list[str]:
    """Inputs: x [tokens, width], weights of q, k, v side by side, bias, token offsets, ends, added bias."""
    x, weights, bias, _, ends, added = map(b.input, range(6))
    if added:
        raise ValueError("an added bias is not supported")
    whole = b.extents(weights)[1]
    if whole is None:
        raise ValueError("the extents of the weights are unknown")
    sizes = list(b.flag("qkv_hidden_sizes", None) or [whole // 3] * 3)
    q, k, v = b.split(b("Add", b("MatMul", x, weights), bias), sizes)
    return _attend(b, (q, k, v), sizes[2], ends)


def _packed_heads(b: Body) -> list[str]:
    """Inputs: q, k, v [tokens, width], or q alone [tokens, heads, 3, depth]; bias, token offsets, ends, added bias."""
    q, k, v, bias, _, ends, added = map(b.input, range(7))
    if added:
        raise ValueError("an added bias is not supported")
    heads, shape = b.required("num_heads"), b.extents(q)
    if k:
        widths = (shape[-1], b.extents(v)[-1])
        operands = [q, k, v]
    else:
        depth = shape[-1]
        widths = (None, None) if depth is None else (heads * depth, heads * depth)
        parts = [b("Gather", q, b.array(index, np.int64), axis=2) for index in range(3)]
        operands = [b("Reshape", part, b.integers(0, -1)) for part in parts]
    first, last = widths
    if first is None or last is None:
        raise ValueError("the widths of the operands are unknown")
    if bias:
        pieces = b.split(bias, [first, first, last])
        operands = [b("Add", name, piece) for name, piece in zip(operands, pieces, strict=True)]
    q, k, v = operands
    return _attend(b, (q, k, v), last, ends)


RULES: Mapping[str, Rule] = {"PackedAttention": _packed, "PackedMultiHeadAttention": _packed_heads}
