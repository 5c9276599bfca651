"""Converter of Pad: as Relax's operator where this does the same, else as a loop nest. ONNX operator Pad (25)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi

from packager.frontends.onnx.ops.operands import Convert, Converter, constant, dtype_of, known, optional, text
from packager.graph.dataflow import shape_of

# Modes of Pad, and what Relax calls them.
PAD_MODES = {"constant": "constant", "edge": "replicate", "reflect": "reflect", "wrap": "circular"}


def _pad(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Pad by extents, or with a value computed at run time; TVM's importer supports constants only."""
    value, mode = optional(inputs, 2), text(attributes, "mode", "constant")
    sized = isinstance(inputs[1], relax.ShapeExpr) and constant(inputs[1], attributes) is None
    if not sized and (value is None or constant(value, attributes) is not None or mode != "constant"):
        operator = _plain_pad(inputs, attributes, mode)
        return convert("Pad", list(inputs), attributes) if operator is None else operator
    data = inputs[0]
    pads = list(inputs[1].values) if sized else known(inputs[1], attributes, "an input of Pad (pads)").tolist()
    rank = data.ty.ndim
    axes = _axes(inputs, attributes, rank)
    before, after = [0] * rank, [0] * rank
    for number, axis in enumerate(axes):
        before[axis], after[axis] = pads[number], pads[len(axes) + number]
    filler = relax.const(0, dtype_of(data)) if value is None else value
    if not sized:

        def compute(x: Any, filler: Any) -> Any:
            return topi.nn.pad(x, before, after, filler(*[0] * len(filler.shape)))

        return builder.call_te(compute, data, filler, primfunc_name_hint="pad")
    return builder.call_te(padded, data, filler, before, after, mode, primfunc_name_hint="pad")


def _plain_pad(inputs: Sequence[Any], attributes: dict[str, Any], mode: str) -> Any | None:
    """Return Relax's operator where it does the same, which passes and backends know, unlike loops; else None."""
    data, value = inputs[0], optional(inputs, 2)
    shape, given = shape_of(data), constant(inputs[1], attributes) if len(inputs) > 1 else attributes.get("pads")
    if shape is None or given is None or mode not in PAD_MODES:
        return None
    pads = [int(width) for width in np.asarray(given).reshape(-1)]
    axes = _axes(inputs, attributes, len(shape))
    filler = attributes.get("value", 0.0) if value is None else np.asarray(constant(value, attributes)).item()
    if len(pads) != 2 * len(axes) or len(set(axes)) < len(axes) or min(pads, default=0) < 0:
        return None
    widths = [0] * (2 * len(shape))
    for number, axis in enumerate(axes):
        widths[2 * axis], widths[2 * axis + 1] = pads[number], pads[len(axes) + number]
        most = max(pads[number], pads[len(axes) + number])
        if mode != "constant" and most and not (isinstance(shape[axis], int) and most < shape[axis]):
            return None
    if isinstance(filler, int) and int(float(filler)) != filler:  # the operator's value is a double
        return None
    return relax.op.nn.pad(data, widths, PAD_MODES[mode], float(filler))


def _axes(inputs: Sequence[Any], attributes: dict[str, Any], rank: int) -> list[int]:
    """Return the axes that are padded, from 0 on: all of them unless the node lists some."""
    if optional(inputs, 3) is None:
        return list(range(rank))
    return [int(axis) % rank for axis in known(inputs[3], attributes, "the axes of Pad")]


def same_padding(extent: Any, reach: int, stride: int, *, upper: bool) -> tuple[Any, Any]:
    """Return the padding before and after an axis with which windows start at every ``stride``-th element.

    ``reach`` is the dilated size of a window. ``upper`` pads an odd element after the data (``SAME_UPPER`` of ONNX's
    ``auto_pad``). The extent may be an expression.
    """
    # An extent that a dim decides is not divided where that changes nothing: shapes stay comparable.
    if stride == 1:
        total: Any = reach - 1
    elif isinstance(extent, int):
        total = max(0, (-(-extent // stride) - 1) * stride + reach - extent)
    else:
        total = (tirx.floordiv(extent + stride - 1, stride) - 1) * stride + reach - extent
        total = total if reach >= stride else tirx.max(total, 0)
    half = total // 2 if isinstance(total, int) else tirx.floordiv(total, 2)
    return (half, total - half) if upper else (total - half, half)


def padded(x: Any, filler: Any, before: Sequence[Any], after: Sequence[Any], mode: str) -> Any:
    """Return ``x`` padded by extents; those below zero cut off."""
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise ValueError(f"mode {mode!r} is none of Pad")

    def element(*at: Any) -> Any:
        inside, source = [], []
        for index, start, extent in zip(at, before, x.shape, strict=True):
            place = index - start
            if mode == "constant":
                inside += [place >= 0, place < extent]
            elif mode == "wrap":
                place = tirx.floormod(place, extent)
            elif mode == "reflect":
                place = tirx.Select(place < 0, 0 - place, place)
                place = tirx.Select(place >= extent, 2 * extent - 2 - place, place)
            # Reflections of more than an extent are not defined, but have to stay in the memory.
            source.append(place if mode in ("constant", "wrap") else tirx.max(tirx.min(place, extent - 1), 0))
        if mode == "constant":
            return tirx.if_then_else(tirx.all(*inside), x(*source), filler(*[0] * len(filler.shape)))
        return x(*source)

    shape = [extent + start + end for extent, start, end in zip(x.shape, before, after, strict=True)]
    return te.compute(shape, element, name="pad")


CONVERTERS: Mapping[str, Converter] = {"Pad": _pad}
