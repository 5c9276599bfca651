"""Windows that overlap in an image, added up: a line of the image at a time, from lines of windows.

A tap of neighboring windows is added to elements that are a stride apart. So a line is summed up in as many parts as
the stride has residues, where those elements are neighbors, and then interleaved.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.operations import Operation
from packager.backends.ccompiler.core.shapes import product
from packager.backends.ccompiler.core.stages import Stage
from packager.graph.windows.col2im import windows_of_call

# Floats of the parts of a line, on the stack: the first-level cache holds them, the line, and what is added.
MOST_SUMS = 3072
# The longest stride of columns, whose residues are written out.
MOST_STRIDE = 64


def add_col2im(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a stage to its group. Raises CannotRender."""
    windows = windows_of_call(anchor.attributes)
    *outer, width = windows.extents
    stride, before = windows.strides[-1], windows.before[-1]
    groups = -(-(before + width) // stride)  # of elements, one of each residue, with those before the image
    first = before // stride
    count = -(-(groups - first) // max(1, MOST_SUMS // stride))
    segment = -(-(groups - first) // count)
    reaches = [tap * windows.dilations[-1] for tap in range(windows.size[-1])]
    lanes = group.machine.vector_bytes // 4
    axes = [
        dict(zip(("extent", "size", "count", "stride", "dilation", "before"), numbers, strict=True))
        for numbers in zip(
            *(values[:-1] for values in (windows.extents, windows.size, windows.counts)),
            *(values[:-1] for values in (windows.strides, windows.dilations, windows.before)),
            strict=True,
        )
    ]
    draft = group.function("col2im")
    values: dict[str, Any] = {
        "program": draft.program(stage, "line[j + skipped]"),
        "x": draft.tensor(anchor.uses[0].tensor, False),
        "axes": axes,
        "lines": prod(outer),
        "windows": prod(windows.counts),
        "taps": prod(windows.size),
        "most": prod(windows.size[:-1]),
        "tap": _index("tap", windows.size[:-1]),
        "place": _index("place", windows.counts[:-1]),
        "columns_taps": windows.size[-1],
        "columns": windows.counts[-1],
        "width": width,
        "before": before,
        "stride": stride,
        "by_residue": [
            [(tap, reach // stride) for tap, reach in enumerate(reaches) if reach % stride == residue]
            for residue in range(stride)
        ],
        "first": first,
        "groups": groups,
        "segments": count,
        "segment": segment,
        "lanes": lanes,
        "pitch": -(-segment // lanes) * lanes,
    }
    draft.finish("ops/col2im", product((stage.rows, count)), values)


def _index(name: str, extents: Sequence[int]) -> str:
    """Return C for the place along all axes at once of these extents, whose variables are ``name`` and a number."""
    text = "0"
    for axis, extent in enumerate(extents):
        text = f"{name}{axis}" if axis == 0 else f"({text}) * {extent} + {name}{axis}"
    return text
