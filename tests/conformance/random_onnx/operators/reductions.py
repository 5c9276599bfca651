"""Reductions, softmax, products of matrices, transforms."""

from __future__ import annotations

import numpy as np

from tests.conformance.random_onnx.growth import Growth, RejectedError
from tests.conformance.random_onnx.operators.elementwise import partner
from tests.conformance.random_onnx.registry import writes

REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")


@writes(*(f"Reduce{name}" for name in REDUCTIONS))
def reduce(g: Growth, op: str) -> None:
    """Axes by an attribute before version 18 (13 for sums), by an input after; none are all, or none if so said."""
    positive = op == "ReduceLogSum" and not g.special
    options = {"where": lambda a: bool(np.all(a > 0)), "make": lambda a: np.abs(a) + 1} if positive else {}
    types = g.types(op)
    if op == "ReduceLogSumExp":  # onnxruntime's exponentials of integers are integers
        types = [t for t in types if "int" not in t]
    x = g.value(types, rank=(0, 6), **options)
    if not x.array.size and op in ("ReduceMean", "ReduceMax", "ReduceMin"):
        raise RejectedError("of nothing")
    version = g.version(op)
    axes = [int(i) for i in g.rng.permutation(x.rank)[: g.integer(0, x.rank)]]
    if g.opset >= 11 and x.array.size:  # of nothing, onnxruntime does not count axes from behind
        axes = [a - x.rank if g.chance(0.3) else a for a in axes]
    keepdims = g.choose((None, 0, 1))
    if version < (13 if op == "ReduceSum" else 18):
        g.node(op, [x], axes=axes or None, keepdims=keepdims)
        return
    given = g.parameter(*axes) if axes or g.chance(0.4) else None
    g.node(op, [x, given], keepdims=keepdims, noop_with_empty_axes=g.choose((None, 0, 1)))


@writes("Softmax", "LogSoftmax", "Hardmax")
def softmax(g: Growth, op: str) -> None:
    """Over one axis from version 13 on, over all from an axis on before."""
    x = g.value(g.types(op), rank=(1, 6), exact=op == "Hardmax", where=lambda a: a.ndim > 0 and a.size > 0)
    g.node(op, [x], steps=op == "Hardmax", axis=g.choose((None, g.axis(x.rank, g.version(op) >= 11))))


@writes("MatMul", "MatMulInteger")
def matmul(g: Growth, op: str) -> None:
    """Vectors, matrices, and batches that broadcast."""
    inner, rows, columns = (g.choose((1, 2, 3, 4, 5, 8, 17)) for _ in range(3))
    batch = g.extents(g.choose((0, 0, 0, 1, 2)))
    left, right = (*batch, rows, inner), (*partner(g, batch), inner, columns)
    if op == "MatMul" and g.chance(0.2):
        left = (inner,)
    elif op == "MatMul" and g.chance(0.2):
        right = (inner,)
    a = g.value(g.types(op), shape=left)
    b = g.value(g.types(op, 1) if op != "MatMul" else [a.dtype], shape=right)
    if op == "MatMul":
        g.node(op, [a, b])
        return
    points = [g.scalar(g.integer(0, 5), v.dtype) if g.chance(0.5) else None for v in (a, b)]
    if points[1] is not None and g.chance(0.4):
        points[1] = g.constant(np.asarray(g.rng.integers(0, 5, columns)).astype(b.dtype), shared=False)
    g.node(op, [a, b, *points])


@writes("Gemm")
def gemm(g: Growth, op: str) -> None:
    """Transposed or not, scaled, with an addend of any shape, or none from version 11 on."""
    m, n, k = (g.choose((1, 2, 3, 5, 8, 16, 19)) for _ in range(3))
    ta, tb = g.choose((None, 0, 1)), g.choose((None, 0, 1))
    a = g.value(g.types(op), shape=(k, m) if ta else (m, k))
    b = g.value([a.dtype], shape=(n, k) if tb else (k, n))
    shapes = ((m, n), (n,), (1, n), (m, 1), (1,), (1, 1), ())
    c = g.value([a.dtype], shape=g.choose(shapes))
    real = a.dtype.startswith("float")
    alpha, beta = (g.choose((None, g.real(-1, 2))) if real else None for _ in range(2))
    omitted = g.version(op) >= 11 and g.chance(0.3)
    g.node(op, [a, b, None if omitted else c], transA=ta, transB=tb, alpha=alpha, beta=beta)


EQUATIONS = (
    *("ij,jk->ik", "ij,jk", "bij,bjk->bik", "ij->ji", "ii->i", "ii", "ij->", "i,j->ij", "ij,ij->", "i,i"),
    *(
        "bhqd,bhkd->bhqk",
        "...ij,...jk->...ik",
        "ij,j->i",
        "ijk->kji",
        "abc,cd->abd",
        "ij,kj->ik",
        "bi,bj->bij",
        "...i->...",
    ),
    *("ij , jk -> ki", "ij,jk,kl->il", "a,b,c->cab", "iji->j", "abc,abc->b", "...ij->...ji"),
)


@writes("Einsum")
def einsum(g: Growth, op: str) -> None:
    """Products, traces, transposes and sums; axes that no letter names; sums that are not said."""
    equation = g.choose(EQUATIONS)
    sizes = {letter: g.integer(1, 4) for letter in "abcdefghijklmnopqrstuvwxyz"}
    more = g.extents(g.integer(0, 2))
    dtype = g.dtype(g.types(op))
    operands = []
    for term in equation.partition("->")[0].split(","):
        letters = term.replace(" ", "")
        lead = more if letters.startswith("...") else ()
        operands.append(g.value([dtype], shape=(*lead, *(sizes[letter] for letter in letters.lstrip(".")))))
    g.node(op, operands, equation=equation)


