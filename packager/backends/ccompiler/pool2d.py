"""max_pool2d, avg_pool2d, and means over whole planes, over NHWC: vectors run along the channels of a place."""

from __future__ import annotations

from packager.backends.ccompiler.conv2d import Window, window_of
from packager.backends.ccompiler.dense import total_value
from packager.backends.ccompiler.expressions import DTYPES, literal
from packager.backends.ccompiler.functions import GroupDraft
from packager.backends.ccompiler.graph import CannotRender, Operation
from packager.backends.ccompiler.program import make_program
from packager.backends.ccompiler.shapes import c_text, ceil_div, product
from packager.backends.ccompiler.stages import Stage

# Channels that are accumulated at once: of a place, and of a plane, whose blocks of channels are shared among threads.
CHUNK = 256
BAND = 64
# Places of a plane that are summed before they are added to the rest: sums of few numbers are more exact.
BLOCK = 64
LEAST = {"uint8": 0, "int8": -(2**7), "int32": -(2**31)}


def add_pool2d(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a stage to its group. Raises CannotRender."""
    data = anchor.uses[0]
    dtype = data.tensor.dtype
    if len(data.shape) != 4:
        raise CannotRender(f"{anchor.name} of a tensor of rank {len(data.shape)}")
    if anchor.name in ("mean", "nn.adaptive_avg_pool2d"):
        if anchor.name == "mean" and sorted(int(axis) % 4 for axis in anchor.attributes.axis or ()) != [1, 2]:
            raise CannotRender("a mean that is not over planes")
        _add_plane_mean(stage, anchor, group)
        return
    window = window_of(anchor.attributes.pool_size, anchor.attributes)
    is_max = anchor.name == "nn.max_pool2d"
    ctype = DTYPES[dtype]
    total = ctype.value if is_max or ctype.is_float else "int32_t"
    suffix = ctype.suffix if is_max else "i32"
    draft = group.function("pool2d")
    program = make_program(
        stage.after,
        inner=stage.inner,
        given=[(anchor.result, total_value(anchor.result, f"({_mean(anchor, window, is_max)})"))],
        stored=stage.stored,
        pointer_of=draft.tensor,
    )
    draft.finish(
        "pool2d",
        stage.rows,
        {
            "program": program,
            "x": draft.tensor(data.tensor, False),
            "stored": ctype.stored,
            "widens": dtype == "float16",
            "total": total,
            "first": literal(LEAST.get(dtype, float("-inf")), dtype) if is_max else "0",
            "next": (
                f"pk_max_{suffix}(sums[j], from[j])"
                if is_max
                else "sums[j] + from[j]"
                if ctype.is_float
                else "pk_add_i32(sums[j], from[j])"
            ),
            "lines": c_text(anchor.result.shape[1]),
            "width": c_text(anchor.result.shape[2]),
            "channels": c_text(stage.inner),
            "in_height": c_text(data.shape[1]),
            "in_width": c_text(data.shape[2]),
            "window": window,
            "counted": not is_max and not anchor.attributes.count_include_pad,
            "chunk": min(CHUNK, int(stage.inner)),
        },
    )


def _mean(anchor: Operation, window: Window, is_max: bool) -> str:
    """Return what a sum gives: itself for a maximum, else divided by the number of places."""
    if is_max:
        return "sums[j]"
    if anchor.attributes.count_include_pad:
        return f"sums[j] / {window.size[0] * window.size[1]}"
    return "sums[j] / places"


def _add_plane_mean(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    data = anchor.uses[0]
    draft = group.function("plane_mean")
    program = make_program(
        stage.after,
        inner=stage.inner,
        given=[(anchor.result, total_value(anchor.result, "(sums[j] / places)"))],
        stored=stage.stored,
        pointer_of=draft.tensor,
    )
    bands = ceil_div(stage.inner, BAND)
    draft.finish(
        "plane_mean",
        product((stage.rows, bands)),
        {
            "program": program,
            "x": draft.tensor(data.tensor, False),
            "stored": DTYPES[data.tensor.dtype].stored,
            "widens": data.tensor.dtype == "float16",
            "plane": c_text(product(data.shape[1:3])),
            "channels": c_text(stage.inner),
            "bands": bands,
            "band": BAND,
            "block": BLOCK,
        },
    )
