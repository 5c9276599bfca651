"""Operators that move, repeat or cut what is there."""

from __future__ import annotations

import numpy as np

from tests.conformance.random_onnx.growth import Growth, RejectedError, Value
from tests.conformance.random_onnx.registry import writes


@writes("Reshape")
def reshape(g: Growth, op: str) -> None:
    """Extents of 0 copy, unless ``allowzero`` says otherwise; one of -1 is what is left."""
    x = g.value(g.types(op))
    shape = [int(extent) for extent in g.rng.permutation(x.shape)]
    if len(shape) > 1 and g.chance(0.5):
        at = g.integer(0, len(shape) - 2)
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    if len(shape) < 6 and g.chance(0.4):
        shape.insert(g.integer(0, len(shape)), 1)
    allowzero = g.choose((None, 0, 1)) if g.version(op) >= 14 else None
    copies = [i for i, extent in enumerate(shape) if i < x.rank and extent == x.shape[i] and not allowzero]
    if copies and g.chance(0.3):
        shape[g.choose(copies)] = 0
    if shape and 0 not in shape and 0 not in x.shape and g.chance(0.4):
        shape[g.integer(0, len(shape) - 1)] = -1
    g.node(op, [x, g.parameter(*shape)], allowzero=allowzero)


@writes("Flatten")
def flatten(g: Growth, op: str) -> None:
    """Any axis, one behind the last too."""
    x = g.value(g.types(op))
    axis = g.integer(0, x.rank)
    if g.version(op) >= 11 and x.rank and g.chance(0.3):
        axis = -g.integer(1, x.rank)
    g.node(op, [x], axis=g.choose((None, axis)) if x.rank else axis)


@writes("Squeeze", "Unsqueeze")
def squeeze(g: Growth, op: str) -> None:
    """Axes by an attribute before version 13, by an input after."""
    x = g.value(g.types(op), rank=(0, 5 if op == "Unsqueeze" else 6))
    if op == "Squeeze":
        axes = [i for i in range(x.rank) if x.shape[i] == 1 and g.chance(0.7)]
        rank = x.rank
    else:
        rank = x.rank + g.integer(1, min(2, 6 - x.rank))
        axes = [int(i) for i in g.rng.permutation(rank)[: rank - x.rank]]
    if g.opset >= 11:
        axes = [i - rank if g.chance(0.3) else i for i in axes]
    if op == "Squeeze" and (not axes or g.chance(0.2)):
        g.node(op, [x])
    elif g.version(op) < 13:
        g.node(op, [x], axes=axes)
    else:
        g.node(op, [x, g.parameter(*axes)])


@writes("Transpose")
def transpose(g: Growth, op: str) -> None:
    """Reversed without a permutation."""
    x = g.value(g.types(op))
    order = [int(i) for i in g.rng.permutation(x.rank)]
    g.node(op, [x], perm=order if x.rank and g.chance(0.8) else None)


@writes("Expand")
def expand(g: Growth, op: str) -> None:
    """To more axes and longer ones; extents of 1 in the shape keep the data's."""
    x = g.value(g.types(op))
    shape = [g.integer(1, 4) if extent == 1 and g.chance(0.6) else extent for extent in x.shape]
    shape = [1 if g.chance(0.2) else extent for extent in shape]
    if x.rank < 6 and g.chance(0.3):
        shape.insert(0, g.integer(1, 3))
    elif shape and g.chance(0.2):
        del shape[0]
    g.node(op, [x, g.parameter(*shape)])


@writes("Tile")
def tile(g: Growth, op: str) -> None:
    """No repeats at times."""
    x = g.value(g.types(op))
    g.node(op, [x, g.parameter(*(g.choose((1, 1, 2, 3, 0 if g.chance(0.1) else 1)) for _ in x.shape))])


