"""max_pool2d, avg_pool2d, and means over whole planes, over NCHW."""

from __future__ import annotations

from packager.backends.ccompiler.conv2d import Window, window_of
from packager.backends.ccompiler.dense import total_value
from packager.backends.ccompiler.expressions import DTYPES, literal
from packager.backends.ccompiler.functions import GroupDraft
from packager.backends.ccompiler.graph import CannotRender, Operation
from packager.backends.ccompiler.program import make_program
from packager.backends.ccompiler.shapes import c_text, product
from packager.backends.ccompiler.stages import Stage

# Places of a line of the output that are accumulated at once.
CHUNK = 64
LEAST = {"int8": -(2**7), "int32": -(2**31)}


def add_pool2d(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a stage to its group. Raises CannotRender."""
    data = anchor.uses[0]
    dtype = data.tensor.dtype
    if len(data.shape) != 4:
        raise CannotRender(f"{anchor.name} of a tensor of rank {len(data.shape)}")
    if anchor.name in ("mean", "nn.adaptive_avg_pool2d"):
        if anchor.name == "mean" and sorted(int(axis) % 4 for axis in anchor.attributes.axis or ()) != [2, 3]:
            raise CannotRender("a mean that is not over planes")
        _add_plane_mean(stage, anchor, group)
        return
    window = window_of(anchor.attributes.pool_size, anchor.attributes)
    is_max = anchor.name == "nn.max_pool2d"
    ctype = DTYPES[dtype]
    total = ctype.value if is_max or ctype.is_float else "int32_t"
    suffix = ctype.suffix if is_max else "i32"
    value = "pk_widen(from[at])" if dtype == "float16" else "from[at]"
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
            "total": total,
            "first": literal(LEAST.get(dtype, float("-inf")), dtype) if is_max else "0",
            "next": (
                f"pk_max_{suffix}(sums[j], {value})"
                if is_max
                else f"sums[j] + {value}"
                if ctype.is_float
                else f"pk_add_i32(sums[j], {value})"
            ),
            "lines": c_text(anchor.result.shape[2]),
            "width": c_text(stage.inner),
            "in_height": c_text(data.shape[2]),
            "in_width": c_text(data.shape[3]),
            "window": window,
            "counted": not is_max and not anchor.attributes.count_include_pad,
            "chunk": CHUNK,
        },
    )


def _mean(anchor: Operation, window: Window, is_max: bool) -> str:
    """Return what a sum gives: itself for a maximum, else divided by the number of places."""
    if is_max:
        return "sums[j]"
    if anchor.attributes.count_include_pad:
        return f"sums[j] / {window.size[0] * window.size[1]}"
    return "sums[j] / counts[j]"


def _add_plane_mean(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    data = anchor.uses[0]
    draft = group.function("plane_mean")
    program = make_program(
        stage.after,
        inner=1,
        given=[(anchor.result, total_value(anchor.result, "mean"))],
        stored=stage.stored,
        pointer_of=draft.tensor,
    )
    draft.finish(
        "plane_mean",
        stage.rows,
        {
            "program": program,
            "x": draft.tensor(data.tensor, False),
            "stored": DTYPES[data.tensor.dtype].stored,
            "value": "pk_widen(x[j + lane])" if data.tensor.dtype == "float16" else "x[j + lane]",
            "plane": c_text(product(data.shape[2:])),
        },
    )
