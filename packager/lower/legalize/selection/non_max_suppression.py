"""Lower suppression of overlapping boxes for CPUs: take the best box that is left, and drop what overlaps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.lower.tir_loops import emit_sequential

Corners = tuple[Any, Any, Any, Any]  # two of y, x; the lesser first


def corners(coordinate: Callable[[int], Any], centered: bool) -> Corners:
    """Return the corners of a box of four coordinates."""
    a, b, c, d = map(coordinate, range(4))
    if centered:
        half = tirx.const(0.5, str(a.ty))
        return b - d * half, a - c * half, b + d * half, a + c * half
    return tirx.min(a, c), tirx.min(b, d), tirx.max(a, c), tirx.max(b, d)


def overlaps(a: Corners, b: Corners, limit: Any) -> Any:
    """Tell whether the intersection of two boxes is more than ``limit`` of their union."""
    zero = tirx.const(0.0, str(limit.ty))
    height = tirx.max(tirx.min(a[2], b[2]) - tirx.max(a[0], b[0]), zero)
    width = tirx.max(tirx.min(a[3], b[3]) - tirx.max(a[1], b[1]), zero)
    common = height * width
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common
    return common > limit * union


def legalize_non_max_suppression(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.non_max_suppression``."""
    *operands, kept = call.args
    most, centered = kept.values[0], bool(int(call.attrs["centered"]))
    batch, classes, number = operands[1].ty.shape.values
    nothing, one = tirx.const(-1, "int64"), tirx.const(1, "int64")

    def body(
        box: Any, score: Any, limit: Any, floor: Any, chosen: Any, count: Any, alive: Any, best: Any, taken: Any
    ) -> None:
        count[0] = tirx.const(0, "int64")

        def find_best(base: Any) -> None:
            best[0] = nothing
            with T.serial(0, number) as i:
                rival = score[base + tirx.max(best[0], tirx.const(0, "int64"))]
                better = tirx.any(best[0] < tirx.const(0, "int64"), score[base + i] > rival)
                with T.If(tirx.all(alive[i] == one, better)), T.Then():
                    best[0] = i

        with T.serial(0, batch) as n, T.serial(0, classes) as c:
            base = (n * classes + c) * number
            with T.serial(0, number) as i:
                alive[i] = tirx.Select(score[base + i] > floor[0], one, tirx.const(0, "int64"))
            taken[0] = tirx.const(0, "int64")
            find_best(base)
            with T.While(tirx.all(best[0] >= tirx.const(0, "int64"), taken[0] < most)):
                for k, value in enumerate((n, c, best[0])):
                    chosen[count[0] * 3 + k] = value
                count[0] = count[0] + one
                taken[0] = taken[0] + one
                y0, x0, y1, x1 = corners(lambda k: box[(n * number + best[0]) * 4 + k], centered)
                with T.serial(0, number) as i, T.If(alive[i] == one), T.Then():
                    v0, u0, v1, u1 = corners(lambda k: box[(n * number + i) * 4 + k], centered)
                    overlap = overlaps((y0, x0, y1, x1), (v0, u0, v1, u1), limit[0])
                    with T.If(tirx.any(overlap, i == best[0])), T.Then():
                        alive[i] = tirx.const(0, "int64")
                find_best(base)

    single = ((1,), "int64")
    outs = [((batch * classes, most, 3), "int64"), single, ((number,), "int64"), single, single]
    return relax.Tuple(emit_sequential(builder, "non_max_suppression", operands, outs, body)[:2])
