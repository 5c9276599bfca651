"""Quantized numbers."""

from __future__ import annotations

import numpy as np

from tests.conformance.random_onnx.growth import Growth, Value
from tests.conformance.random_onnx.operators.spatial import data, windows
from tests.conformance.random_onnx.registry import writes

SCALES = (0.25, 0.5, 1.0, 2.0)


def scale(g: Growth, *shape: int, dtype: str = "float32") -> Value:
    """Return powers of two, so that nothing but the last step rounds."""
    return g.constant(g.rng.choice(SCALES, shape).astype(dtype), shared=False)


def point(g: Growth, dtype: str, *shape: int) -> Value:
    """Return zero points."""
    low, high = (0, 200) if dtype.startswith("u") else (-20, 20)
    return g.constant(np.asarray(g.rng.integers(low, high, shape)).astype(dtype), shared=False)


@writes("QuantizeLinear")
def quantize(g: Growth, op: str) -> None:
    """Per tensor, per axis from version 13 on, of blocks from version 21 on."""
    x = g.value([t for t in g.types(op) if t in ("float32", "float16", "int32")], rank=(0, 5), exact=True)
    types = ["uint8", "int8", *(["int16", "uint16"] if g.version(op) >= 21 else [])]
    dtype, version = g.choose(types), g.version(op)
    real = x.dtype if x.dtype == "float16" and version >= 19 else "float32"
    if x.rank and g.chance(0.5) and version >= 13:
        axis = g.axis(x.rank)
        shape: tuple[int, ...] = (x.shape[axis],)
        block = None
        if version >= 21 and g.chance(0.4) and x.shape[axis] % 2 == 0 and x.rank > 1:
            block, full = 2, list(x.shape)
            full[axis] //= 2
            shape = tuple(full)
        zero = point(g, dtype, *shape)
        g.node(op, [x, scale(g, *shape, dtype=real), zero], steps=True, axis=axis, block_size=block)
        return
    zero_point = point(g, dtype) if g.chance(0.7) else None
    g.node(op, [x, scale(g, dtype=real), zero_point], steps=True)


@writes("DequantizeLinear")
def dequantize(g: Growth, op: str) -> None:
    """Per tensor or per axis."""
    types = [t for t in g.types(op) if t in ("uint8", "int8", "int32", "int16", "uint16")]
    x = g.value(types, rank=(0, 5))
    zero = x.dtype != "int32" and g.chance(0.7)
    if x.rank and g.chance(0.5) and g.version(op) >= 13:
        axis = g.axis(x.rank)
        shape = (x.shape[axis],)
        g.node(op, [x, scale(g, *shape), point(g, x.dtype, *shape) if zero else None], axis=axis)
        return
    g.node(op, [x, scale(g), point(g, x.dtype) if zero else None])


@writes("DynamicQuantizeLinear")
def dynamic_quantize(g: Growth, op: str) -> None:
    """Values whose range is 255 halves: the scale is exact."""
    shape = g.extents(g.integer(1, 3))
    array = g.rng.integers(-60, 68, shape) / 2
    array = np.concatenate([array.reshape(-1), [-60.0, 67.5]]).astype(np.float32)
    g.node(op, [g.fresh(array)], (True, True, True))


@writes("QLinearMatMul")
def qlinear_matmul(g: Growth, op: str) -> None:
    """Scales per column of the second matrix at times."""
    m, n, k = (g.integer(1, 9) for _ in range(3))
    kinds = [g.choose(("uint8", "int8")) for _ in range(2)]
    lead = g.extents(g.choose((0, 0, 1)))
    a, b = g.value([kinds[0]], shape=(*lead, m, k)), g.value([kinds[1]], shape=(k, n))
    wide = (n,) if g.chance(0.3) else ()
    quantized_b = [b, scale(g, *wide), point(g, b.dtype, *wide)]
    g.node(op, [a, scale(g), point(g, a.dtype), *quantized_b, scale(g), point(g, a.dtype)])


@writes("QLinearConv")
def qlinear_conv(g: Growth, op: str) -> None:
    """Scales per output channel at times, with a bias or without."""
    rank = g.choose((1, 2, 2))
    group, each, outputs = g.choose((1, 1, 2)), g.integer(1, 3), g.integer(1, 3)
    x = data(g, [g.choose(("uint8", "int8"))], group * each, rank)
    attributes = windows(g, rank)
    wide = (group * outputs,) if g.chance(0.4) else ()
    kind = g.choose((x.dtype, "int8"))
    w = g.value([kind], shape=(group * outputs, each, *attributes["kernel_shape"]))
    zero = g.constant(np.zeros(wide, kind), shared=False) if wide or g.chance(0.5) else point(g, kind)
    bias = g.value(["int32"], shape=(group * outputs,)) if g.chance(0.5) else None
    taken = [x, scale(g), point(g, x.dtype), w, scale(g, *wide), zero, scale(g), point(g, x.dtype), bias]
    g.node(op, taken, group=group, **attributes)
