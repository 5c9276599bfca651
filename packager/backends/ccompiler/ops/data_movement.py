"""Data movement with an epilogue: concatenation, channel shuffle, NCHW to NHWC. Others are strided copies.

A row is assembled in memory, in the result if that is stored, and the epilogue reads it from the L1 cache.
"""

from __future__ import annotations

from typing import Any

from packager.backends.ccompiler.core.expressions import CTYPES, element
from packager.backends.ccompiler.core.functions import FunctionDraft, GroupDraft
from packager.backends.ccompiler.core.operations import Operation
from packager.backends.ccompiler.core.shapes import MOST_GROUPS, c_text, ceil_div, equal, makes_channels_last, product
from packager.backends.ccompiler.core.stages import Stage
from packager.bundle.dtypes import DTYPES

# The maximum size of rows on the stack, in bytes.
MOST_BYTES = 8192
# Elements of a group, and pixels of planes, that are moved at once.
STEP = 16
PLACES = 256
# Elements of each tensor that are stacked at once.
STACKED = 64


def add_move(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a stage to its group. Raises CannotRender."""
    if anchor.name == "concat":
        _add_concat(stage, anchor, group)
        return
    source, axes = anchor.uses[0].shape, anchor.attributes.axes
    if makes_channels_last(source, axes):
        _add_planes(stage, anchor, group)
        return
    result = anchor.result
    draft = group.function("interleave")
    inner, groups = (int(extent) for extent in result.shape[-2:])
    values = _row_values(stage, anchor, group, draft)
    values |= {"from": draft.tensor(anchor.uses[0].tensor, False), "each": inner, "groups": groups}
    values["step"] = 1 << (min(inner, STEP).bit_length() - 1)
    draft.finish("ops/interleave", stage.rows, values)


def _add_concat(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function that concatenates: a row is all that lies beyond the axes before the concatenated one."""
    axis = anchor.attributes.axis
    single = all(equal(product(use.shape[axis:]), 1) for use in anchor.uses)
    if single and not stage.after and len(anchor.uses) <= MOST_GROUPS:
        _add_stack(stage, anchor, group)
        return
    draft = group.function("concat")
    values = _row_values(stage, anchor, group, draft)
    values["fields"] = [
        {"from": draft.tensor(use.tensor, False), "width": c_text(product(use.shape[axis:]))} for use in anchor.uses
    ]
    values["itemsize"] = DTYPES[anchor.result.dtype].itemsize
    fields = 1 if values["program"] else len(anchor.uses)
    draft.finish("ops/concat", product((stage.rows, fields)), values)


def _add_stack(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function that stacks a few tensors along a last axis: a loop that becomes shuffles."""
    draft = group.function("stack")
    values = {
        "sources": [draft.tensor(use.tensor, False) for use in anchor.uses],
        "result": draft.tensor(anchor.result, True),
        "stored": CTYPES[anchor.result.dtype].stored,
        "rows": c_text(stage.rows),
        "step": STACKED,
    }
    draft.finish("ops/stack", ceil_div(stage.rows, STACKED), values)


def _row_values(stage: Stage, anchor: Operation, group: GroupDraft, draft: FunctionDraft) -> dict[str, Any]:
    """Return the values of the templates that assemble a row and have an epilogue."""
    result = anchor.result
    row = _row(stage, anchor, group, draft)
    stored = [tensor for tensor in stage.stored if tensor != result]
    program = draft.program(stage, element("y[j]", result.dtype), stored=stored)
    return {
        "program": program if stage.after else None,
        "stored": CTYPES[result.dtype].stored,
        "inner": c_text(stage.inner),
        "row": row,
        "on_stack": not row,
    }


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
    if isinstance(stage.inner, int) and stage.inner * DTYPES[result.dtype].itemsize <= MOST_BYTES:
        return ""
    workspace = group.workspace(product((stage.rows, stage.inner)), result.dtype)
    return draft.workspace(workspace, CTYPES[result.dtype].stored, True)
