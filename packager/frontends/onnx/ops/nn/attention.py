"""Converters of attention and rotary embeddings, to the operators that packager's backends match.

ONNX operators Attention (versions 23 to 25) and RotaryEmbedding (version 23).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import get_type
from tvm.sym import Analyzer

from packager.frontends.onnx.ops.operands import Convert, Converter, constant, dtype_of, extents, optional, output_count
from packager.frontends.onnx.ops.shapes.arithmetic import as_tensor

# Values of ``qk_matmul_output_mode``: the content of output 3 of Attention.
RAW, CAPPED, BIASED, WEIGHTS = range(4)


@dataclass(frozen=True)
class _Bias:
    """The bias of the scores, [.., queries, keys], or None. ``may_be_empty``: a row may be fully masked."""

    value: Any
    may_be_empty: bool


def _attention(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """Attention-25: softmax(cap(scale q k^T) + bias) v; fully masked rows give zeros."""
    emit = builder.emit
    dtype, rank = dtype_of(inputs[0]), inputs[0].ty.ndim
    q = _heads(builder, inputs[0], attributes.get("q_num_heads"))
    k, v = (_heads(builder, data, attributes.get("kv_num_heads")) for data in inputs[1:3])
    past_key, past_value = optional(inputs, 4), optional(inputs, 5)
    if past_key is not None:
        k = emit(relax.op.concat([past_key, k], axis=2))
        v = emit(relax.op.concat([past_value, v], axis=2))
    present = (k, v)
    heads, depth = extents(q)[1], extents(q)[3]
    k, v = (_repeated(builder, data, heads) for data in (k, v))
    scale = attributes.get("scale") or 1 / math.sqrt(depth)
    if dtype in ("float16", "bfloat16"):  # scale before the matmul, so that scores do not overflow
        root = relax.const(math.sqrt(scale), dtype)
        q, k = emit(relax.op.multiply(q, root)), emit(relax.op.multiply(k, root))
    scores = emit(relax.op.matmul(q, emit(relax.op.permute_dims(k, [0, 1, 3, 2]))))
    if dtype not in ("float16", "bfloat16"):
        scores = emit(relax.op.multiply(scores, relax.const(scale, dtype)))
    asked = {RAW: scores}
    if cap := attributes.get("softcap", 0.0):
        capped = relax.op.tanh(emit(relax.op.divide(scores, relax.const(cap, dtype))))
        scores = emit(relax.op.multiply(emit(capped), relax.const(cap, dtype)))
    asked[CAPPED] = scores
    bias = _bias(builder, inputs, attributes, scores, None if past_key is None else extents(past_key)[2])
    if bias.value is not None:
        scores = emit(relax.op.add(scores, bias.value))
    asked[BIASED] = scores
    precision = get_type(attributes["softmax_precision"]) if "softmax_precision" in attributes else dtype
    if precision != dtype:
        scores = emit(relax.op.astype(scores, precision))
    weights = emit(relax.op.nn.softmax(scores, axis=-1))
    if precision != dtype:
        weights = emit(relax.op.astype(weights, dtype))
    result = emit(relax.op.matmul(weights, v))
    result = _result(builder, result, _empty_rows(builder, bias.value) if bias.may_be_empty else None, rank)
    count = output_count(attributes)
    if count <= 3:
        return relax.Tuple([result, *present][:count]) if count > 1 else result
    mode = int(attributes.get("qk_matmul_output_mode", RAW))
    if mode == WEIGHTS and bias.may_be_empty:
        weights = emit(relax.op.where(_empty_rows(builder, bias.value), relax.const(0, dtype), weights))
    asked[WEIGHTS] = weights
    return relax.Tuple([result, *present, asked[mode]])


def _result(builder: Any, result: Any, empty: Any, rank: int) -> Any:
    """Return the result in the rank of the operands, with zeros in ``empty`` rows."""
    emit, zero = builder.emit, relax.const(0, dtype_of(result))
    if rank == 3:
        batch, heads, queries, depth = extents(result)
        if empty is not None and extents(empty)[1] != 1:
            result, empty = emit(relax.op.where(empty, zero, result)), None
        result = emit(relax.op.permute_dims(result, [0, 2, 1, 3]))
        result = emit(relax.op.reshape(result, [batch, queries, heads * depth]))
        if empty is not None:
            empty = emit(relax.op.reshape(empty, [extents(empty)[0], extents(empty)[2], 1]))
    return result if empty is None else emit(relax.op.where(empty, zero, result))


def _heads(builder: Any, data: Any, heads: int | None) -> Any:
    """Return an operand as [batch, heads, rows, depth]."""
    if data.ty.ndim == 4:
        return data
    batch, rows, width = extents(data)
    if not heads:
        raise ValueError("operands of rank 3 need the attributes q_num_heads and kv_num_heads")
    data = builder.emit(relax.op.reshape(data, [batch, rows, heads, width // heads]))
    return builder.emit(relax.op.permute_dims(data, [0, 2, 1, 3]))


def _repeated(builder: Any, data: Any, heads: int) -> Any:
    """Repeat the heads of keys or values for grouped-query attention."""
    batch, own, rows, depth = extents(data)
    if own == heads:
        return data
    if heads % own:
        raise ValueError(f"{heads} query heads are not a multiple of {own} key heads")
    data = builder.emit(relax.op.expand_dims(data, axis=2))
    data = builder.emit(relax.op.broadcast_to(data, [batch, own, heads // own, rows, depth]))
    return builder.emit(relax.op.reshape(data, [batch, heads, rows, depth]))


def _bias(builder: Any, inputs: Sequence[Any], attributes: Mapping[str, Any], scores: Any, past: Any) -> _Bias:
    """Return the combined mask, causal mask, sliding window and padding."""
    emit = builder.emit
    dtype = dtype_of(scores)
    _, _, queries, keys = extents(scores)
    mask, lengths = optional(inputs, 3), optional(inputs, 6)
    left, right = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    causal = bool(attributes.get("is_causal", 0))
    allowed: list[Any] = []
    if causal or left >= 0 or right >= 0:
        if lengths is not None and past is None:
            rows = emit(relax.op.reshape(emit(relax.op.arange(0, queries, 1, "int64")), [1, 1, queries, 1]))
            start = emit(relax.op.subtract(_plain(builder, lengths), _number(builder, queries)))
            rows = emit(relax.op.add(rows, emit(relax.op.reshape(start, [-1, 1, 1, 1]))))
        else:
            start = past if isinstance(past, int) else 0
            rows = emit(relax.op.arange(start, start + queries, 1, "int64"))
            rows = emit(relax.op.reshape(rows, [queries, 1]))
            if past is not None and not isinstance(past, int):
                rows = emit(relax.op.add(rows, _number(builder, past)))
        columns = emit(relax.op.arange(0, keys, 1, "int64"))
        columns = emit(relax.op.reshape(columns, [1, keys]))
        if causal:
            allowed.append(emit(relax.op.less_equal(columns, rows)))
        if left >= 0:
            first = emit(relax.op.subtract(rows, relax.const(left, "int64")))
            allowed.append(emit(relax.op.greater_equal(columns, first)))
        if right >= 0:
            last = emit(relax.op.add(rows, relax.const(right, "int64")))
            allowed.append(emit(relax.op.less_equal(columns, last)))
    added = None
    if mask is not None:
        mask = _to_width(builder, mask, keys)
        if dtype_of(mask) == "bool":
            allowed.append(mask)
        else:
            added = mask if dtype_of(mask) == dtype else emit(relax.op.astype(mask, dtype))
    if lengths is not None:
        ends = emit(relax.op.reshape(_plain(builder, lengths), [-1, 1, 1, 1]))
        positions = emit(relax.op.reshape(emit(relax.op.arange(0, keys, 1, "int64")), [1, 1, 1, keys]))
        allowed.append(emit(relax.op.less(positions, ends)))
    # With a causal mask alone, every query sees the first key.
    may_be_empty = left >= 0 or right >= 0 or lengths is not None or _may_mask_all(inputs, attributes, causal)
    if not allowed:
        return _Bias(added, may_be_empty)
    keep = allowed[0]
    for other in allowed[1:]:
        keep = emit(relax.op.logical_and(keep, other))
    inside = relax.const(0, dtype) if added is None else added
    return _Bias(emit(relax.op.where(keep, inside, relax.const(-np.inf, dtype))), may_be_empty)


def _may_mask_all(inputs: Sequence[Any], attributes: Mapping[str, Any], causal: bool) -> bool:
    mask = optional(inputs, 3)
    if mask is None:
        return False
    known = constant(mask, attributes)
    if known is None or causal or known.ndim == 0:
        return True
    seen = known if known.dtype == np.bool_ else known.astype(np.float32) > -np.inf
    return not bool(seen.any(axis=-1).all())


def _to_width(builder: Any, mask: Any, keys: Any) -> Any:
    """Extend a mask to all keys: missing ones are masked."""
    *lead, width = extents(mask)
    missing = keys - width
    if width == 1 or (isinstance(missing, int) and missing <= 0) or Analyzer().can_prove_equal(missing, 0):
        return mask
    dtype = dtype_of(mask)
    outside = relax.const(False, "bool") if dtype == "bool" else relax.const(-np.inf, dtype)
    rest = builder.emit(relax.op.broadcast_to(outside, [*lead, missing]))
    return builder.emit(relax.op.concat([mask, rest], axis=-1))


def _empty_rows(builder: Any, bias: Any) -> Any:
    """Return the fully masked rows, broadcastable to [batch, heads, queries, 1]."""
    # As integers: TVM's float maximum starts at the lowest finite number.
    seen = builder.emit(relax.op.greater(bias, relax.const(-np.inf, dtype_of(bias))))
    most = builder.emit(relax.op.max(builder.emit(relax.op.astype(seen, "int8")), axis=-1, keepdims=True))
    empty = builder.emit(relax.op.equal(most, relax.const(0, "int8")))
    shape = extents(empty)
    return builder.emit(relax.op.reshape(empty, [1] * (4 - len(shape)) + shape))


def _plain(builder: Any, data: Any) -> Any:
    return data if dtype_of(data) == "int64" else builder.emit(relax.op.astype(data, "int64"))


def _number(builder: Any, extent: Any) -> Any:
    """Return an extent as a tensor of rank 0."""
    return relax.const(extent, "int64") if isinstance(extent, int) else as_tensor(builder, extent)


def _rotary_embedding(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """RotaryEmbedding-23: rotate pairs of the first ``rotary_embedding_dim`` elements of each head."""
    emit = builder.emit
    data, cosines, sines = inputs[:3]
    positions = optional(inputs, 3)
    shape = extents(data)
    rows_first = data.ty.ndim == 3
    if rows_first:
        heads = attributes.get("num_heads", 0)
        if not heads:
            raise ValueError("an input of rank 3 needs the attribute num_heads")
        data = emit(relax.op.reshape(data, [*shape[:2], heads, shape[2] // heads]))
    width = extents(data)[3]
    rotated = attributes.get("rotary_embedding_dim", 0) or width
    tables = []
    for table in (cosines, sines):
        taken = table if positions is None else emit(relax.op.take(table, positions, axis=0))
        tables.append(emit(relax.op.expand_dims(taken, axis=2 if rows_first else 1)))
    cosine, sine = tables
    pairs = attributes.get("interleaved", 0)
    bounds = [(0, rotated, 2), (1, rotated, 2)] if pairs else [(0, rotated // 2, 1), (rotated // 2, rotated, 1)]
    x, y = (emit(relax.op.strided_slice(data, [3], [begin], [end], [step])) for begin, end, step in bounds)
    real = relax.op.subtract(emit(relax.op.multiply(cosine, x)), emit(relax.op.multiply(sine, y)))
    imaginary = relax.op.add(emit(relax.op.multiply(sine, x)), emit(relax.op.multiply(cosine, y)))
    parts = [emit(real), emit(imaginary)]
    if pairs:
        joint = emit(relax.op.stack(parts, axis=4))
        parts = [emit(relax.op.reshape(joint, [*extents(data)[:3], rotated]))]
    if rotated != width:
        parts.append(emit(relax.op.strided_slice(data, [3], [rotated], [width])))
    result = emit(relax.op.concat(parts, axis=3)) if len(parts) > 1 else parts[0]
    return relax.op.reshape(result, shape) if rows_first else result


CONVERTERS: Mapping[str, Converter] = {"Attention": _attention, "RotaryEmbedding": _rotary_embedding}
