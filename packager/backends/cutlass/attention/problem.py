"""Attention, with the GEMM of q, k and v: from a match in a model to a problem and its kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from packager.backends.cutlass.attention.kernels import (
    SPLIT_ROWS,
    AttentionForm,
    Bias,
    SplitAttention,
    portfolio,
    split_kernels,
    split_workspace,
    warp_kernels,
)
from packager.backends.cutlass.attention.match import Attention, Projection
from packager.backends.cutlass.core.drafts import GroupDraft, Ranking, rank
from packager.backends.cutlass.core.element_types import ELEMENTS
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.cost_model import GemmForm, GemmShape, rank_gemm
from packager.bundle.dtypes import FLOATS, storage_dtype
from packager.graph.attention.sinks import sinks_of_heads
from packager.graph.dataflow import known_product, same, shape_of
from packager.graph.identity import IdentityMap
from packager.ir.primitives import Packing, Parameter

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

# Rows and keys that warps always have at once, rows and dims of heads that they have where there are so many heads.
FEW_WARPED, MOST_WARPED_ROWS, NARROW_DEPTH, MANY_HEADS = 32, 64, 32, 512
MOST_SPLIT_QUERIES, LEAST_SPLIT_KEYS = 16, 256
# Clusters of eight blocks that an H200 has room for, and steps of their warps up to which they are faster than blocks
# that merge through memory.
CLUSTERS, MOST_CLUSTERED_STEPS = 14, 2


@dataclass(frozen=True)
class AttentionProblem:
    """An attention, and the form that its kernels must support."""

    attention: Attention
    form: AttentionForm


def read_attention(attention: Attention) -> AttentionProblem | None:
    """Return the problem of an attention, or None if no kernel supports it."""
    sources = [heads.source for heads in (attention.q, attention.k, attention.v)]
    types = {str(source.ty.dtype) for source in (*sources, attention.result)}
    bias = _bias(attention)
    if len(types) != 1 or bias is None:
        return None
    (dtype,) = types
    if dtype not in FLOATS or (attention.mask is not None and str(attention.mask.ty.dtype) != dtype):
        return None
    strides = [n for heads in (attention.q, attention.k, attention.v) for n in (heads.offset, heads.row, heads.head)]
    keys = attention.keys if isinstance(attention.keys, int) else None
    form = AttentionForm(
        dtype,
        attention.depth,
        attention.value_depth,
        attention.causal,
        math.gcd(*strides, attention.out.row, attention.value_depth),
        bias,
        math.gcd(keys, 8) if keys else 1,
        attention.softcap != 0.0,
    )
    return AttentionProblem(attention, form)


def rank_attention(problem: AttentionProblem, options: CutlassOptions) -> Ranking:
    """Rank the kernels for an attention; empty if a GPU of the bundle would have none."""
    attention, form = problem.attention, problem.form
    newest, plain = portfolio("sm90", form), portfolio("sm80", form)
    sizes = ((name, getattr(attention, name)) for name in ("batch", "heads", "queries", "keys"))
    size = " ".join(f"{name} {extent if isinstance(extent, int) else 'any'}" for name, extent in sizes)
    depths = f"depth {form.depth}x{form.value_depth} aligned {form.alignment}"
    mask = f"{'capped ' * form.capped}{'causal' if form.causal else 'full'} mask {form.bias}"
    groups = f" groups of {attention.k.group}" if attention.k.group > 1 else ""
    text = f"attention {form.dtype} {size} {depths} {mask}{groups}"
    if _is_short(attention) and (own := warp_kernels(form, attention.keys)):
        return rank(text, options.arch, [*own, *newest], [*own, *plain])
    if _has_few_rows(attention) and (tiled := split_kernels(form, tiled=True)):
        order = 1 if _fits_clusters(attention, tiled[0]) else -1
        ranking = rank(text, options.arch, tiled[::order], split_kernels(form, tiled=False))
        return replace(ranking, workspace=split_workspace(attention.k.group * attention.queries, form.value_depth))
    return rank(text, options.arch, newest if _is_small(attention) else newest[::-1], plain)


def _is_short(attention: Attention) -> bool:
    """Whether warps that have all keys are faster than tiles of 64 rows; measured on an H200.

    Those take a third to a tenth for up to 32 rows, and four fifths to a half for 42 and 49 of heads of up to 32 dims;
    for 64 rows of 64 dims, and of few heads, a quarter more and more.
    """
    if not isinstance(attention.queries, int) or not isinstance(attention.keys, int):
        return False
    rows, groups = attention.k.group * attention.queries, attention.heads // attention.k.group
    if rows <= FEW_WARPED and attention.keys <= FEW_WARPED:
        return True
    heads = groups * (attention.batch if isinstance(attention.batch, int) else 8)
    narrow = max(attention.depth, attention.value_depth) <= NARROW_DEPTH
    return heads >= MANY_HEADS and rows <= (MOST_WARPED_ROWS if narrow else FEW_WARPED)


def _has_few_rows(attention: Attention) -> bool:
    """Whether time is that of reading keys and values, which are to be split: a decoder's step."""
    queries, keys = attention.queries, attention.keys
    if not isinstance(queries, int) or queries > MOST_SPLIT_QUERIES:
        return False
    return queries == 1 or not isinstance(keys, int) or keys >= LEAST_SPLIT_KEYS


