"""Lower distinct slices for CPUs: rank them by comparing all pairs."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.lower.tir_loops import emit_sequential


def legalize_unique(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.unique``."""
    data, in_order = call.args[0], bool(int(call.attrs["in_order"]))
    outer, number, inner = data.ty.shape.values
    zero, one = tirx.const(0, "int64"), tirx.const(1, "int64")

    def body(
        x: Any, values: Any, firsts: Any, inverse: Any, counts: Any, count: Any, same: Any, order: Any, rank: Any
    ) -> None:
        """``same``: index of the first equal slice; ``order``: comparison of two slices, -1, 0 or 1."""
        count[0] = zero
        with T.serial(0, number) as i:
            counts[i] = zero

        def compare(j: Any, i: Any) -> None:
            order[0] = zero
            with T.serial(0, outer) as o, T.serial(0, inner) as k:
                left, right = x[(o * number + j) * inner + k], x[(o * number + i) * inner + k]
                with T.If(tirx.all(order[0] == zero, left < right)), T.Then():
                    order[0] = -one
                with T.If(tirx.all(order[0] == zero, left > right)), T.Then():
                    order[0] = one

        with T.serial(0, number) as i:
            same[i] = i.astype("int64")
            with T.serial(0, number) as j, T.If(tirx.all(j < i, same[i] == i.astype("int64"))), T.Then():
                compare(j, i)
                with T.If(order[0] == zero), T.Then():
                    same[i] = j.astype("int64")
        with T.serial(0, number) as i:
            rank[0] = zero
            with T.serial(0, number) as j, T.If(same[j] == j.astype("int64")), T.Then():
                if in_order:
                    compare(j, i)
                else:
                    order[0] = tirx.Select(j.astype("int64") < same[i], -one, zero)
                with T.If(order[0] < zero), T.Then():
                    rank[0] = rank[0] + one
            inverse[i] = rank[0]
            counts[rank[0]] = counts[rank[0]] + one
            with T.If(same[i] == i.astype("int64")), T.Then():
                count[0] = count[0] + one
                firsts[rank[0]] = i.astype("int64")
                with T.serial(0, outer) as o, T.serial(0, inner) as k:
                    values[(o * number + rank[0]) * inner + k] = x[(o * number + i) * inner + k]

    whole = ((number,), "int64")
    single = ((1,), "int64")
    outs = [((outer, number, inner), str(data.ty.dtype)), whole, whole, whole, single, whole, single, single]
    return relax.Tuple(emit_sequential(builder, "unique", [data], outs, body)[:5])
