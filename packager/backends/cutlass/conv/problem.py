"""Convolutions with their epilogues: from a chain of a model to a problem and its kernels.

A 1x1 convolution without strides is a GEMM of the image's pixels and the filters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from packager.backends.cutlass.conv.cost_model import ConvShape, rank_conv
from packager.backends.cutlass.conv.groups import group_width, pack_groups
from packager.backends.cutlass.conv.kernels import VOLUME_REACH
from packager.backends.cutlass.core.drafts import FunctionDraft, GroupDraft, Most, Ranking
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.core.row_ranges import rank_by_rows
from packager.backends.cutlass.gemm.cost_model import GemmForm, GemmShape, rank_gemm
from packager.backends.problem_calls import bias_parameter
from packager.bundle.dtypes import FLOATS
from packager.graph.dataflow import Dataflow, shape_of
from packager.graph.identity import IdentityMap
from packager.graph.products.conv2d import Convolution, read_geometry
from packager.graph.products.epilogues import Chain
from packager.graph.products.matmul import bias_fits
from packager.ir.primitives import Packing, Parameter

# Sums of so many products are computed by a thread each, where a tile would be almost empty: maps of attention
# (Woo et al. 2018, "CBAM") are made of two channels.
SHORT_SUM = 256


@dataclass(frozen=True)
class ConvProblem:
    """A convolution of ``x`` with ``w``, with the epilogue of ``chain``."""

    x: Any
    w: Any
    chain: Chain
    conv: Convolution


def read_convolution(flow: Dataflow, chain: Chain, options: CutlassOptions) -> ConvProblem | None:
    """Return the problem of a chain, or None if no kernel supports it."""
    conv = read_geometry(flow, chain.anchor, grouped=True, volumes=True)
    if conv is None or conv.dtype not in FLOATS:
        return None
    if len(conv.image) == 3 and max(conv.behind) > VOLUME_REACH:
        return None
    if not conv.is_product and conv.filters == 1 and conv.channels * math.prod(conv.window) <= SHORT_SUM:
        return None
    others = [chain.result] if chain.residual is None else [chain.result, chain.residual]
    x, w = flow.value(chain.anchor).args
    types = {str(other.ty.dtype) for other in (w, *others)}
    ranks = {len(shape_of(variable) or ()) for variable in (chain.anchor, chain.result)}
    if types != {conv.dtype} or chain.scale != 1.0 or len(ranks) != 1:
        return None
    if not bias_fits(flow, chain, conv.dtype):
        return None
    problem = ConvProblem(x, w, chain, conv)
    return problem if _rank(problem, options, 1) else None


def add_convolution(
    problem: ConvProblem, arguments: IdentityMap[int], group: GroupDraft, options: CutlassOptions, most: Most
) -> None:
    """Add the function of a problem to its partition's group; ``arguments`` are the indices of the arguments."""
    conv, chain = problem.conv, problem.chain
    ranking = _rank(problem, options, most((conv.batch, *conv.result)))
    draft = group.add("gemm" if conv.is_product else f"conv{'3d' * (len(conv.window) == 3)}", ranking)
    x, w, y, residual = ("a", "b", "d", "c") if conv.is_product else ("x", "w", "y", "residual")
    if not conv.is_product:
        extents = ("out_height", "out_width") if len(conv.window) == 2 else ("result[0]", "result[1]", "result[2]")
        draft.rows = " * ".join(f"problem.{each}" for each in ("batch", *extents))
    draft.pointer(x, Parameter("argument", arguments[problem.x]))
    draft.pointer(w, _weights(conv, arguments[problem.w], group))
    if chain.bias is not None:
        draft.pointer("bias", bias_parameter(chain.bias, conv.dtype, arguments, group))
    if chain.residual is not None:
        draft.pointer(residual, Parameter("argument", arguments[chain.residual]))
    draft.pointer(y, Parameter("argument", len(arguments), written=True))
    set_geometry(draft, conv)
    if conv.is_product:
        draft.set_float(alpha=1.0)
        if chain.residual is not None:
            draft.set_float(beta=1.0)


def set_geometry(draft: FunctionDraft, conv: Convolution) -> None:
    """Set the extents of the problem that a convolution is: a GEMM, a pk_conv_t or a pk_conv3d_t."""
    channels, filters = conv.channels, conv.filters
    if conv.is_product:
        draft.set(m=(conv.batch, *conv.result), n=filters, k=channels, batch=1)
        draft.set(lda=channels, ldb=channels, ldc=filters, ldd=filters)
        return
    draft.set(batch=conv.batch, channels=channels, filters=filters)
    names: tuple[str, ...] = ("window", "padding", "stride", "dilation")
    if len(conv.image) == 2:
        draft.set(height=conv.image[0], width=conv.image[1], out_height=conv.result[0], out_width=conv.result[1])
    else:
        names = ("image", "result", *names)
    for name in names:
        draft.set(**{f"{name}[{axis}]": extent for axis, extent in enumerate(getattr(conv, name))})
    if conv.groups > 1:
        draft.set(groups=conv.groups, part=conv_shape(conv, 1).part)


def _weights(conv: Convolution, argument: int, group: GroupDraft) -> Parameter:
    """Return the weights: those of groups are spread over the channels that a tile of filters reads."""
    if conv.groups == 1:
        return Parameter("argument", argument)
    layout = f"ohwi_g{conv.groups}x{group_width(conv.channels, conv.filters, conv.groups)}"
    return group.packed(Packing(argument, layout, lambda weights: pack_groups(weights, conv.channels, conv.groups)))


def conv_shape(conv: Convolution, rows: int) -> ConvShape:
    """Return the size of a convolution with this number of pixels of the result."""
    pairs = (conv.window, conv.padding, conv.stride, conv.dilation)
    groups = conv.groups if conv.groups > 1 else 0
    width = 0 if conv.behind[-1] else conv.image[-1]
    return ConvShape(rows, conv.channels, conv.filters, *pairs, width=width, groups=groups)


def _rank(problem: ConvProblem, options: CutlassOptions, rows: int) -> Ranking:
    conv, chain = problem.conv, problem.chain
    activation, residual = chain.activation or "none", chain.residual is not None
    form = GemmForm(conv.dtype, conv.dtype, activation=activation, residual=residual)

    def rank(rows: int) -> Ranking:
        if not conv.is_product:
            return rank_conv(conv_shape(conv, rows), form, options)
        shape = GemmShape(rows, conv.filters, conv.channels, 1)
        return rank_gemm(shape, replace(form, constant=True), (conv.channels, conv.filters), options)

    return rank(rows) if isinstance(conv.batch, int) else rank_by_rows(rank, math.prod(conv.result), rows)
