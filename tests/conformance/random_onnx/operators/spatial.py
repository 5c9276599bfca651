"""Convolutions and pooling, in one to three dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.conformance.random_onnx.growth import Growth, RejectedError
from tests.conformance.random_onnx.registry import writes


def data(g: Growth, types: list[str], channels: int, rank: int, least: int = 1) -> Any:
    """Return a batch of pictures with so many channels."""
    same = [v for v in g.values if v.dtype in types and v.rank == rank + 2]
    fits = [v for v in same if v.shape[1] == channels and 0 not in v.shape]
    if fits and g.chance(0.7):
        return g.choose(fits)
    most = {1: 12, 2: 8, 3: 5}[rank]
    return g.value(types, shape=(g.integer(1, 2), channels, *(g.integer(least, most) for _ in range(rank))))


def windows(g: Growth, rank: int, pads: bool = True, dilations: bool = True, kernel: int = 3) -> dict[str, Any]:
    """Return the attributes of a window, many of them left to their defaults."""
    shape = [g.integer(1, kernel) for _ in range(rank)]
    found: dict[str, Any] = {"kernel_shape": shape}
    if g.chance(0.6):
        found["strides"] = [g.integer(1, 3) for _ in range(rank)]
    if dilations and g.chance(0.3):
        found["dilations"] = [g.integer(1, 2) for _ in range(rank)]
    if pads and g.chance(0.6):
        found["pads"] = [g.integer(0, max(0, extent - 1)) for extent in shape * 2]
    elif pads and g.chance(0.3):
        found["auto_pad"] = g.choose(("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
    return found


def kernel_of(g: Growth, attributes: dict[str, Any]) -> list[int]:
    """Return the kernel's extents; at times they are left to the weight."""
    shape: list[int] = attributes["kernel_shape"]
    if g.chance(0.2):
        del attributes["kernel_shape"]
    return shape


@writes("Conv", "ConvInteger")
def conv(g: Growth, op: str) -> None:
    """Grouped, dilated, strided, padded, with a bias or without."""
    rank = g.choose((1, 2, 2, 2, 3)) if op == "Conv" else 2
    group, each, outputs = g.choose((1, 1, 1, 2, 3)), g.choose((1, 1, 2, 4)), g.choose((1, 2, 3, 8))
    x = data(g, g.types(op), group * each, rank)
    attributes = windows(g, rank)
    extents = kernel_of(g, attributes)
    shape = (group * outputs, each, *extents)
    w = g.value(g.types(op, 1) if op == "ConvInteger" else [x.dtype], shape=shape, reuse=0.3)
    group_given = g.choose((None, 1)) if group == 1 else group
    if op == "ConvInteger":
        points = [g.scalar(g.integer(0, 5), v.dtype) if g.chance(0.5) else None for v in (x, w)]
        g.node(op, [x, w, *points], group=group_given, **attributes)
        return
    bias = g.value([x.dtype], shape=(group * outputs,)) if g.chance(0.6) else None
    g.node(op, [x, w, bias], group=group_given, **attributes)


@writes("ConvTranspose")
def conv_transpose(g: Growth, op: str) -> None:
    """With more at the end, or the shape of the result given."""
    rank = g.choose((1, 2, 2, 3))
    group, each, outputs = g.choose((1, 1, 2, 3)), g.choose((1, 2)), g.choose((1, 2, 3))
    x = data(g, g.types(op), group * each, rank)
    attributes = windows(g, rank)
    extents = kernel_of(g, attributes)
    strides = attributes.get("strides", [1] * rank)
    dilations = attributes.get("dilations", [1] * rank)
    if g.chance(0.4) and "SAME" not in attributes.get("auto_pad", ""):
        least = [max(a, b) for a, b in zip(strides, dilations, strict=True)]
        attributes["output_padding"] = [g.integer(0, most - 1) for most in least]
    elif g.chance(0.25) and attributes.get("auto_pad") != "VALID":
        attributes.pop("pads", None)
        most = [
            s * (i - 1) + (k - 1) * d + 1 for s, i, k, d in zip(strides, x.shape[2:], extents, dilations, strict=True)
        ]
        attributes["output_shape"] = [max(1, m - g.integer(0, 2)) for m in most]
    w = g.value([x.dtype], shape=(group * each, outputs, *extents), reuse=0.3)
    bias = g.value([x.dtype], shape=(group * outputs,)) if g.chance(0.5) else None
    g.node(op, [x, w, bias], group=g.choose((None, 1)) if group == 1 else group, **attributes)


