"""Computes once what is computed alike of neighboring slices of a tensor: the rotation of queries and that of keys.

Queries and keys come from one product, and each head of both is rotated by the same angles (RoPE, arXiv:2104.09864):
one kernel rotates all heads, and attention reads its heads where they are. Such a chain begins with two slices of one
tensor, goes on in step by views and elementwise operators, and ends where products read both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm_ffi import structural_equal

from packager.graph.dataflow import Dataflow, axes_of, operator_of, same, scalar_of, shape_of, strided_slice_of
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import map_bindings, map_operands, tidy

_RESHAPES = ("reshape", "squeeze", "expand_dims")
_UNARY = ("negative", "astype", "exp", "sigmoid", "tanh", "sqrt", "rsqrt")
_BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
# What may read the end of a chain: views, and products.
_ENDS = ("permute_dims", "reshape", "expand_dims", "broadcast_to", "concat", "matmul")


@dataclass(frozen=True)
class _Pair:
    """Two parts of one tensor, the ``first`` before the ``second`` along ``axis``, where both have known extents."""

    first: Any
    second: Any
    axis: int

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape of the whole."""
        extents = list(_shape(self.first))
        extents[self.axis] += _shape(self.second)[self.axis]
        return tuple(extents)


def join_slices(module: tvm.IRModule) -> tvm.IRModule:
    """Rewrite such chains in ``main``."""
    flow = Dataflow(module["main"])
    places = IdentityMap((variable, index) for index, variable in enumerate(flow.variables))
    changed: IdentityMap[list[Any]] = IdentityMap()  # from a variable to the bindings that come before its own
    joined: IdentityMap[bool] = IdentityMap()
    for start in _starts(flow):
        pairs = _chain(flow, start)
        if any(pair.first in joined or pair.second in joined for pair in pairs.values()) or not _pays(flow, pairs):
            continue
        whole: IdentityMap[Any] = IdentityMap()  # from the first of a pair to the variable of both
        for pair in sorted(pairs.values(), key=lambda pair: places[pair.first]):
            place = min(pair.first, pair.second, key=lambda variable: places[variable])
            value = relax.BlockBuilder().normalize(_joined(flow, pair, start, pairs, whole))
            both = whole[pair.first] = type(pair.first)(f"{pair.first.name}_joined", value.ty)
            bindings = [relax.VarBinding(both, value), *_parts_of(pair, both)]
            changed.setdefault(place, []).extend(bindings)
            joined.update((variable, True) for variable in (pair.first, pair.second))
    if not len(joined):
        return module

    def change(binding: Any) -> list[Any]:
        return [*changed.get(binding.var, []), *([] if binding.var in joined else [binding])]

    return tidy(map_bindings(module, change))


def _parts_of(pair: _Pair, both: Any) -> Iterator[Any]:
    """Yield the bindings of the two as views of ``both``; heads stand behind rows there, as attention reads them."""
    order, builder, axis = [0, 2, 1, 3], relax.BlockBuilder(), pair.axis
    if behind := (axis == 1 and len(pair.shape) == len(order)):
        value = builder.normalize(relax.op.permute_dims(both, order))
        both, axis = type(both)(f"{both.name}_rows", value.ty), 2
        yield relax.VarBinding(both, value)
    middle = _shape(pair.first)[pair.axis]
    for part, begin, end in ((pair.first, 0, middle), (pair.second, middle, pair.shape[pair.axis])):
        value = builder.normalize(relax.op.strided_slice(both, [axis], [begin], [end]))
        if behind:
            heads = type(both)(f"{part.name}_heads", value.ty)
            yield relax.VarBinding(heads, value)
            value = relax.op.permute_dims(heads, order)
        yield relax.VarBinding(part, value)


def _shape(variable: Any) -> tuple[Any, ...]:
    return shape_of(variable) or ()


def _starts(flow: Dataflow) -> Iterator[_Pair]:
    """Yield neighboring slices of one axis of the same tensor, in the order of the first of them."""
    slices: IdentityMap[list[tuple[int, int, int, Any]]] = IdentityMap()
    for variable in flow.variables:
        call = flow.call(variable, "strided_slice")
        place = None if call is None or not _shape(variable) else _range_of(call)
        if place is not None:
            slices.setdefault(call.args[0], []).append((*place, variable))
    for each in slices.values():
        for axis, _, end, first in each:
            for other, begin, _, second in each:
                if axis == other and begin == end and not first.same_as(second):
                    yield _Pair(first, second, axis)


def _range_of(call: Any) -> tuple[int, int, int] | None:
    """Return axis, begin and end of a slice of one axis, of all its elements between; else None."""
    taken = _ranges(call) or {}
    if len(taken) != 1:
        return None
    ((axis, places),) = taken.items()
    return (axis, places.start, places.stop) if places.step == 1 else None


def _ranges(call: Any) -> dict[int, range] | None:
    """Return which places of which axes a slice has in their order; None if that is not static, or not their order."""
    extents, slices = shape_of(call.args[0]), strided_slice_of(call)
    if extents is None or slices is None:
        return None
    parts = {axis: part for axis, part in enumerate(slices) if part != slice(None)}
    if not all(isinstance(extents[axis], int) for axis in parts):
        return None
    taken = {axis: range(extents[axis])[part] for axis, part in parts.items()}
    if any(places.step < 0 for places in taken.values()):
        return None
    return {axis: places for axis, places in taken.items() if places != range(extents[axis])}


