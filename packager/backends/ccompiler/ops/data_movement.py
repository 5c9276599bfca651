"""Data movement along rows: concatenation along the last axis, channel shuffle, NCHW to NHWC.

A row is assembled in memory, in the result if that is stored, and the epilogue reads it from the L1 cache.
"""

from __future__ import annotations

from typing import Any

from packager.backends.ccompiler.core.expressions import CTYPES, element
from packager.backends.ccompiler.core.functions import FunctionDraft, GroupDraft
from packager.backends.ccompiler.core.operations import CannotRender, Operation
from packager.backends.ccompiler.core.shapes import c_text, ceil_div, product
from packager.backends.ccompiler.core.stages import Stage
from packager.bundle.dtypes import DTYPES

# The maximum size of rows on the stack, in bytes.
MOST_BYTES = 8192
# Elements of a group, and pixels of planes, that are moved at once.
STEP = 16
PLACES = 256


def add_move(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a stage to its group. Raises CannotRender."""
    if not isinstance(stage.inner, int):
        raise CannotRender(f"{anchor.name} of rows of unknown length")
    if anchor.name == "permute_dims" and len(anchor.attributes.axes) == 4 and anchor.uses[0].shape[1] == stage.inner:
        _add_planes(stage, anchor, group)
        return
    result = anchor.result
    ctype = CTYPES[result.dtype]
    template = "concat" if anchor.name == "concat" else "interleave"
    draft = group.function(template)
    row = _row(stage, anchor, group, draft)
    stored = [tensor for tensor in stage.stored if tensor != result]
    program = draft.program(stage, element("y[j]", result.dtype), stored=stored)
    values: dict[str, Any] = {
        "program": program if stage.after else None,
        "stored": ctype.stored,
        "inner": stage.inner,
        "row": row,
        "on_stack": not row,
    }
    if template == "concat":
        values["fields"] = [
            {"from": draft.tensor(use.tensor, False), "width": int(use.shape[-1])} for use in anchor.uses
        ]
        values["itemsize"] = DTYPES[result.dtype].itemsize
    else:
        inner, groups = (int(extent) for extent in result.shape[-2:])
        values |= {"from": draft.tensor(anchor.uses[0].tensor, False), "each": inner, "groups": groups}
        values["step"] = 1 << (min(inner, STEP).bit_length() - 1)
    draft.finish(f"ops/{template}", stage.rows, values)


def _add_planes(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function that converts NCHW to NHWC."""
    data, result = anchor.uses[0], anchor.result
    draft = group.function("planes")
    plane = product(data.shape[2:])
    blocks = ceil_div(plane, PLACES)
    draft.finish(
        "ops/planes",
        product((data.shape[0], blocks)),
        {
            "program": draft.program(stage, element("tile[p][j]", result.dtype)),
            "plain": draft.tensor(result, True) if stage.stored == (result,) and not stage.after else "",
            "stored": CTYPES[result.dtype].stored,
            "from": draft.tensor(data.tensor, False),
            "channels": stage.inner,
            "plane": c_text(plane),
            "blocks": c_text(blocks),
            "block": PLACES,
        },
    )


def _row(stage: Stage, anchor: Operation, group: GroupDraft, draft: FunctionDraft) -> str:
    """Return the pointer to all rows, or '' if a row is assembled on the stack."""
    result = anchor.result
    if result in stage.stored:
        return draft.tensor(result, True)
    if stage.inner * DTYPES[result.dtype].itemsize <= MOST_BYTES:
        return ""
    workspace = group.workspace(product((stage.rows, stage.inner)), result.dtype)
    return draft.workspace(workspace, CTYPES[result.dtype].stored, True)
