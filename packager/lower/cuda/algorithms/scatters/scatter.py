"""Lower scatters for GPUs. Of those that reduce a thread for each element of the result, or for several, reads all
indices; of those that replace elements there is one for each update.

An element gets its updates in the order of the indices, whichever threads there are: results are always the same, as
they are on CPUs, and without atomic operations. Threads side by side read the same index, or indices side by side. Many
indices are sorted first: see sorted_scatter. What replaces an element twice is undefined in ONNX and torch: any does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.bundle.dtypes import HALVES
from packager.graph.dataflow import extents_of, same
from packager.ir.pattern_kinds import SUMS
from packager.lower.cuda.algorithms.nests import Extents, Nests, cast, emit, int64, keep, local, simplified
from packager.lower.legalize.accumulate import FULL
from packager.lower.legalize.scatter import REDUCTIONS, inside

# The most threads that are worth it: each more reads all indices once more.
THREADS = 1 << 17

_Place = Callable[[Any, Any, Any, Any], Any]


def scatter_elements(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``scatter_elements``."""
    axis = int(call.attrs.axis) % len(extents_of(call.args[0]) or ())

    def place(indices: Any, at: tuple[Any, ...], extents: Extents) -> tuple[Any, ...]:
        return (*at[:axis], inside(indices[at], extents[axis]), *at[axis + 1 :])

    if str(call.attrs.reduction) == "update":
        return _replaced(builder, call, place)
    return _along_axis(builder, call, axis, str(call.attrs.reduction))


def scatter_slices(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.scatter_slices``."""
    return _along_axis(builder, call, int(call.attrs["axis"]), str(call.attrs["reduction"]))


def _along_axis(builder: relax.BlockBuilder, call: relax.Call, axis: int, reduction: str) -> relax.Expr:
    data, indices, updates = call.args
    at = axis % len(extents_of(data) or ())

    def parted(tensor: Any) -> Any:
        """Return a tensor as [outer, along the axis, columns]."""
        own = list(extents_of(tensor) or ())
        return _reshaped(builder, tensor, own[:at], own[at : at + 1], own[at + 1 :])

    operands = [parted(tensor) for tensor in (data, indices, updates)]
    is_slice = same(operands[1].ty.shape.values[2], 1)

    def place(found: Any, which: Any, source: Any, column: Any) -> Any:
        return found[which, source, int64(0) if is_slice else column]

    return _scattered(builder, call, operands, place, reduction)


def scatter_nd(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``scatter_nd``; one that reduces as TVM does where the extents that indices are of are no constants."""
    data, indices, updates = call.args
    shape, counts = list(extents_of(data) or ()), list(extents_of(indices) or ())
    depth = counts[-1]

    def tuple_of(found: Any, at: tuple[Any, ...], extents: Extents) -> tuple[Any, ...]:
        before = at[: len(counts) - 1]
        own = (inside(found[(*before, number)], extents[number]) for number in range(int(depth)))
        return (*own, *at[len(before) :])

    if str(call.attrs.reduction) == "update":
        return _replaced(builder, call, tuple_of)
    own = [int(extent) if isinstance(extent, tirx.IntImm) else 0 for extent in shape[: int(depth)]]
    if not all(own):
        return call.op.get_attr("FLegalize")(builder, call)
    operands = [
        _reshaped(builder, data, [], shape[: len(own)], shape[len(own) :]),
        _reshaped(builder, indices, [], counts[:-1], [depth]),
        _reshaped(builder, updates, [], counts[:-1], shape[len(own) :]),
    ]

    def place(found: Any, which: Any, source: Any, _column: Any) -> Any:
        at = int64(0)
        for number, extent in enumerate(own):
            at = at * extent + inside(found[which, source, number], int64(extent))
        return at

    return _scattered(builder, call, operands, place, str(call.attrs.reduction))


def _replaced(
    builder: relax.BlockBuilder, call: relax.Call, place: Callable[[Any, tuple[Any, ...], Extents], tuple[Any, ...]]
) -> relax.Expr:
    """Emit a copy of the data, which is dropped where this is in place, and what replaces its elements.

    ``place`` returns where an update goes, from the indices, its own and the extents of the data.
    """
    nests = Nests([operand.ty for operand in call.args], [call.ty])
    (data, indices, updates), (into,) = nests.inputs, nests.outputs
    with nests.elements("copy", nests.extents[0], [data], into, 1) as at:
        into[at] = data[at]
    with nests.places("replace", nests.extents[2], [indices, updates], into) as at:
        into[place(indices, at, nests.extents[0])] = updates[at]
    function = nests.primfunc().with_attr("op_pattern", SUMS)
    return emit(builder, call.op.name.rpartition(".")[2], function, [*call.args], [call.ty])[0]


def _reshaped(builder: relax.BlockBuilder, tensor: Any, *parts: list[Any]) -> Any:
    extents = [math.prod(part, start=tirx.const(1, "int64")) for part in parts]
    return builder.emit(relax.op.reshape(tensor, extents))


def _scattered(
    builder: relax.BlockBuilder, call: relax.Call, operands: list[Any], place: _Place, reduction: str
) -> relax.Expr:
    result = relax.TensorType(operands[0].ty.shape, call.args[0].ty.dtype)
    name = call.op.name.rpartition(".")[2]
    function = _function([operand.ty for operand in operands], result, REDUCTIONS[reduction], place)
    (found,) = emit(builder, name, function, operands, [result])
    return relax.op.reshape(found, extents_of(call.args[0]))


def _function(operands: list[Any], result: Any, combine: Callable[[Any, Any], Any], place: _Place) -> tirx.PrimFunc:
    """Write updates [outer, number, columns] of data [outer, places, columns]; ``place`` reads where one goes."""
    nests = Nests(operands, [result])
    (data, indices, updates), (into,) = nests.inputs, nests.outputs
    (outer, places, columns), _, (_, number, _), _ = nests.extents
    total = int64(outer) * places * columns
    span = simplified(tirx.floordiv(total + (THREADS - 1), int64(THREADS)))
    is_single = isinstance(span, tirx.IntImm) and int(span) == 1
    dtype = str(data.dtype)
    wide = FULL if dtype in HALVES and is_single else dtype
    ranges = simplified(tirx.floordiv(int64(places) + (span - 1), span))
    with nests.grid("scatter", outer, ranges, columns) as (which, part, column):
        first = keep(part * span)
        held = local(cast(data[which, first, column], wide)) if is_single else None
        if held is None:
            with T.serial(int64(0), span) as step, T.If(first + step < places), T.Then():
                into[which, first + step, column] = data[which, first + step, column]
        with T.serial(int64(0), int64(number)) as source:
            at = keep(inside(place(indices, which, source, column), places))
            with T.If(tirx.all(at >= first, at < first + span)), T.Then():
                update = updates[which, source, column]
                if held is None:
                    into[which, at, column] = combine(into[which, at, column], update)
                else:
                    held[0] = combine(held[0], cast(update, wide))
        if held is not None:
            into[which, first, column] = cast(held[0], dtype)
    return nests.primfunc()