def _chain(flow: Dataflow, start: _Pair) -> IdentityMap[_Pair]:
    """Return the pairs that are computed alike from a pair of slices, by their first variables."""
    pairs: IdentityMap[_Pair] = IdentityMap([(start.first, start)])
    waiting = [start]
    while waiting:
        pair = waiting.pop()
        for first in flow.readers(pair.first):
            if first in pairs:
                continue
            found = next((f for second in flow.readers(pair.second) if (f := _step(flow, first, second, pairs))), None)
            if found is not None:
                pairs[first] = found
                waiting.append(found)
    return pairs


def _step(flow: Dataflow, first: Any, second: Any, pairs: IdentityMap[_Pair]) -> _Pair | None:
    """Return the pair of two results if both are computed alike from pairs that are known."""
    a, b = flow.value(first), flow.value(second)
    name, shape = operator_of(a), _shape(first)
    if not name or name != operator_of(b) or len(shape) != len(_shape(second)) or first.same_as(second):
        return None
    if str(first.ty.dtype) != str(second.ty.dtype):
        return None
    if name in _RESHAPES:
        axis = _axis_of_reshape(pairs.get(a.args[0]), b.args[0], shape, _shape(second))
        return None if axis is None else _Pair(first, second, axis)
    if not structural_equal(a.attrs, b.attrs):
        return None
    if name == "concat":
        operands = [_alike(x, y, pairs) for x, y in zip(a.args[0].fields, b.args[0].fields, strict=False)]
        same_count = len(a.args[0].fields) == len(b.args[0].fields)
        axes = {pair.axis for pair in operands if pair is not None}
        whole = same_count and None not in operands and len(axes) == 1
        return _Pair(first, second, *axes) if whole and int(a.attrs.axis) % len(shape) not in axes else None
    source = _alike(a.args[0], b.args[0], pairs)
    order = axes_of(a)
    if order is not None and source is not None:
        return _Pair(first, second, order.index(source.axis))
    if name == "strided_slice" and source is not None:
        taken = _ranges(a)
        return _Pair(first, second, source.axis) if taken and taken == _ranges(b) and source.axis not in taken else None
    return _elementwise(first, second, a, b, pairs) if name in (*_UNARY, *_BINARY) else None


def _alike(a: Any, b: Any, pairs: IdentityMap[_Pair]) -> _Pair | None:
    """Return the pair of two operands, if they are one."""
    pair = pairs.get(a)
    return pair if pair is not None and pair.second.same_as(b) else None


def _axis_of_reshape(source: _Pair | None, other: Any, first: tuple[Any, ...], second: tuple[Any, ...]) -> int | None:
    """Return the axis of the results along which they are joined, if there is one."""
    if source is None or not source.second.same_as(other):
        return None
    outer = math.prod(_shape(source.first)[: source.axis])
    for axis in reversed(range(len(first))):
        rest = (first[:axis] + first[axis + 1 :], second[:axis] + second[axis + 1 :])
        known = isinstance(first[axis], int) and isinstance(second[axis], int)
        if known and same(math.prod(first[:axis]), outer) and same(*rest):
            return axis
    return None


def _elementwise(first: Any, second: Any, a: Any, b: Any, pairs: IdentityMap[_Pair]) -> _Pair | None:
    """Return the pair of two results whose other operands are the same, and the same for all of the axis."""
    rank, axes = len(_shape(first)), set()
    for x, y in zip(a.args, b.args, strict=True):
        pair = _alike(x, y, pairs)
        if pair is not None and len(_shape(x)) == rank:
            axes.add(pair.axis)
        elif x in pairs or (not x.same_as(y) and (scalar_of(x) is None or scalar_of(x) != scalar_of(y))):
            return None
    if len(axes) != 1:
        return None
    (axis,) = axes
    for x in a.args:
        extents = shape_of(x)
        if pairs.get(x) is None and (
            extents is None or (len(extents) >= rank - axis and not same(extents[axis - rank], 1))
        ):
            return None
    return _Pair(first, second, axis)


def _pays(flow: Dataflow, pairs: IdentityMap[_Pair]) -> bool:
    """Whether a chain computes something, and views or products read its ends."""
    own = IdentityMap((variable, True) for pair in pairs.values() for variable in (pair.first, pair.second))
    computes = any(operator_of(flow.value(pair.first)) in _BINARY for pair in pairs.values())

    def ends(variable: Any) -> bool:
        if flow.is_result(variable):
            return False
        for reader in flow.readers(variable):
            call = flow.value(reader)
            scales = operator_of(call) in ("multiply", "divide") and any(scalar_of(x) is not None for x in call.args)
            if reader not in own and operator_of(call) not in _ENDS and not scales:
                return False
        return True

    return computes and all(ends(variable) for variable in own)


def _joined(
    flow: Dataflow, pair: _Pair, start: _Pair, pairs: IdentityMap[_Pair], whole: IdentityMap[Any]
) -> relax.Expr:
    """Return what computes both of a pair."""
    call = flow.value(pair.first)
    if pair is start:
        begins, ends = (_range_of(flow.value(each)) for each in (pair.first, pair.second))
        assert begins is not None
        assert ends is not None
        return relax.op.strided_slice(call.args[0], [pair.axis], [begins[1]], [ends[2]])
    if operator_of(call) in _RESHAPES:
        return relax.op.reshape(whole[call.args[0]], pair.shape)
    if operator_of(call) == "strided_slice":  # it may name the axis of the pair, and all of its half
        taken = _ranges(call)
        assert taken is not None
        lists = zip(*((r.start, r.stop, r.step) for r in taken.values()), strict=True)
        return relax.op.strided_slice(whole[call.args[0]], list(taken), *map(list, lists))

    def replaced(operand: Any) -> Any:
        if isinstance(operand, relax.Tuple):
            return map_operands(operand, replaced)
        return whole[operand] if operand in pairs else operand

    return map_operands(call, replaced)
