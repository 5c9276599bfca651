"""Rules of normalizations with a residual and a bias; RMS normalization under its name before opset 23."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import TensorProto, helper

from packager.frontends.onnx.graph.contrib.body import Body, Rule


def rms(b: Body, x: str, scale: str, epsilon: float) -> str:
    """x / sqrt(mean(x^2) + epsilon) scale, over the last axis."""
    kind = b.type_of(b.input(0))
    wide = x if kind == TensorProto.FLOAT else b("Cast", x, to=TensorProto.FLOAT)
    squares = b("Mul", wide, wide)
    mean = (
        b("ReduceMean", squares, b.integers(-1), keepdims=1)
        if b.opset >= 18
        else b("ReduceMean", squares, axes=[-1], keepdims=1)
    )
    root = b("Sqrt", b("Add", mean, b.array(epsilon, np.float32)))
    result = b("Div", wide, root)
    result = result if kind == TensorProto.FLOAT else b("Cast", result, to=kind)
    return b("Mul", result, scale)


def _layer_norm(b: Body, x: str, scale: str, bias: str, epsilon: float) -> str:
    return b("LayerNormalization", *filter(None, (x, scale, bias)), axis=-1, epsilon=epsilon)


def _simplified(b: Body) -> list[str]:
    rank = len(b.extents(b.input(0)))
    if b.flag("axis", -1) % rank != rank - 1:
        raise ValueError("a normalization over several axes is not supported")
    if b.wants(1):
        raise ValueError("its second output is not supported")
    return [rms(b, b.input(0), b.input(1), b.flag("epsilon", 1e-5))]


def _skip(b: Body) -> list[str]:
    """Normalize input + skip [+ bias]; output 3 is that sum."""
    simplified = b.node.op_type == "SkipSimplifiedLayerNormalization"
    if b.wants(1) or b.wants(2):
        raise ValueError("its outputs mean and inverse deviation are not supported")
    bias = b.input(3 if simplified else 4)
    total = b("Add", b.input(0), b.input(1))
    total = b("Add", total, bias) if bias else total
    epsilon = b.flag("epsilon", 1e-12 if not simplified else 1e-6)
    if simplified:
        return [rms(b, total, b.input(2), epsilon), "", "", total]
    return [_layer_norm(b, total, b.input(2), b.input(3), epsilon), "", "", total]


def _embed(b: Body) -> list[str]:
    """Normalize the sum of word, position and segment embeddings; output 1 is the number of tokens, 2 the sum."""
    ids, segments, words, places, segment = (b.input(index) for index in range(5))
    scale, bias, mask, positions = (b.input(index) for index in range(5, 9))
    if positions:
        place = b("Gather", places, positions)
    else:
        length = b("Gather", b("Shape", ids), b.array(1, np.int64))
        numbers = b("Range", b.array(0, np.int64), length, b.array(1, np.int64))
        place = b("Gather", places, numbers)
    total = b("Add", b("Gather", words, ids), place)
    total = b("Add", total, b("Gather", segment, segments)) if segments else total
    result = b("LayerNormalization", total, scale, bias, axis=-1, epsilon=b.flag("epsilon", 1e-12))
    count = ""
    if b.wants(1):
        if mask:
            counted = b("Cast", mask, to=TensorProto.INT32)
            count = (
                b("ReduceSum", counted, b.integers(1), keepdims=0)
                if b.opset >= 13
                else b("ReduceSum", counted, axes=[1], keepdims=0)
            )
        else:
            batch = b("Slice", b("Shape", ids), b.integers(0), b.integers(1))
            zero = helper.make_tensor("zero", TensorProto.INT32, [1], [0])
            count = b("ConstantOfShape", batch, value=zero)
    return [result, count, total]


def _group_norm(b: Body) -> list[str]:
    """GroupNorm of [N, H, W, C] (``channels_last``) or [N, C, H, W], with SiLU if ``activation`` is 1."""
    x, scale, bias = (b.input(index) for index in range(3))
    last, rank = b.flag("channels_last", 1), len(b.extents(b.input(0)))
    channels = b.extents(scale)[0]
    if channels is None:
        raise ValueError("the number of channels is unknown")
    inner = b("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)]) if last else x
    groups = b.flag("groups")
    split = b("Reshape", inner, b.integers(0, groups, -1))
    unit = [b.array(np.full(groups, value), np.float32) for value in (1, 0)]
    kind = b.type_of(x)
    wide = split if kind == TensorProto.FLOAT else b("Cast", split, to=TensorProto.FLOAT)
    normal = b("InstanceNormalization", wide, *unit, epsilon=b.flag("epsilon", 1e-5))
    normal = b("Reshape", normal, b("Shape", inner))
    wanted = [channels, *[1] * (rank - 2)]
    factors = [b("Reshape", b("Cast", part, to=TensorProto.FLOAT), b.integers(*wanted)) for part in (scale, bias)]
    result = b("Add", b("Mul", normal, factors[0]), factors[1])
    result = b("Mul", result, b("Sigmoid", result)) if b.flag("activation") == 1 else result
    result = result if kind == TensorProto.FLOAT else b("Cast", result, to=kind)
    return [b("Transpose", result, perm=[0, *range(2, rank), 1]) if last else result]


RULES: Mapping[str, Rule] = {
    "SimplifiedLayerNormalization": _simplified,
    "SkipLayerNormalization": _skip,
    "SkipSimplifiedLayerNormalization": _skip,
    "EmbedLayerNormalization": _embed,
    "GroupNorm": _group_norm,
}
