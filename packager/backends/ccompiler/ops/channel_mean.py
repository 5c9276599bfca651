"""avg_pool1d along rows: means of neighboring elements, as of channels in local response normalization."""

from __future__ import annotations

from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.operations import CannotRender, Operation
from packager.backends.ccompiler.core.program import make_program
from packager.backends.ccompiler.core.stages import Stage
from packager.backends.ccompiler.ops.dense import total_value

# Elements of a row, which is on the stack twice, and of a window.
MOST_ELEMENTS = 1536
MOST_NEIGHBOURS = 16


def add_neighbors(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a stage to its group. Raises CannotRender."""
    attributes = anchor.attributes
    (window,), (first, last) = map(int, attributes.pool_size), map(int, attributes.padding)
    inner = stage.inner
    if not isinstance(inner, int) or inner > MOST_ELEMENTS or window > MOST_NEIGHBOURS:
        raise CannotRender(f"means of {window} neighbors in rows of {inner}")
    made_before = {operation.result.index for operation in stage.before}
    draft = group.function("neighbors")
    before = make_program(
        stage.before,
        inner=inner,
        given=[],
        stored=[tensor for tensor in stage.stored if tensor.index in made_before],
        pointer_of=draft.tensor,
        last=(anchor.uses[0], "y[j]"),
    )
    after = make_program(
        stage.after,
        inner=inner,
        given=[(anchor.result, total_value(anchor.result, f"(sums[j] / {window})"))],
        stored=[tensor for tensor in stage.stored if tensor.index not in made_before],
        pointer_of=draft.tensor,
    )
    draft.finish(
        "ops/channel_mean",
        stage.rows,
        {
            "before": before,
            "after": after,
            "inner": inner,
            "window": window,
            "before_count": first,
            "after_count": last,
        },
    )
