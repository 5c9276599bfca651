"""What a descent has measured of each place, and what of a vector it bears out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packager.deploy.measure.placement.space import Space, Vector
from packager.deploy.measure.statistics import CERTAINTY


@dataclass(frozen=True)
class Measured:
    """The alternatives of one place, the others as in ``vector``: microseconds of a run, and errors of the differences
    to the fastest."""

    place: int
    vector: Vector
    us: tuple[float, ...]
    errors: tuple[float, ...]

    def slower(self, digit: int) -> bool:
        """Whether an alternative is slower than the fastest, beyond the noise."""
        return self.us[digit] - min(self.us) > CERTAINTY * self.errors[digit]


def without_unmeasured(vector: Vector, plan: Vector, space: Space, measured: Mapping[int, Measured]) -> Vector:
    """Return a vector whose functions are as in the plan where no candidates were measured: no record has these."""
    return tuple(
        plan[index] if place.is_function and index not in measured else vector[index]
        for index, place in enumerate(space.places)
    )


def simplified(vector: Vector, plan: Vector, measured: Mapping[int, Measured]) -> Vector:
    """Return a vector without its changes of a plan that gained nothing beyond the noise in the descent."""
    digits = list(vector)
    for index, found in measured.items():
        gain = found.us[plan[index]] - found.us[digits[index]]
        if gain <= CERTAINTY * max(found.errors[plan[index]], found.errors[digits[index]]):
            digits[index] = plan[index]
    return tuple(digits)
