"""Rules of attention over caches of keys and values: GroupQueryAttention and DecoderMaskedMultiHeadAttention.

Present keys and values are new tensors. They have room for the past and the new rows, or as much as the past has where
the model says so: then the past is a buffer with room, and the lengths say how much of it counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from packager.frontends.onnx.graph.contrib.body import Body, Rule

INT64 = TensorProto.INT64


def heads_of(b: Body, x: str, depth: int) -> str:
    """Return [batch, rows, width] as [batch, heads, rows, depth]."""
    return b("Transpose", b("Reshape", x, b.integers(0, 0, -1, depth)), perm=[0, 2, 1, 3])


def joined(b: Body, x: str, width: int) -> str:
    """Return [batch, heads, rows, depth] as [batch, rows, width]."""
    result = b("Reshape", b("Transpose", x, perm=[0, 2, 1, 3]), b.integers(0, 0, -1))
    b.declare(result, b.type_of(b.input(0)), (None, None, width))
    return result


def extended(b: Body, past: str, new: str, starts: str, *, shared: bool) -> str:
    """Return the past [batch, heads, rows, depth] with the new rows from ``starts`` [batch] on, then zeros."""
    zero = helper.make_tensor("zero", b.type_of(past), [1], [0])
    room = past if shared else b("Concat", past, b("ConstantOfShape", b("Shape", new), value=zero), axis=2)
    return b("TensorScatter", room, new, starts, axis=2)


def _size(b: Body, name: str, axis: int) -> str:
    """Return an extent as a scalar."""
    return b("Gather", b("Shape", name), b.array(axis, np.int64))


def _group_query(b: Body) -> list[str]:
    """Inputs: q, k, v [batch, rows, width] (or side by side in q), past key and value [batch, heads, rows, depth],
    lengths less 1 [batch], total length, cosines and sines [positions, depth / 2], positions, added bias, a sink per
    head."""
    query, key, value, past_key, past_value, lengths, _, cosines, sines, positions, bias, sink = map(b.input, range(12))
    heads, groups = b.required("num_heads"), b.required("kv_num_heads")
    for name in ("kv_cache_bit_width", "qk_output"):
        if b.flag(name):
            raise ValueError(f"its attribute {name} is not supported")
    if any(b.input(index) for index in (12, 13)):
        raise ValueError("quantized caches are not supported")
    width = b.extents(query)[-1]
    if width is None:
        raise ValueError("the width of the queries is unknown")
    depth = width // heads if key else width // (heads + 2 * groups)
    if not key:
        query, key, value = b.split(query, [heads * depth, groups * depth, groups * depth])
    q, k, v = (heads_of(b, name, depth) for name in (query, key, value))
    has_past = bool(past_key) and b.extents(past_key)[2] != 0
    totals = b("Add", b("Cast", b("Reshape", lengths, b.integers(-1)), to=INT64), b.array(1, np.int64))
    starts = b("Sub", totals, _size(b, q, 2)) if has_past else ""
    if b.flag("do_rotary"):
        if not positions:
            rows = b("Range", b.array(0, np.int64), _size(b, q, 2), b.array(1, np.int64))
            positions = b.unsqueezed(rows, 0)
            first = b.unsqueezed(starts, 1) if has_past else b.unsqueezed(b("Sub", totals, totals), 1)
            positions = b("Add", first, positions)
        q, k = (_rotated(b, x, cosines, sines, positions) for x in (q, k))
    if has_past:
        shared = b.dims(b.output(1))[2:3] == b.dims(past_key)[2:3] != (None,)
        k, v = (extended(b, p, new, starts, shared=shared) for p, new in ((past_key, k), (past_value, v)))
    if sink or b.flag("smooth_softmax"):
        result = _attend_with_sink(b, (q, k, v), starts, bias, sink, depth)
    else:
        result = _attend(b, (q, k, v), totals if has_past else "", bias)
    return [joined(b, result, heads * depth), k, v]


def _rotated(b: Body, x: str, cosines: str, sines: str, positions: str) -> str:
    half = b.extents(cosines)[1]
    if half is None:
        raise ValueError("the width of the cosines is unknown")
    given = b("Cast", positions, to=INT64)
    attributes = {"interleaved": b.flag("rotary_interleaved"), "rotary_embedding_dim": 2 * half}
    return b("RotaryEmbedding", x, cosines, sines, given, **attributes)


def _attend(b: Body, operands: tuple[str, str, str], lengths: str, bias: str) -> str:
    """Each query sees the keys up to its own, or the window of them that ends there."""
    attributes: dict[str, Any] = {"is_causal": 1, "softcap": b.flag("softcap", 0.0)}
    if scale := b.flag("scale", 0.0):
        attributes["scale"] = scale
    if (window := b.flag("local_window_size", -1)) >= 0:
        attributes["left_window_size"] = window - 1
    given = [*operands, bias, "", "", lengths]
    while not given[-1]:
        given.pop()
    return b("Attention", *given, **attributes)


def _attend_with_sink(b: Body, operands: tuple[str, str, str], starts: str, bias: str, sink: str, depth: int) -> str:
    """Attention whose weights add up to less than 1: the sums have one more term, exp(sink) of the head or exp(0)."""
    q, k, v = operands
    like = b.input(0)
    heads, groups = b.required("num_heads"), b.required("kv_num_heads")
    if heads != groups:
        k, v = (_repeated(b, x, heads // groups, depth) for x in (k, v))
    scores = b("MatMul", q, b("Transpose", k, perm=[0, 1, 3, 2]))
    scores = b("Mul", scores, b.number(b.flag("scale", 0.0) or depth**-0.5, like))
    if cap := b.flag("softcap", 0.0):
        limit = b.number(cap, like)
        scores = b("Mul", b("Tanh", b("Div", scores, limit)), limit)
    zero, one = b.array(0, np.int64), b.array(1, np.int64)
    columns = b("Range", zero, _size(b, k, 2), one)
    rows = b("Reshape", b("Range", zero, _size(b, q, 2), one), b.integers(1, 1, -1, 1))
    rows = b("Add", rows, b("Reshape", starts, b.integers(-1, 1, 1, 1))) if starts else rows
    seen = b("LessOrEqual", columns, rows)
    if (window := b.flag("local_window_size", -1)) >= 0:
        seen = b("And", seen, b("Greater", columns, b("Sub", rows, b.array(window, np.int64))))
    scores = b("Add", scores, bias) if bias else scores
    scores = b("Where", seen, scores, b.number(-np.inf, like))
    sink = sink or b.array(np.zeros(heads), helper.tensor_dtype_to_np_dtype(b.type_of(like)))
    of_heads = b("Reshape", sink, b.integers(1, heads, 1, 1))
    batch, rows = (b.unsqueezed(_size(b, q, axis), 0) for axis in (0, 2))
    column = b("Expand", of_heads, b("Concat", batch, b.integers(heads), rows, b.integers(1), axis=0))
    weights = b("Softmax", b("Concat", scores, column, axis=-1), axis=-1)
    weights = b("Slice", weights, b.integers(0), b.integers(-1), b.integers(-1))
    return b("MatMul", weights, v)


def _repeated(b: Body, x: str, times: int, depth: int) -> str:
    """Repeat each head of [batch, heads, rows, depth]."""
    wide = b("Concat", *[b.unsqueezed(x, 2)] * times, axis=2)
    rows = b.unsqueezed(_size(b, x, 2), 0)
    shape = b("Concat", b.integers(0, b.required("num_heads")), rows, b.integers(depth), axis=0)
    return b("Reshape", wide, shape)


def _decoder_masked(b: Body) -> list[str]:
    """Inputs: q [batch, 1, width], k and v likewise or with heads apart (of an encoder), mask [batch, keys], added
    bias, past key and value, past length, beam width, indirection, bias of q, k, v side by side."""
    q, k, v, mask, added, past_key, past_value, past, beams, indirection, bias = map(b.input, range(11))
    if b.flag("output_qk") or beams or indirection:
        raise ValueError("beams and scores as outputs are not supported")
    heads, width = b.required("num_heads"), b.extents(q)[-1]
    if width is None:
        raise ValueError("the width of the queries is unknown")
    depth = width // heads
    if not k:
        raise ValueError("packed queries, keys and values are not supported")
    apart = len(b.extents(k)) == 4
    if bias:
        parts = b.split(bias, [width] * 3)
        q = b("Add", q, parts[0])
        k, v = (k, v) if apart else (b("Add", x, part) for x, part in zip((k, v), parts[1:], strict=True))
    q = heads_of(b, q, depth)
    k, v = (k, v) if apart else (heads_of(b, x, depth) for x in (k, v))
    shared = bool(b.flag("past_present_share_buffer")) and not apart
    lengths = ""
    if past_key and not apart:
        batch = b("Slice", b("Shape", q), b.integers(0), b.integers(1))
        start = b("Cast", past, to=INT64) if shared else _size(b, past_key, 2)
        starts = b("Expand", b("Reshape", start, b.integers(1)), batch)
        k, v = (
            extended(b, p, new, starts, shared=True) if shared else b("Concat", p, new, axis=2)
            for p, new in ((past_key, k), (past_value, v))
        )
        lengths = b("Add", starts, b.array(1, np.int64)) if shared else ""
    total = _masked(b, mask, added)
    attributes = {"scale": scale} if (scale := b.flag("scale", 0.0)) else {}
    given = [q, k, v, total, "", "", lengths]
    while not given[-1]:
        given.pop()
    result = b("Attention", *given, **attributes)
    present = (k, v) if not apart else ("", "")
    return [joined(b, result, heads * depth), *present]


def _masked(b: Body, mask: str, added: str) -> str:
    """Return the bias of the scores: a mask is 1 where a key counts."""
    if not mask:
        return added
    like = b.input(0)
    hidden = b("Sub", b.number(1, like), b("Cast", mask, to=b.type_of(like)))
    bias = b("Mul", hidden, b.number(b.flag("mask_filter_value", -10000.0), like))
    bias = b.unsqueezed(b.unsqueezed(bias, 1), 1)
    return b("Add", bias, added) if added else bias


RULES: Mapping[str, Rule] = {
    "GroupQueryAttention": _group_query,
    "DecoderMaskedMultiHeadAttention": _decoder_masked,
}