@writes("Det")
def det(g: Growth, op: str) -> None:
    """Of each matrix."""
    n = g.integer(1, 4)
    g.node(op, [g.value(g.types(op), shape=(*g.extents(g.integer(0, 2)), n, n))])


@writes("DFT")
def dft(g: Growth, op: str) -> None:
    """Real and complex, one-sided and inverse; the axis is an input from version 20 on."""
    n, parts = g.integer(1, 9), g.integer(1, 2)
    x = g.value(["float32", "float64"], shape=(g.integer(1, 2), n, g.integer(1, 3), parts))
    inverse = g.choose((None, 0, 1))
    onesided = g.choose((None, 0, 1)) if parts == 1 and not inverse else None
    length = g.scalar(g.integer(1, 10)) if g.chance(0.4) and not inverse else None
    axis = g.choose((1, 1, 2, -2))
    if g.version(op) >= 20:
        g.node(op, [x, length, g.scalar(axis)], inverse=inverse, onesided=onesided)
    else:
        g.node(op, [x, length], inverse=inverse, onesided=onesided, axis=abs(axis))


@writes("HannWindow", "HammingWindow", "BlackmanWindow")
def window(g: Growth, op: str) -> None:
    """Periodic or symmetric."""
    g.node(op, [g.scalar(g.integer(2, 12), g.choose(("int64", "int32")))], periodic=g.choose((None, 0, 1)))


@writes("LpNormalization")
def lp_normalization(g: Growth, op: str) -> None:
    """L1 or L2 over one axis."""
    x = g.value(g.types(op), rank=(1, 6))
    g.node(op, [x], axis=g.choose((None, g.axis(x.rank))), p=g.choose((None, 1, 2)))


@writes("LRN")
def lrn(g: Growth, op: str) -> None:
    """Windows over channels."""
    x = g.value(g.types(op), rank=(4, 4))
    attributes = {name: g.real(0.25, 2) for name in ("alpha", "beta", "bias") if g.chance(0.5)}
    g.node(op, [x], size=g.choose((1, 3, 5)), **attributes)


@writes("MeanVarianceNormalization")
def mean_variance(g: Growth, op: str) -> None:
    """Over the batch and the picture, unless axes are given."""
    x = g.value(g.types(op), shape=(g.integer(2, 3), *(g.integer(1, 4) for _ in range(2)), 3))
    g.node(op, [x], axes=g.choose((None, [0, 2, 3], [2, 3], [1, 2, 3], [-1])))


@writes("BatchNormalization")
def batch_normalization(g: Growth, op: str) -> None:
    """For inference."""
    x = g.value([t for t in g.types(op) if t != "bfloat16"], rank=(2, 5))
    c = x.shape[1]
    kinds = [x.dtype] * 2 if g.version(op) < 15 else [g.dtype(["float32", x.dtype]) for _ in range(2)]
    scale, bias = (g.value([kinds[0]], shape=(c,)) for _ in range(2))
    mean = g.value([kinds[1]], shape=(c,))
    variance = g.value([kinds[1]], shape=(c,), where=lambda a: bool(np.all(a > 0.2)), make=lambda a: np.abs(a) + 0.5)
    epsilon = g.choose((None, 0.125))
    g.node(op, [x, scale, bias, mean, variance], epsilon=epsilon, momentum=g.choose((None, 0.5)))


@writes("InstanceNormalization")
def instance_normalization(g: Growth, op: str) -> None:
    """Of each channel's picture."""
    x = g.value(g.types(op), shape=(*g.extents(g.integer(2, 4)), g.integer(3, 5)))
    parts = [g.value([x.dtype], shape=(x.shape[1],)) for _ in range(2)]
    g.node(op, [x, *parts], epsilon=g.choose((None, 0.125, 0.01)))


@writes("LayerNormalization", "RMSNormalization")
def layer_normalization(g: Growth, op: str) -> None:
    """From any axis on; the bias may be missing, mean and deviation may be asked for."""
    x = g.value(g.types(op), shape=(*g.extents(g.integer(0, 4)), g.integer(3, 8)))
    axis = g.axis(x.rank)
    scale = g.value([x.dtype], shape=x.shape[axis:])
    epsilon, named = g.choose((None, 0.125, 0.01)), g.choose((None, axis)) if axis in (-1,) else axis
    if op == "RMSNormalization":
        g.node(op, [x, scale], axis=named, epsilon=epsilon)
        return
    bias = g.value([x.dtype], shape=x.shape[axis:]) if g.chance(0.6) else None
    keep = (True, g.chance(0.5), True) if g.chance(0.2) else (True,)
    g.node(op, [x, scale, bias], keep, axis=named, epsilon=epsilon)


@writes("GroupNormalization")
def group_normalization(g: Growth, op: str) -> None:
    """The scale is of each group before version 21, of each channel after."""
    groups, each = g.integer(1, 3), g.integer(1, 3)
    shape = (g.integer(1, 2), groups * each, *(g.integer(2, 4) for _ in range(g.integer(1, 3))))
    x = g.value([t for t in g.types(op) if t != "bfloat16"], shape=shape)
    size = groups if g.version(op) < 21 else groups * each
    parts = [g.value([x.dtype], shape=(size,)) for _ in range(2)]
    g.node(op, [x, *parts], num_groups=groups, epsilon=g.choose((None, 0.125)))
