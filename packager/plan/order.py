"""Orders the bindings of ``main``: each run-time extent is read before a call needs it, and the body of a loop is one
piece.

No Relax expression says that a shape variable has its value from a scalar, or that a call belongs to a loop, so passes
may move calls ahead, and between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tvm import relax, tirx

from packager.errors import ModelError
from packager.graph.control_flow import LOOP_BEGIN, LOOP_END, LOOP_RESULT, operands_of
from packager.graph.dataflow import called_function
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import nodes_of
from packager.ir.model import ModelSignature

Item = TypeVar("Item")


class Reads:
    """When the run-time extents of an entry can be read: each once its scalar is computed, and it is known whether the
    branch is taken that it is read in. One scalar may be that of several extents.

    ``variables`` are the shape variables of the extents, and ``scalars`` the Relax variables of their values.
    """

    def __init__(self, entry: ModelSignature, variables: Sequence[Any], scalars: Sequence[Any]) -> None:
        numbers = {extent.name: number for number, extent in enumerate(entry.extents)}
        self.scalars = scalars
        self.branches = [[numbers[name] for name, _ in entry.branches.get(e.node, ())] for e in entry.extents]
        self.waiting = list(range(len(scalars)))
        self.needed: IdentityMap[list[Any]] = IdentityMap()  # shape variable -> the scalars that it waits for
        for number, variable in enumerate(variables):
            self.needed[variable] = [scalars[other] for other in self._before(number)]

    def _before(self, number: int) -> set[int]:
        """Return the extents that are read before an extent, and itself."""
        return {number}.union(*(self._before(other) for other in self.branches[number]))

    def ready(self, values: Mapping[Any, Any]) -> Iterator[int]:
        """Yield the numbers of the extents that can be read now, and were not yet; ``values`` are those computed."""
        found = True
        while found:
            found = False
            for number in self.waiting:
                if self.scalars[number] in values and not {*self.branches[number]} & {*self.waiting}:
                    self.waiting.remove(number)
                    yield number
                    found = True
                    break


def order(items: Sequence[tuple[Any, Item]], values: Mapping[Any, Sequence[Any]]) -> list[tuple[Any, Item]]:
    """Return (binding, item) pairs in an order that respects ``values``: shape variable -> the variables of scalars.

    Pairs stay in their order where nothing demands another. Raises ModelError if there is no such order.
    """
    loops = any(called_function(binding.value) == LOOP_BEGIN for binding, _ in items)
    if not values and not loops:
        return [*items]
    places = IdentityMap((binding.var, place) for place, (binding, _) in enumerate(items))
    needs = [[*_needed(binding, places, values)] for binding, _ in items]
    placed = _by_needs(needs)
    if loops:
        placed = _with_whole_loops(placed, [binding for binding, _ in items], needs, places)
    return [items[place] for place in placed]


def _with_whole_loops(
    placed: list[int], bindings: Sequence[Any], needs: Sequence[list[int]], places: Mapping[Any, int]
) -> list[int]:
    """Return an order with nothing else between the begin and the end of a loop than its body.

    A loop that uses values of another one belongs into it as a whole, also if its begin uses none: then the begin is
    made to need the other's.
    """
    while True:
        inside, ends = _loops_around(placed, bindings, needs, places)
        entered = [(begin, outer) for begin, end in ends.items() for outer in inside[end] - inside[begin]]
        if not entered:
            return _gathered(placed, inside, ends)
        for begin, outer in entered:
            needs[begin].append(outer)
        placed = _by_needs(needs)


def _by_needs(needs: Sequence[Sequence[int]]) -> list[int]:
    """Return a stable topological order."""
    done: list[int] = []
    state = [0] * len(needs)  # 1: what it needs is being placed, 2: placed
    for first in range(len(needs)):
        waiting = [first]
        while waiting:
            place = waiting[-1]
            needed = [p for p in needs[place] if state[p] != 2]
            if state[place] == 2:
                waiting.pop()
            elif not needed:
                state[place] = 2
                done.append(place)
                waiting.pop()
            elif state[place] == 1:
                raise ModelError(
                    "a call needs an extent that is computed from its own result",
                    hint="give the Target that compiles it a larger min_partition_flops, or leave the Target out",
                )
            else:
                state[place] = 1
                waiting += reversed(needed)
    return done


def _needed(binding: Any, places: Mapping[Any, int], values: Mapping[Any, Sequence[Any]]) -> Iterator[int]:
    """Yield the places of the bindings whose values or extents a binding uses."""
    parts = [binding.value, *_extents(binding.var.ty)]
    yield from (places[variable] for variable in nodes_of(binding.value, relax.Var) if variable in places)
    variables = IdentitySet(variable for part in parts for variable in nodes_of(part, tirx.Var))
    scalars = (scalar for variable in variables if variable in values for scalar in values[variable])
    yield from (places[scalar] for scalar in scalars if scalar in places)  # others are inputs


def _extents(ty: Any) -> Iterator[Any]:
    """Yield the extents of a type's tensors."""
    for field in ty.fields if isinstance(ty, relax.TupleType) else [ty]:
        yield from field.shape.values if isinstance(getattr(field, "shape", None), relax.ShapeExpr) else ()


def _loops_around(
    placed: Sequence[int], bindings: Sequence[Any], needs: Sequence[Sequence[int]], places: Mapping[Any, int]
) -> tuple[dict[int, frozenset[int]], dict[int, int]]:
    """Return the loops around each place, by the places of their begins, and the place of the end of each begin."""
    inside: dict[int, frozenset[int]] = {}
    ends: dict[int, int] = {}
    for place in placed:
        callee = called_function(bindings[place].value)
        around = frozenset[int]().union(*(inside[p] for p in needs[place]))
        if isinstance(bindings[place].value, relax.Tuple):  # main's results, with the scalars of extents inside loops
            around = frozenset()
        elif callee == LOOP_BEGIN:
            around |= {place}
        elif callee == LOOP_RESULT:  # a state after the loop, although it has the memory of one inside
            around = inside[places[operands_of(bindings[place].value)[0][0]]]
        elif callee == LOOP_END:
            begin = _begin_of(bindings[place].value, bindings, places)
            ends[begin] = place
            around -= {begin}
        inside[place] = around
    return inside, ends


def _gathered(placed: Sequence[int], inside: Mapping[int, frozenset[int]], ends: Mapping[int, int]) -> list[int]:
    """Return an order in which each loop is one piece."""

    def whole(part: Sequence[int]) -> Iterator[int]:
        """Yield the places of a part of the order, loops first moved together."""
        rest = list(part)
        while rest:
            place = rest.pop(0)
            if place not in ends:
                yield place
                continue
            until = rest.index(ends[place])
            before = [p for p in rest[:until] if place not in inside[p]]
            body = [p for p in rest if place in inside[p]]
            yield from whole(before)
            yield place
            yield from whole(body)
            yield ends[place]
            moved = {*before, *body, ends[place]}
            rest = [p for p in rest if p not in moved]

    return [*whole(placed)]


def _begin_of(end: Any, bindings: Sequence[Any], places: Mapping[Any, int]) -> int:
    """Return the place of the begin of a loop, given its end."""
    place = places[operands_of(end)[0][0]]
    value = bindings[place].value
    return places[value.tuple_value] if isinstance(value, relax.TupleGetItem) else place
