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
from packager.graph.control_flow import LOOP_BEGIN, LOOP_END, LOOP_RESULT, is_control_flow, operands_of
from packager.graph.dataflow import called_function
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import nodes_of
from packager.ir.model import ModelSignature

Item = TypeVar("Item")


class Reads:
    """When the run-time extents of an entry are read: after their scalars are computed, and before one is needed.

    ``variables`` are the shape variables of the extents, and ``scalars`` the Relax variables of their values. One
    scalar may be that of several extents. What is computed in a branch is read when it is known whether that is taken.
    """

    def __init__(self, entry: ModelSignature, variables: Sequence[Any], scalars: Sequence[Any]) -> None:
        numbers = {extent.name: number for number, extent in enumerate(entry.extents)}
        self.scalars = scalars
        self.branches = [[numbers[name] for name, _ in entry.branches.get(e.node, ())] for e in entry.extents]
        self.conditions = {numbers[name] for branch in entry.branches.values() for name, _ in branch}
        self.waiting = list(range(len(scalars)))
        self.found: list[int] = []  # can be read now
        self.numbers = IdentityMap((variable, number) for number, variable in enumerate(variables))
        self.needed: IdentityMap[list[Any]] = IdentityMap()  # shape variable -> the scalars that it waits for
        for number, variable in enumerate(variables):
            self.needed[variable] = [scalars[other] for other in self._before(number)]

    def _before(self, number: int) -> set[int]:
        """Return the extents that are read before an extent, and itself."""
        return {number}.union(*(self._before(other) for other in self.branches[number]))

    def find(self, values: Mapping[Any, Any]) -> None:
        """Find the extents that can be read now; ``values`` are those computed."""
        found = True
        while found:
            ready = [n for n in self.waiting if self.scalars[n] in values and not {*self.branches[n]} & {*self.waiting}]
            found = bool(ready)
            self.found += ready
            self.waiting = [number for number in self.waiting if number not in ready]

    def must_be_done(self, binding: Any) -> bool:
        """Tell whether extents that were found have to be read before a binding is evaluated."""
        # A condition decides which calls are left out; a loop is entered and left with all that was found.
        if is_control_flow(binding.value) or self.conditions.intersection(self.found):
            return bool(self.found)
        return any(self.numbers[v] in self.found for v in _variables(binding) if v in self.numbers)

    def take(self) -> list[int]:
        """Return the numbers of the extents that were found since, in an order in which they can be read."""
        taken, self.found = self.found, []
        return taken


def order(
    items: Sequence[tuple[Any, Item]], values: Mapping[Any, Sequence[Any]], waves: bool = False
) -> list[tuple[Any, Item]]:
    """Return (binding, item) pairs in an order that respects ``values``: shape variable -> the variables of scalars.

    Pairs stay in their order where nothing demands another. With ``waves`` those come first that need no scalar, then
    those that need scalars of the first, and so on, so that few groups of scalars are read; but loops stay together.
    Raises ModelError if there is no such order.
    """
    loops = any(called_function(binding.value) == LOOP_BEGIN for binding, _ in items)
    if not values and not loops:
        return [*items]
    places = IdentityMap((binding.var, place) for place, (binding, _) in enumerate(items))
    needs = [[*_needed(binding, places, values)] for binding, _ in items]
    placed = _by_needs(needs)
    if waves and not loops:
        placed = _in_waves(placed, needs, [{*_scalars(binding, places, values)} for binding, _ in items])
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
    yield from (places[variable] for variable in nodes_of(binding.value, relax.Var) if variable in places)
    yield from _scalars(binding, places, values)


def _scalars(binding: Any, places: Mapping[Any, int], values: Mapping[Any, Sequence[Any]]) -> Iterator[int]:
    """Yield the places of the scalars that a binding's extents have their values from."""
    scalars = (scalar for variable in _variables(binding) if variable in values for scalar in values[variable])
    yield from (places[scalar] for scalar in scalars if scalar in places)  # others are inputs


def _in_waves(placed: Sequence[int], needs: Sequence[Sequence[int]], scalars: Sequence[set[int]]) -> list[int]:
    """Return an order by the number of reads, one after the other, that a binding waits for."""
    wave: dict[int, int] = {}
    for place in placed:
        wave[place] = max((wave[other] + (other in scalars[place]) for other in needs[place]), default=0)
    return sorted(placed, key=lambda place: wave[place])


def _variables(binding: Any) -> IdentitySet:
    """Return the shape variables that a binding uses."""
    parts = [binding.value, *_extents(binding.var.ty)]
    return IdentitySet(variable for part in parts for variable in nodes_of(part, tirx.Var))


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
