"""Group, instance and layer normalization of images, in both layouts: three functions.

``moments`` reads the data once: the mean and the sum of squared deviations of each part of an image, for each channel.
A part is taken in blocks that stay in the L1 cache, and blocks are merged (Chan, Golub and LeVeque, 1979), which is as
accurate as two passes over all. ``deviations`` merges the parts of a group, in double. ``normalize`` reads the data
again and computes what follows. Parts depend on shapes alone, so that results do not depend on threads.
"""

from __future__ import annotations

from packager.backends.ccompiler.core.expressions import as_result, literal
from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.operations import Operation
from packager.backends.ccompiler.core.shapes import Extent, c_text, ceil_div, plain, product
from packager.backends.ccompiler.core.stages import Stage, statistics_of_anchor
from packager.backends.ccompiler.core.statistics import Statistics
from packager.backends.ccompiler.ops.softmax_norm import add_rows
from packager.graph.normalize import attributes_of_call

# Elements of a block, in the L1 cache; channels of one.
BLOCK = 4096
CHANNELS = 256
# Parts of an image: as many as threads can share, few enough to merge quickly.
PARTS = 16
# Elements of a part if places are symbolic, and of a run of ``normalize``.
PART = 65536
RUN = 4096


def add_normalization(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the functions of a stage to its group. Raises CannotRender."""
    found = statistics_of_anchor(anchor)
    if found.are_rows:
        add_rows(stage, anchor, group)
        return
    rows = _rows_of_part(found)
    parts = ceil_div(found.places, rows)
    attributes = attributes_of_call(anchor.attributes)
    values = {
        "channels_last": found.channels_last,
        "channels": c_text(found.channels),
        "places": c_text(found.places),
        "groups": c_text(found.groups),
        "each": c_text(plain(found.channels // found.groups)),
        "part": rows,
        "parts": c_text(parts),
        "epsilon": literal(attributes.epsilon, "float64"),
        "centered": attributes.centered,
    }
    moments = group.workspace(product((found.images, parts, found.channels, 2)))
    results = group.workspace(product((found.images, found.channels, 2)))
    _add_moments(anchor, group, found, parts, moments, values)
    draft = group.function("deviations")
    pointers = {"moments": draft.workspace(moments, "float", False), "results": draft.workspace(results, "float", True)}
    draft.finish("ops/normalize_deviations", product((found.images, found.groups)), {**values, **pointers})
    draft = group.function("normalize")
    run = max(1, RUN // found.channels) if found.channels_last and isinstance(found.channels, int) else RUN
    runs = ceil_div(found.places, run)
    pointers = {"x": draft.tensor(anchor.uses[0].tensor, False), "results": draft.workspace(results, "float", False)}
    value = "(x[j] - mean[j]) * scale[j]" if found.channels_last else "(x[j] - mean) * scale"
    program = draft.program(stage, as_result(f"({value})", anchor.result.dtype))
    outer = found.images if found.channels_last else product((found.images, found.channels))
    extra = {"program": program, "run": run, "runs": c_text(runs)}
    draft.finish("ops/normalize", product((outer, runs)), {**values, **pointers, **extra})


def _add_moments(
    anchor: Operation, group: GroupDraft, found: Statistics, parts: Extent, moments: int, values: dict[str, object]
) -> None:
    draft = group.function("moments")
    pointers = {
        "x": draft.tensor(anchor.uses[0].tensor, False),
        "moments": draft.workspace(moments, "float", True),
    }
    width = min(CHANNELS, found.channels) if isinstance(found.channels, int) else CHANNELS
    sizes = {"width": width, "block": max(1, BLOCK // width) if found.channels_last else BLOCK}
    outer = product((found.images, parts)) if found.channels_last else product((found.images, found.channels, parts))
    draft.finish("ops/normalize_moments", outer, {**values, **pointers, **sizes})


def _rows_of_part(found: Statistics) -> int:
    """Return the places of a part."""
    each = found.channels if found.channels_last and isinstance(found.channels, int) else 1
    least = max(1, BLOCK // each)  # a block
    if not isinstance(found.places, int):
        return max(1, PART // each)
    return max(least, -(-found.places // PARTS))