@writes("Concat")
def concat(g: Growth, op: str) -> None:
    """One to four tensors, some twice."""
    x = g.value(g.types(op), rank=(1, 6))
    axis = g.axis(x.rank, g.version(op) >= 11)
    parts = [x]
    for _ in range(g.integer(0, 3)):
        shape = list(x.shape)
        shape[axis] = g.integer(0 if g.chance(0.1) else 1, 4)
        parts.append(x if g.chance(0.3) else g.value([x.dtype], shape=tuple(shape)))
    g.node(op, parts, axis=axis)


@writes("Split")
def split(g: Growth, op: str) -> None:
    """Equal parts, parts of given sizes, and from version 18 on a number of parts whose last is smaller."""
    x = g.value(g.types(op), rank=(1, 6), where=lambda a: a.ndim > 0 and max(a.shape) > 0)
    axis = g.axis(x.rank, g.version(op) >= 11)
    extent, version = x.shape[axis], g.version(op)
    parts = g.integer(1, 3)
    cuts = sorted(g.integer(0, extent) for _ in range(parts - 1))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, extent], strict=True)]
    keep = [True] * parts if g.chance(0.8) else [True, *(g.chance(0.5) for _ in range(parts - 1))]
    chosen = g.choose((None, axis)) if axis in (0, -x.rank) else axis
    if g.chance(0.5):
        if version < 13:
            g.node(op, [x], keep, axis=chosen, split=sizes)
        else:
            g.node(op, [x, g.parameter(*sizes)], keep, axis=chosen)
    elif version >= 18:
        g.node(op, [x], keep, axis=chosen, num_outputs=parts)
    elif extent % parts == 0:
        g.node(op, [x], keep, axis=chosen)


@writes("Slice")
def cut(g: Growth, op: str) -> None:
    """Any starts and ends, beyond the axis too, with steps from version 10 on."""
    x = g.value(g.types(op), rank=(1, 6))
    axes = [int(i) for i in g.rng.permutation(x.rank)[: g.integer(1, x.rank)]]
    starts, ends, steps = [], [], []
    far = 2**31 - 1 if g.chance(0.5) else 2**62
    for axis in axes:
        extent = x.shape[axis]
        step = g.choose((1, 1, 1, 2, 3, -1, -2)) if g.version(op) >= 10 else 1
        low, high = g.integer(-extent - 1, extent), g.choose((far, extent, g.integer(-extent - 1, extent + 2)))
        if step < 0:
            low, high = g.choose((far, -1, extent - 1)), g.choose((-far, -extent - 1, 0, g.integer(-extent, extent)))
        starts.append(low)
        ends.append(high)
        steps.append(step)
    ordered = axes == list(range(len(axes)))
    axes = [a - x.rank if g.version(op) >= 11 and g.chance(0.3) else a for a in axes]
    if g.version(op) < 10:
        g.node(op, [x], starts=starts, ends=ends, axes=None if ordered and g.chance(0.5) else axes)
        return
    dtype = np.dtype(g.choose(("int64", "int32")) if far < 2**31 else "int64")
    p: list[Value | None] = [g.constant(np.array(v, dtype), shared=False) for v in (starts, ends, axes, steps)]
    if ordered and g.chance(0.5):
        p[2] = None
    if set(steps) == {1} and g.chance(0.6):
        p[3] = None
    g.node(op, [x, *p])


@writes("Pad")
def pad(g: Growth, op: str) -> None:
    """By attributes before version 11; negative pads cut; axes from version 18 on."""
    x = g.value(g.types(op), rank=(1, 6))
    version = g.version(op)
    modes = ["constant", "constant", "reflect", "edge", *(["wrap"] if version >= 19 else [])]
    mode = g.choose(modes)
    axes = list(range(x.rank))
    if version >= 18 and g.chance(0.4):
        axes = [int(i) for i in g.rng.permutation(x.rank)[: g.integer(1, x.rank)]]
    limit = [(2 if mode in ("constant", "edge") else min(2, max(0, x.shape[a] - 1))) for a in axes]
    pads = [g.integer(-1 if g.chance(0.1) and mode == "constant" else 0, most) for most in (*limit, *limit)]
    named = g.choose((None, mode)) if mode == "constant" else mode
    if version < 11:
        g.node(op, [x], pads=pads, mode=named, value=g.choose((None, 1.5)) if mode == "constant" else None)
        return
    fill = None
    if mode == "constant" and g.chance(0.6) and x.dtype != "bfloat16":
        fill = g.scalar(g.integer(0, 3), x.dtype)
    every = axes == list(range(x.rank))
    signed = [a - x.rank if g.chance(0.3) else a for a in axes]
    g.node(op, [x, g.parameter(*pads), fill, None if every else g.parameter(*signed)], mode=named)