def _fits_clusters(attention: Attention, kernel: SplitAttention) -> bool:
    """Whether a cluster or a few of them have a tile of 16 rows, all at once and for few steps; measured on an H200."""
    batch = attention.batch if isinstance(attention.batch, int) else 8
    keys = attention.keys if isinstance(attention.keys, int) else 2048
    tiles: int = batch * attention.heads // attention.k.group * -(-attention.k.group * attention.queries // SPLIT_ROWS)
    return keys <= CLUSTERS // tiles * kernel.cluster * kernel.warps * kernel.step * MOST_CLUSTERED_STEPS


def _is_small(attention: Attention) -> bool:
    """Whether the kernel of small blocks is faster; measured on an H200 with 12 to 384 heads in total."""
    keys = attention.keys if isinstance(attention.keys, int) else 512
    heads = attention.heads * (attention.batch if isinstance(attention.batch, int) else 8)
    if attention.depth > 64:
        return heads * keys <= 64 * 132
    if attention.depth > 32 and keys >= 2048:
        return False
    if attention.causal:
        return not (keys >= 1024 and heads <= 64)
    return not (keys <= 128 and heads >= 256)


def add_attention(
    problem: AttentionProblem, arguments: IdentityMap[int], group: GroupDraft, options: CutlassOptions
) -> None:
    """Add the functions of an attention to its partition's group."""
    attention = problem.attention
    q, k, v = attention.q, attention.k, attention.v
    size = ELEMENTS[problem.form.dtype].size
    if attention.projection is not None:
        fused = Parameter("workspace", _add_projection(attention.projection, arguments, group, options))
        width = q.row + k.row + v.row
        places = [(fused, offset, width, heads.head) for offset, heads in ((0, q), (q.row, k), (q.row + k.row, v))]
    else:
        places = [
            (Parameter("argument", arguments[heads.source]), heads.offset, heads.row, heads.head) for heads in (q, k, v)
        ]
    draft = group.add("attention", rank_attention(problem, options))
    rows = (attention.queries, attention.keys, attention.keys)
    for name, heads, (parameter, offset, row, head), count in zip("qkv", (q, k, v), places, rows, strict=True):
        draft.pointer(name, parameter, offset, size)
        batch: Any = (attention.heads // heads.group, count, row) if heads.head_major else (count, row)
        of_head: Any = (count, row) if heads.head_major else head
        draft.set(**{f"{name}_strides[0]": batch, f"{name}_strides[1]": row, f"{name}_strides[2]": of_head})
    draft.pointer("o", Parameter("argument", len(arguments), written=True))
    width = attention.heads * attention.value_depth
    out_head = attention.out.head or (attention.queries, attention.value_depth)
    draft.set(
        **{"o_strides[0]": (attention.queries, width), "o_strides[1]": attention.out.row, "o_strides[2]": out_head}
    )
    if attention.mask is not None:
        draft.pointer("bias", Parameter("argument", arguments[attention.mask]))
        draft.set(**{f"bias_strides[{axis}]": stride for axis, stride in enumerate(_mask_strides(attention))})
    if attention.sinks is not None:
        of_heads = partial(sinks_of_heads, heads=attention.heads)
        draft.pointer("sinks", group.packed(Packing(arguments[attention.sinks], f"sinks{attention.heads}", of_heads)))
    for name in ("batch", "heads", "queries", "keys", "depth", "value_depth"):
        draft.set(**{name: getattr(attention, name)})
    draft.set(group=k.group)
    draft.set_float(scale=attention.scale)
    if attention.softcap != 0.0:
        draft.set_float(softcap=attention.softcap)


def _add_projection(
    projection: Projection, arguments: IdentityMap[int], group: GroupDraft, options: CutlassOptions
) -> int:
    """Add one GEMM for q, k and v; return the workspace of its result, which has them side by side."""
    depth, columns, dtype = projection.depth, projection.columns, projection.dtype
    total = columns * len(projection.weights)
    weights, biases = (
        tuple(arguments[operand] for operand in operands) for operands in (projection.weights, projection.biases)
    )
    rows = known_product(projection.rows)
    static = all(isinstance(extent, int) for extent in projection.rows)
    shape = GemmShape(rows, total, depth, 1, static)
    ranking = rank_gemm(shape, GemmForm(dtype, dtype, constant=True), (depth, columns), options)
    nbytes = reduce(lambda size, extent: extent * size, projection.rows, total * ELEMENTS[dtype].size)
    workspace = group.workspace(nbytes)
    draft = group.add("gemm", ranking)
    draft.pointer("a", Parameter("argument", arguments[projection.data]))
    draft.pointer("b", group.packed(Packing(weights, "nk3", _side_by_side)))
    if biases:

        def join(*arrays: Array) -> Array:
            return np.concatenate([array.reshape(-1) for array in arrays]).astype(storage_dtype(dtype))

        draft.pointer("bias", group.packed(Packing(biases, f"{dtype}3", join)))
    draft.pointer("d", Parameter("workspace", workspace, written=True))
    draft.set(m=projection.rows, n=total, k=depth, batch=1, lda=depth, ldb=depth, ldd=total)
    draft.set_float(alpha=projection.scale)
    return workspace


def _side_by_side(*arrays: Array) -> Array:
    """Return matrices [k, n] as one [3 n, k]."""
    return np.concatenate([array.transpose() for array in arrays])


def _bias(attention: Attention) -> Bias | None:
    """Return the kind of bias of a mask, or None if no kernel supports it."""
    if attention.mask is None:
        return "none"
    extents = shape_of(attention.mask) or ()
    if len(extents) != 4 or not same(extents[3], attention.keys):
        return None
    wanted = (attention.batch, attention.heads, attention.queries)
    if any(not same(e, 1) and not same(e, full) for e, full in zip(extents[:3], wanted, strict=True)):
        return None
    return "keys" if same(extents[1], 1) and same(extents[2], 1) else "dense"


def _mask_strides(attention: Attention) -> list[tuple[Any, ...]]:
    """Return a mask's strides of batch, head and row, as products of extents; (0,) where it is broadcast."""
    extents = shape_of(attention.mask) or ()
    return [(0,) if same(extents[axis], 1) else tuple(extents[axis + 1 :]) for axis in range(3)]
