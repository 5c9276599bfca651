"""Depthwise conv2d over NCHW: each plane has a filter of its own, and vectors run along a line of the output."""

from __future__ import annotations

from packager.backends.ccompiler.conv2d import groups_of, prepare, window_of
from packager.backends.ccompiler.dense import total_value
from packager.backends.ccompiler.expressions import DTYPES
from packager.backends.ccompiler.functions import GroupDraft
from packager.backends.ccompiler.graph import Operation
from packager.backends.ccompiler.program import make_program
from packager.backends.ccompiler.shapes import c_text, equal, product
from packager.backends.ccompiler.stages import Stage
from packager.backends.ccompiler.tiles import KINDS

# Places of a line of the output that are summed at once.
CHUNK = 64


def is_depthwise(anchor: Operation) -> bool:
    """Whether a convolution has one input channel per output channel, and sums that are floats."""
    data, weight = anchor.uses
    return groups_of(anchor) > 1 and equal(weight.shape[1], 1) and data.tensor.dtype in ("float32", "float16")


def add_depthwise(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the functions of a stage to its group: padding where it is needed, then the convolution."""
    data, weight = anchor.uses
    kind, window = KINDS[data.tensor.dtype], window_of(weight.shape[2:], anchor.attributes)
    image = prepare(anchor, window, kind, groups_of(anchor), group)
    draft = group.function("depthwise")
    program = make_program(
        stage.after,
        inner=stage.inner,
        given=[(anchor.result, total_value(anchor.result, "sums[j]"))],
        stored=stage.stored,
        pointer_of=draft.tensor,
    )
    value = "pk_widen(f[{0}])" if data.tensor.dtype == "float16" else "f[{0}]"
    out_lines, out_width = anchor.result.shape[2:]
    draft.finish(
        "depthwise",
        product((stage.rows, out_lines)),
        {
            "program": program,
            "x": draft.tensor(data.tensor, False)
            if image.workspace is None
            else draft.workspace(image.workspace, kind.data, False),
            "filter_type": DTYPES[weight.tensor.dtype].stored,
            "filter": draft.tensor(weight.tensor, False),
            "weight": value.format(f"ky * {window.size[1]} + kx"),
            "channels": int(weight.shape[0]),
            "per_channel": int(weight.shape[0]) // int(data.shape[1]),
            "lines": c_text(out_lines),
            "width": c_text(out_width),
            "plane": c_text(image.plane),
            "pitch": c_text(image.width),
            "window_height": window.size[0],
            "window_width": window.size[1],
            "stride_y": image.strides[0],
            "stride_x": image.strides[1],
            "dilation_y": window.dilation[0],
            "dilation_x": window.dilation[1],
            "chunk": CHUNK,
        },
    )
