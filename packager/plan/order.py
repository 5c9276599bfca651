"""Orders the bindings of ``main`` so that each run-time extent is read before a call needs it.

No Relax expression says that a shape variable has its value from a scalar, so passes may move calls ahead of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tvm import relax, tirx

from packager.errors import ModelError
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import nodes_of

Item = TypeVar("Item")


def order(items: Sequence[tuple[Any, Item]], values: Mapping[Any, Any]) -> list[tuple[Any, Item]]:
    """Return (binding, item) pairs in an order that respects ``values``: shape variable -> the scalar's variable.

    Pairs stay in their order where nothing demands another. Raises ModelError if there is no such order.
    """
    if not values:
        return [*items]
    places = IdentityMap((binding.var, place) for place, (binding, _) in enumerate(items))
    done: list[int] = []
    state = [0] * len(items)  # 1: what it needs is being placed, 2: placed
    for first in range(len(items)):
        waiting = [first]
        while waiting:
            place = waiting[-1]
            if state[place] == 2:
                waiting.pop()
                continue
            needed = [p for p in _needed(items[place][0], places, values) if state[p] != 2]
            if not needed:
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
    return [items[place] for place in done]


def _needed(binding: Any, places: Mapping[Any, int], values: Mapping[Any, Any]) -> Iterator[int]:
    """Yield the places of the bindings whose values or extents a binding uses."""
    parts = [binding.value, *_types(binding.var.ty)]
    yield from (places[variable] for variable in nodes_of(binding.value, relax.Var) if variable in places)
    variables = IdentitySet(variable for part in parts for variable in nodes_of(part, tirx.Var))
    yield from (places[values[variable]] for variable in variables if variable in values)


def _types(ty: Any) -> Iterator[Any]:
    """Yield the extents of a type's tensors."""
    for field in ty.fields if isinstance(ty, relax.TupleType) else [ty]:
        yield from field.shape.values if isinstance(getattr(field, "shape", None), relax.ShapeExpr) else ()
