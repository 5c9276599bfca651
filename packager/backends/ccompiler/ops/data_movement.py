"""What moves elements along rows: concatenations along the last axis, groups of channels that are interleaved, and
planes that become channels.

A row is put together in memory, in the result where that is kept, and what follows works on it while it is in the
first-level cache.
"""

from __future__ import annotations

from typing import Any

from packager.backends.ccompiler.core.expressions import DTYPES
from packager.backends.ccompiler.core.functions import ITEMSIZE, FunctionDraft, GroupDraft
from packager.backends.ccompiler.core.operations import CannotRender, Operation
from packager.backends.ccompiler.core.program import make_program
from packager.backends.ccompiler.core.shapes import c_text, ceil_div, product
from packager.backends.ccompiler.core.stages import Stage

# Bytes of a row that is put together on the stack.
MOST_BYTES = 8192
# Elements of a group that are moved at once, and places of planes.
STEP = 16
PLACES = 256


def add_move(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a stage to its group. Raises CannotRender."""
    if len(anchor.uses) < len(anchor.operands) or not isinstance(stage.inner, int):
        raise CannotRender(f"{anchor.name} of numbers, or of rows of unknown length")
    if anchor.name == "permute_dims" and len(anchor.attributes.axes) == 4 and anchor.uses[0].shape[1] == stage.inner:
        _add_planes(stage, anchor, group)
        return
    result = anchor.result
    ctype = DTYPES[result.dtype]
    template = "concat" if anchor.name == "concat" else "interleave"
    draft = group.function(template)
    is_kept = result in stage.stored
    row, on_stack = _row(stage, anchor, group, draft, is_kept=is_kept)
    program = make_program(
        stage.after,
        inner=stage.inner,
        given=[(result, "pk_widen(y[j])" if result.dtype == "float16" else "y[j]")],
        stored=[tensor for tensor in stage.stored if tensor != result],
        pointer_of=draft.tensor,
    )
    values: dict[str, Any] = {
        "program": program if stage.after else None,
        "stored": ctype.stored,
        "inner": stage.inner,
        "row": row,
        "on_stack": on_stack,
    }
    if template == "concat":
        values["fields"] = [
            {"from": draft.tensor(use.tensor, False), "width": int(use.shape[-1])} for use in anchor.uses
        ]
        values["itemsize"] = ITEMSIZE.get(result.dtype, 1)
    else:
        inner, groups = (int(extent) for extent in result.shape[-2:])
        values |= {"from": draft.tensor(anchor.uses[0].tensor, False), "each": inner, "groups": groups}
        values["step"] = 1 << (min(inner, STEP).bit_length() - 1)
    draft.finish(f"ops/{template}", stage.rows, values)


def _add_planes(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function that makes NHWC of NCHW."""
    data, result = anchor.uses[0], anchor.result
    draft = group.function("planes")
    program = make_program(
        stage.after,
        inner=stage.inner,
        given=[(result, "pk_widen(tile[p][j])" if result.dtype == "float16" else "tile[p][j]")],
        stored=stage.stored,
        pointer_of=draft.tensor,
    )
    plane = product(data.shape[2:])
    blocks = ceil_div(plane, PLACES)
    draft.finish(
        "ops/planes",
        product((data.shape[0], blocks)),
        {
            "program": program,
            "plain": draft.tensor(result, True) if stage.stored == (result,) and not stage.after else "",
            "stored": DTYPES[result.dtype].stored,
            "from": draft.tensor(data.tensor, False),
            "channels": stage.inner,
            "plane": c_text(plane),
            "blocks": c_text(blocks),
            "block": PLACES,
        },
    )


def _row(
    stage: Stage, anchor: Operation, group: GroupDraft, draft: FunctionDraft, *, is_kept: bool
) -> tuple[str, bool]:
    """Return the name of the memory of all rows, or '' and True if a row is made on the stack."""
    itemsize = ITEMSIZE.get(anchor.result.dtype, 1)
    if is_kept:
        return draft.tensor(anchor.result, True), False
    if stage.inner * itemsize <= MOST_BYTES:
        return "", True
    workspace = group.workspace(product((stage.rows, stage.inner)), itemsize)
    return draft.workspace(workspace, DTYPES[anchor.result.dtype].stored, True), False
