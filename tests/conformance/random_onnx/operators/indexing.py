"""Operators that read or write where indices say, or that make what they say."""

from __future__ import annotations

import numpy as np
from onnx import helper, numpy_helper

from tests.conformance.random_onnx.growth import Growth, RejectedError, Value
from tests.conformance.random_onnx.registry import writes

INDICES = ("int64", "int32")


def indices(g: Growth, extent: int, shape: tuple[int, ...], negative: bool, types: tuple[str, ...] = INDICES) -> Value:
    """Return indices of an axis, some counted from behind."""
    if extent == 0:
        raise RejectedError("nothing to index")
    low = -extent if negative else 0
    return g.fresh(np.asarray(g.rng.integers(low, extent, shape)).astype(g.choose(types)), constant=0.5)


@writes("Gather")
def gather(g: Growth, op: str) -> None:
    """Indices of any rank."""
    x = g.value(g.types(op), rank=(1, 5))
    axis = g.axis(x.rank)
    shape = g.extents(g.integer(0, min(2, 7 - x.rank)))
    at = indices(g, x.shape[axis], shape, g.version(op) >= 11)
    g.node(op, [x, at], axis=g.choose((None, axis)) if axis == 0 else axis)


@writes("GatherElements")
def gather_elements(g: Growth, op: str) -> None:
    """Indices may be shorter than the data on other axes."""
    x = g.value(g.types(op), rank=(1, 6))
    axis = g.axis(x.rank)
    shape = [g.integer(min(1, extent), extent) for extent in x.shape]
    shape[axis] = g.integer(1, 4)
    g.node(op, [x, indices(g, x.shape[axis], tuple(shape), True)], axis=axis)


def coordinates(g: Growth, shape: tuple[int, ...], lead: tuple[int, ...]) -> np.ndarray:
    """Return one coordinate per extent of ``shape``, for each place of ``lead``."""
    if 0 in shape:
        raise RejectedError("nothing to index")
    low = [-extent if g.chance(0.5) else 0 for extent in shape]
    columns = [np.asarray(g.rng.integers(a, b, lead)) for a, b in zip(low, shape, strict=True)]
    return np.stack(columns, axis=-1).astype(np.int64)


@writes("GatherND")
def gather_nd(g: Growth, op: str) -> None:
    """Batch dims from version 12 on."""
    x = g.value(g.types(op), rank=(1, 5))
    batch = g.integer(0, min(2, x.rank - 1)) if g.version(op) >= 12 else 0
    depth = g.integer(1, x.rank - batch)
    lead = (*x.shape[:batch], *g.extents(g.integer(0, 2)))
    if not lead:
        lead = (2,)
    at = coordinates(g, x.shape[batch : batch + depth], lead)
    g.node(op, [x, g.fresh(at, constant=0.5)], batch_dims=batch or None)


def reduction(g: Growth, op: str) -> str | None:
    """Return how a scatter combines, None for the default."""
    version = g.version(op)
    names = [None, *(["none", "add", "mul"] if version >= 16 else []), *(["max", "min"] if version >= 18 else [])]
    return g.choose(names)


@writes("Scatter", "ScatterElements")
def scatter_elements(g: Growth, op: str) -> None:
    """Without a reduction each place is written once, as the order of writes is not defined."""
    x = g.value(g.types(op), rank=(1, 5), where=lambda a: a.ndim > 0 and a.size > 0)
    axis = g.axis(x.rank, op != "Scatter")
    shape = [g.integer(1, extent) for extent in x.shape]
    how = reduction(g, op) if op != "Scatter" else None
    if how in (None, "none"):
        others = (*shape[: axis % x.rank], *shape[axis % x.rank + 1 :])
        places = np.broadcast_to(np.arange(x.shape[axis]), (*others, x.shape[axis]))
        one = g.rng.permuted(places, axis=-1)
        at = np.moveaxis(one[..., : shape[axis]], -1, axis).astype(np.int64)
    else:
        shape[axis] = g.integer(1, 5)
        at = np.asarray(g.rng.integers(-x.shape[axis], x.shape[axis], shape))
    updates = g.value([x.dtype], shape=tuple(shape))
    g.node(op, [x, g.fresh(at.astype(g.choose(INDICES)), constant=0.5), updates], axis=axis, reduction=how)


@writes("ScatterND")
def scatter_nd(g: Growth, op: str) -> None:
    """The same, by coordinates."""
    x = g.value(g.types(op), rank=(1, 5), where=lambda a: a.ndim > 0 and a.size > 0)
    depth = g.integer(1, x.rank)
    how = reduction(g, op)
    places = int(np.prod(x.shape[:depth]))
    count = g.integer(1, min(5, places))
    flat = g.rng.permutation(places)[:count] if how in (None, "none") else g.rng.integers(0, places, count)
    at = np.stack(np.unravel_index(flat, x.shape[:depth]), axis=-1).astype(np.int64)
    if g.chance(0.3):
        at = at[None]
    updates = g.value([x.dtype], shape=(*at.shape[:-1], *x.shape[depth:]))
    g.node(op, [x, g.fresh(at, constant=0.5), updates], reduction=how)