@writes("MaxPool", "AveragePool", "LpPool")
def pool(g: Growth, op: str) -> None:
    """With what each version allows: ceil_mode, dilations, indices, padding that counts."""
    rank = g.choose((1, 2, 2, 2, 3))
    version = g.version(op)
    x = data(g, g.types(op), g.integer(1, 4), rank)
    first = {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[op]
    attributes = windows(g, rank, dilations=version >= first)
    if version >= (18 if op == "LpPool" else 10):
        attributes["ceil_mode"] = g.choose((None, 0, 1))
    if op == "AveragePool":
        attributes["count_include_pad"] = g.choose((None, 0, 1))
    if op == "LpPool":
        attributes["p"] = g.choose((None, 1, 2, 3))
    if any(p >= k for p, k in zip(attributes.get("pads", ()), attributes["kernel_shape"] * 2, strict=False)):
        raise RejectedError(op)
    reach = [
        (k - 1) * d + 1
        for k, d in zip(attributes["kernel_shape"], attributes.get("dilations", [1] * rank), strict=True)
    ]
    if any(r > extent for r, extent in zip(reach, x.shape[2:], strict=True)):
        raise RejectedError("onnxruntime has windows that do not fit")
    if "SAME" in attributes.get("auto_pad", "") and "dilations" in attributes:
        raise RejectedError("onnxruntime's shape is another")
    outputs = [True]
    if op == "MaxPool" and version >= 8 and g.chance(0.3):
        if not x.exact:
            raise RejectedError("a step after rounding")
        outputs, attributes["storage_order"] = [True, True], g.choose((None, 0, 1))
    g.node(op, [x], outputs, **attributes)


@writes("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(g: Growth, op: str) -> None:
    """Over all but the batch and the channels."""
    x = data(g, g.types(op), g.integer(1, 4), g.integer(1, 3))
    g.node(op, [x], p=g.choose((None, 1, 2, 3)) if op == "GlobalLpPool" else None)


@writes("MaxUnpool")
def max_unpool(g: Growth, op: str) -> None:
    """After a pooling that gives indices."""
    x = g.value(["float32"], shape=(1, g.integer(1, 3), 4, 6), exact=True)
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    pooled = g.node("MaxPool", [x], [True, True], steps=True, **attributes)
    if g.version("MaxPool") < 8:
        raise RejectedError(op)
    size = g.parameter(*x.shape) if g.chance(0.3) else None
    g.node(op, [*pooled, size], **attributes)


@writes("DeformConv")
def deform_conv(g: Growth, op: str) -> None:
    """Offsets of each place."""
    group, each, outputs = g.choose((1, 2)), g.integer(1, 2), g.integer(1, 2)
    x = data(g, ["float32", "float64"], group * each, 2, least=3)
    kernel = [g.integer(1, 2) for _ in range(2)]
    extents = [i - k + 1 for i, k in zip(x.shape[2:], kernel, strict=True)]
    if min(extents) < 1:
        raise RejectedError(op)
    offset = g.value([x.dtype], shape=(x.shape[0], 2 * int(np.prod(kernel)), *extents))
    w = g.value([x.dtype], shape=(group * outputs, each, *kernel))
    bias = g.value([x.dtype], shape=(group * outputs,)) if g.chance(0.5) else None
    mask = g.value([x.dtype], shape=(x.shape[0], int(np.prod(kernel)), *extents)) if g.chance(0.5) else None
    g.node(op, [x, w, offset, bias, mask], group=group, kernel_shape=g.choose((None, kernel)))
