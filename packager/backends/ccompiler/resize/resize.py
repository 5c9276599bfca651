"""Resizing along any axes: each row of the result is a weighted sum of rows of the data."""

from __future__ import annotations

from packager.backends.ccompiler.core.expressions import as_result
from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.operations import Operation
from packager.backends.ccompiler.core.shapes import c_text
from packager.backends.ccompiler.core.stages import Stage
from packager.backends.ccompiler.resize.lines import add_resize_lines
from packager.backends.ccompiler.resize.terms import line_terms


def add_resize(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a stage to its group. Raises CannotRender."""
    if anchor.attributes.axes[-1] == len(anchor.result.shape) - 1:
        add_resize_lines(stage, anchor, group)
        return
    draft = group.function("resize")
    lines = line_terms(anchor, draft, len(anchor.attributes.axes))
    draft.finish(
        "ops/resize",
        stage.rows,
        {
            "program": draft.program(stage, as_result(f"({lines.value})", anchor.result.dtype)),
            "x": draft.tensor(anchor.uses[0].tensor, False),
            "inner": c_text(stage.inner),
            "lines": lines,
        },
    )