@writes("OneHot")
def one_hot(g: Growth, op: str) -> None:
    """Indices beyond the depth give rows of off values."""
    depth = g.integer(1, 5)
    at = np.asarray(g.rng.integers(-depth - 1, depth + 2, g.extents(g.integer(1, 3))))
    if g.version(op) < 11:
        at = np.abs(at)
    dtype = g.choose(("float32", "int64", "int32"))
    values = g.constant(np.array([g.integer(-2, 1), 2], g.choose(("float32", "int64", "int32"))), shared=False)
    axis = g.integer(-at.ndim - 1, at.ndim)
    size = g.choose((g.scalar(depth, g.choose(("int64", "float32", "int32"))), g.parameter(depth)))
    g.node(op, [g.fresh(at.astype(dtype)), size, values], axis=g.choose((None, axis)))


@writes("TopK")
def top_k(g: Growth, op: str) -> None:
    """Values that differ, as the order of equal ones is not defined but by their place."""
    x = g.value(g.types(op), rank=(1, 5), exact=True, where=lambda a: a.ndim > 0 and a.size > 0)
    axis = g.axis(x.rank, g.version(op) >= 11)
    k = g.integer(1, x.shape[axis])
    attributes: dict[str, int] = {} if axis == x.rank - 1 and g.chance(0.5) else {"axis": axis}
    if g.version(op) >= 11:
        attributes |= {name: value for name, value in (("largest", g.integer(0, 1)), ("sorted", 1)) if g.chance(0.5)}
    if g.version(op) < 10:
        g.node(op, [x], (True, True), steps=True, k=k, **attributes)
    else:
        g.node(op, [x, g.parameter(k)], (True, True), steps=True, **attributes)


@writes("ArgMax", "ArgMin")
def arg_max(g: Growth, op: str) -> None:
    """The first or the last of equal ones."""
    x = g.value(g.types(op), rank=(1, 6), exact=True, where=lambda a: a.ndim > 0 and a.size > 0)
    last = g.choose((None, 0, 1)) if g.version(op) >= 12 else None
    axis = g.choose((None, g.axis(x.rank, g.version(op) >= 11)))
    g.node(op, [x], steps=True, axis=axis, keepdims=g.choose((None, 0, 1)), select_last_index=last)


@writes("CumSum")
def cum_sum(g: Growth, op: str) -> None:
    """Exclusive, reversed, both."""
    x = g.value(g.types(op), rank=(1, 6))
    axis = g.scalar(g.axis(x.rank), g.choose(INDICES))
    g.node(op, [x, axis], exclusive=g.choose((None, 0, 1)), reverse=g.choose((None, 0, 1)))


@writes("EyeLike")
def eye_like(g: Growth, op: str) -> None:
    """Any diagonal, of another type at times."""
    x = g.value(g.types(op), rank=(2, 2))
    dtype = g.choose((None, "float32", "float64", "int64", "int32", "uint64"))
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) if dtype else None
    g.node(op, [x], dtype=code, k=g.choose((None, g.integer(-3, 3))))


@writes("ConstantOfShape")
def constant_of_shape(g: Growth, op: str) -> None:
    """Zeros of float32 unless a value is given."""
    shape = g.extents(g.integer(0, 4))
    dtype = g.choose(("float32", "int64", "bool", "uint8", "float16", "float64", "int16"))
    value = g.choose((None, numpy_helper.from_array(np.array([1], dtype))))
    g.node(op, [g.parameter(*shape)], value=value)


@writes("Range")
def numbers(g: Growth, op: str) -> None:
    """Upwards, downwards, or nothing."""
    dtype = g.choose(("float32", "float64", "int16", "int32", "int64"))
    step = g.choose((1, 2, 3, -1, -2)) / (2 if dtype.startswith("float") and g.chance(0.5) else 1)
    if not dtype.startswith("float"):
        step = int(step) or 1
    start = g.integer(-4, 4)
    count = g.integer(0 if g.chance(0.2) else 1, 6)
    g.node(op, [g.scalar(v, dtype) for v in (start, start + step * count, step)])


@writes("Dropout")
def dropout(g: Growth, op: str) -> None:
    """Not in training: what goes in comes out, and the mask is true."""
    x = g.value(g.types(op))
    keep = (True, True) if g.chance(0.4) and g.version(op) >= 12 else (True,)
    if g.version(op) < 12:
        g.node(op, [x], keep, ratio=g.choose((None, 0.3)))
        return
    ratio = g.scalar(0.3, "float32") if g.chance(0.5) else None
    training = g.scalar(False, "bool") if g.chance(0.3) else None
    g.node(op, [x, ratio, training], keep, seed=g.choose((None, 3)))
