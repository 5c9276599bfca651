"""Stages without anchor: elementwise operators with broadcasting, fused into one loop."""

from __future__ import annotations

from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.shapes import c_text, ceil_div, product
from packager.backends.ccompiler.core.stages import Stage

# Elements of a run: enough to hide its overhead, few enough to balance threads.
CHUNK = 4096


def add_elementwise(stage: Stage, group: GroupDraft) -> None:
    """Add the function of a stage to its group. Raises CannotRender."""
    draft = group.function("elementwise")
    chunks = ceil_div(stage.inner, CHUNK)
    draft.finish(
        "ops/elementwise",
        product((stage.rows, chunks)),
        {
            "program": draft.program(stage),
            "inner": c_text(stage.inner),
            "chunk": CHUNK,
            "chunks": c_text(chunks),
        },
    )
