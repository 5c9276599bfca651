"""Rules of attention: Attention, MultiHeadAttention and QAttention become the standard's, with an additive bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from packager.frontends.onnx.graph.contrib.body import Body, Rule


def _mask_bias(b: Body, mask: str, like: str, keys: Sequence[tuple[str, int]]) -> str:
    """Return 0 where a mask [batch, keys] or [batch, queries, keys] is not 0, else the attribute mask_filter_value.

    A mask [batch] has the numbers of keys that count; ``keys`` are values and axes whose extents add up to the keys.
    """
    rank, kind = len(b.extents(mask)), b.type_of(like)
    if rank == 1:
        batch, given = b.extents(b.input(0))[0], b.extents(mask)[0]
        if None not in (batch, given) and batch != given:
            raise ValueError("masks with first keys beside the last ones are not supported")
        parts = [b("Gather", b("Shape", name), b.array(axis, np.int64)) for name, axis in keys]
        count = parts[0] if len(parts) == 1 else b("Add", *parts)
        places = b("Range", b.array(0, np.int64), count, b.array(1, np.int64))
        ends = b.unsqueezed(b("Cast", mask, to=TensorProto.INT64), 1)
        mask, rank = b("Less", b.unsqueezed(places, 0), ends), 2
    if rank not in (2, 3):
        raise ValueError("only masks of [batch], [batch, keys] and [batch, queries, keys] are supported")
    hidden = b("Sub", b.number(1, like), b("Cast", mask, to=kind))
    bias = b("Mul", hidden, b.number(b.flag("mask_filter_value", -10000.0), like))
    bias = b.unsqueezed(bias, 1)
    return b.unsqueezed(bias, 1) if rank == 2 else bias


def _bias(b: Body, mask: str, added: str, like: str, keys: Sequence[tuple[str, int]]) -> str:
    parts = [*([_mask_bias(b, mask, like, keys)] if mask else []), *([added] if added else [])]
    return b("Add", *parts) if len(parts) == 2 else parts[0] if parts else ""


def _attend(b: Body, q: str, k: str, v: str, bias: str, past: tuple[str, str], **attributes: Any) -> list[str]:
    """Return the result, and the present key and value."""
    if scale := b.flag("scale", 0.0):
        attributes["scale"] = scale
    if b.flag("unidirectional"):
        attributes["is_causal"] = 1
    operands = [q, k, v, bias, *past]
    while operands and not operands[-1]:
        operands.pop()
    return b.several("Attention", operands, 3, **attributes)


def _attention(b: Body) -> list[str]:
    """Inputs: x [batch, rows, width], weights of q, k and v side by side, their bias, mask, past, added bias."""
    x, weights, bias, mask, past, added = (b.input(index) for index in range(6))
    product = b("MatMul", x, weights)
    return _attended(b, b("Add", product, bias) if bias else product, (mask, past, added), like=x)


def _quantized_attention(b: Body) -> list[str]:
    """Inputs: x and weights in 8 bits, bias, the scales of both, mask, the zero points of both, past."""
    x, weights, bias, scale, weight_scale, mask, zero, weight_zero, past = (b.input(index) for index in range(9))
    per_column = b.extents(weight_scale) not in ((), (1,))
    wide = b("DequantizeLinear", *filter(None, (x, scale, zero)))
    attributes = {"axis": 1} if per_column else {}
    product = b(
        "MatMul", wide, b("DequantizeLinear", *filter(None, (weights, weight_scale, weight_zero)), **attributes)
    )
    return _attended(b, b("Add", product, bias), (mask, past, ""), like=bias)


def _attended(b: Body, product: str, more: tuple[str, str, str], like: str) -> list[str]:
    """Attend by queries, keys and values side by side; ``more`` are mask, past and added bias."""
    weights, (mask, past, added) = b.input(1), more
    heads = b.required("num_heads")
    if b.flag("do_rotary") or b.flag("past_present_share_buffer"):
        raise ValueError("rotary embeddings inside, and shared buffers, are not supported")
    whole = b.extents(weights)[1]
    if whole is None:
        raise ValueError("the extents of the weights are unknown")
    sizes = list(b.flag("qkv_hidden_sizes", None) or [whole // 3] * 3)
    q, k, v = b.split(product, sizes)
    pasts = ("", "")
    if past:
        key, value = (b("Gather", past, b.array(index, np.int64), axis=0) for index in range(2))
        pasts = (key, value)
    total = _bias(b, mask, added, like, [(b.input(0), 1), *([(past, 3)] if past else [])])
    result, *present = _attend(b, q, k, v, total, pasts, q_num_heads=heads, kv_num_heads=heads)
    stacked = b("Concat", *(b.unsqueezed(part, 0) for part in present), axis=0) if b.wants(1) else ""
    return [result, stacked]


def _multi_head(b: Body) -> list[str]:
    """Inputs: q, k, v [batch, rows, width] (k and v may have heads apart), bias, mask, added bias, past key, value.

    Packed ones are [batch, rows, heads, 3, depth] in place of q, and [batch, rows, heads, 2, depth] in place of k.
    """
    q, k, v, bias, mask, added, past_key, past_value = (b.input(index) for index in range(8))
    heads = b.required("num_heads")
    if not k:
        q, k, v = _unpacked(b, q, 3)
    elif not v:
        k, v = _unpacked(b, k, 2)
    unpacked = b.input(0) == q and bool(b.input(2))
    ranks = [len(b.extents(name)) if name in b.node.input else 3 for name in (q, k, v)]
    if ranks[0] != 3:
        raise ValueError("queries with heads apart are not supported")
    if not unpacked and bias:
        raise ValueError("a bias of packed operands is not supported")
    widths = [b.extents(name)[-1] if unpacked else None for name in (q, k, v)]
    if bias:
        if None in widths or ranks != [3, 3, 3]:
            raise ValueError("a bias requires operands of [batch, rows, width] with known widths")
        parts = b.split(bias, [width or 0 for width in widths])
        q, k, v = (b("Add", name, part) for name, part in zip((q, k, v), parts, strict=True))
    elif ranks[1] == 4:  # [batch, heads, rows, depth]: the queries must be so too
        split = b("Reshape", q, b.integers(0, 0, heads, -1))
        q = b("Transpose", split, perm=[0, 2, 1, 3])
        total = _bias(b, mask, added, b.input(0), [(k, 2)])
        result, *present = _attend(b, q, k, v, total, (past_key, past_value))
        result = b("Transpose", result, perm=[0, 2, 1, 3])
        return [b("Reshape", result, b.integers(0, 0, -1)), *present]
    total = _bias(b, mask, added, b.input(0), [(k, 1), *([(past_key, 2)] if past_key else [])])
    return _attend(b, q, k, v, total, (past_key, past_value), q_num_heads=heads, kv_num_heads=heads)


def _unpacked(b: Body, x: str, count: int) -> list[str]:
    """Return the parts along axis 3, as [batch, rows, width]."""
    if len(b.extents(x)) != 5:
        raise ValueError("operands that are packed have five axes")
    parts = [b("Gather", x, b.array(index, np.int64), axis=3) for index in range(count)]
    return [b("Reshape", part, b.integers(0, 0, -1)) for part in parts]


def _rotary(b: Body) -> list[str]:
    """Inputs: x, position ids, cosines and sines [positions, depth / 2]."""
    x, positions, cosines, sines = (b.input(index) for index in range(4))
    if len(b.extents(positions)) != 2:
        raise ValueError("position ids of one offset are not supported")
    attributes = {"interleaved": b.flag("interleaved"), "rotary_embedding_dim": b.flag("rotary_embedding_dim")}
    if b.flag("num_heads"):
        attributes["num_heads"] = b.flag("num_heads")
    if len(b.extents(x)) == 3 and "num_heads" not in attributes:
        depth = b.extents(cosines)[1]
        width = b.extents(x)[2]
        if depth is None or width is None:
            raise ValueError("the number of heads is unknown")
        attributes["num_heads"] = width // (2 * depth)
    return [b("RotaryEmbedding", x, cosines, sines, b("Cast", positions, to=TensorProto.INT64), **attributes)]


RULES: Mapping[str, Rule] = {
    "Attention": _attention,
    "QAttention": _quantized_attention,
    "MultiHeadAttention": _multi_head,
    "RotaryEmbedding": _rotary,
}