@writes("Shape", "Size")
def shape(g: Growth, op: str) -> None:
    """A part of the shape from version 15 on."""
    x = g.value(g.types(op))
    attributes = {}
    if op == "Shape" and g.version(op) >= 15:
        attributes = {name: g.integer(-x.rank - 1, x.rank + 1) for name in ("start", "end") if g.chance(0.4)}
    g.node(op, [x], **attributes)


@writes("DepthToSpace", "SpaceToDepth")
def depth(g: Growth, op: str) -> None:
    """Both modes, where the operator set has them."""
    block, n = g.integer(1, 3), g.integer(1, 2)
    c, h, w = (g.integer(1, 3) for _ in range(3))
    extents = (n, c * block * block, h, w) if op == "DepthToSpace" else (n, c, h * block, w * block)
    mode = g.choose((None, "DCR", "CRD")) if op == "DepthToSpace" and g.version(op) >= 11 else None
    g.node(op, [g.value(g.types(op), shape=extents)], blocksize=block, mode=mode)


@writes("Trilu")
def trilu(g: Growth, op: str) -> None:
    """Any diagonal."""
    x = g.value(g.types(op), rank=(2, 6))
    k = None if g.chance(0.3) else g.scalar(g.integer(-4, 4))
    g.node(op, [x, k], upper=g.choose((None, 0, 1)))


@writes("ReverseSequence")
def reverse_sequence(g: Growth, op: str) -> None:
    """Time first or batch first."""
    x = g.value(g.types(op), rank=(2, 6), where=lambda a: a.ndim > 1 and min(a.shape[:2]) > 0)
    batch = g.integer(0, 1)
    lengths = [g.integer(1, x.shape[1 - batch]) for _ in range(x.shape[batch])]
    g.node(op, [x, g.fresh(np.array(lengths, np.int64), constant=0.5)], batch_axis=batch, time_axis=1 - batch)


@writes("CenterCropPad")
def center_crop_pad(g: Growth, op: str) -> None:
    """Some axes are cut, others padded."""
    x = g.value(g.types(op), rank=(1, 5))
    axes = [int(i) for i in g.rng.permutation(x.rank)[: g.integer(1, x.rank)]]
    if g.chance(0.3):
        axes = list(range(x.rank))
    given = None if axes == list(range(x.rank)) and g.chance(0.7) else axes
    g.node(op, [x, g.parameter(*(g.integer(1, 6) for _ in axes))], axes=given)


@writes("Col2Im")
def col2im(g: Growth, op: str) -> None:
    """Blocks that overlap are added."""
    image, block = [g.integer(3, 6) for _ in range(2)], [g.integer(1, 3) for _ in range(2)]
    strides, pads = [g.integer(1, 2) for _ in range(2)], [g.integer(0, 1) for _ in range(4)]
    count = [(i + pads[a] + pads[a + 2] - block[a]) // strides[a] + 1 for a, i in enumerate(image)]
    if min(count) < 1:
        raise RejectedError(op)
    extents = (g.integer(1, 2), g.integer(1, 2) * block[0] * block[1], count[0] * count[1])
    x = g.value(g.types(op), shape=extents)
    g.node(op, [x, g.parameter(*image), g.parameter(*block)], strides=strides, pads=pads)
