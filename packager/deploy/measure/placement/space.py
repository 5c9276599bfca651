"""The combinations that a trial bundle can run: a digit for each of its choices and functions with candidates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

Vector = tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """A digit of a vector: a choice of the placement, or a function with candidates (``is_function``)."""

    name: str
    alternatives: tuple[str, ...]
    is_function: bool = False


@dataclass(frozen=True)
class Plan:
    """A vector that is known without a search: that of a single backend, or of an order of precedence."""

    name: str
    vector: Vector


@dataclass(frozen=True)
class Space:
    """All vectors: choices in the order of the run, then functions. The first plan is the reference of all times.

    ``now`` is what the bundle runs before it is measured.
    """

    places: tuple[Place, ...]
    plans: tuple[Plan, ...]
    now: Vector = ()

    def __post_init__(self) -> None:
        if not self.plans:
            raise ValueError("a search needs a plan to start from")
        for plan in self.plans:
            if len(plan.vector) != len(self.places) or any(
                not 0 <= digit < len(place.alternatives) for digit, place in zip(plan.vector, self.places, strict=True)
            ):
                raise ValueError(f"plan {plan.name!r} is no vector of the space")

    @property
    def size(self) -> int:
        """The number of vectors."""
        return math.prod(len(place.alternatives) for place in self.places)

    def selection(self, vector: Vector) -> Mapping[str, str]:
        """Return the names that a session takes: place -> alternative."""
        return {place.name: place.alternatives[digit] for place, digit in zip(self.places, vector, strict=True)}
