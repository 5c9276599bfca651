"""What measuring a placement has found: times of alternatives and plans, and what was chosen."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class AlternativeTime:
    """How many microseconds a run takes longer than with the fastest alternative of the choice, the others as the
    descent had them, and the standard error of that; None where there was no time to measure it."""

    name: str
    slower_us: float | None
    error_us: float | None


@dataclass(frozen=True)
class ChoiceTimes:
    """A choice: its alternatives, the fastest first, which of them the fastest placement takes, and which the greedy.

    The chosen one need not be the first: beside other neighbors it may be faster.
    """

    name: str
    problem: str
    regions: int
    chosen: str
    greedy: str
    alternatives: tuple[AlternativeTime, ...]

    @property
    def second_us(self) -> float | None:
        """Microseconds that a run loses with the best other alternative; None if it was not measured."""
        slower = {alternative.name: alternative.slower_us for alternative in self.alternatives}
        mine = slower.pop(self.chosen)
        others = [us for us in slower.values() if us is not None]
        return None if mine is None or not others else min(others) - mine


@dataclass(frozen=True)
class PlanTime:
    """Microseconds of a run of a plan, in the final; ``single``: it uses one backend beside the code generator.

    ``ratio`` has the quartiles of its turns over those of the fastest placement, None if it was too slow for the final.
    """

    name: str
    us: float
    single: bool
    ratio: tuple[float, float] | None = None


@dataclass(frozen=True)
class PlacementResult:
    """The fastest placement: microseconds of a run, of the bundle's selection before, and of all plans (the greedy one
    first), measured in turns.

    ``plan`` is the plan that it is, None if the search found it. ``vectors`` is the number of combinations measured.
    """

    model: str
    revision: str
    threads: int
    choices: tuple[ChoiceTimes, ...]
    before_us: float
    us: float
    plan: str | None
    plans: tuple[PlanTime, ...]
    vectors: int
    warnings: tuple[str, ...]

    @property
    def greedy(self) -> PlanTime:
        """The plan of a build without ``--place``."""
        return self.plans[0]

    @property
    def best_single(self) -> PlanTime | None:
        """The fastest plan of one backend beside the code generator."""
        return min((plan for plan in self.plans if plan.single), key=lambda plan: plan.us, default=None)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value, with what follows from the times: ``greedy``, ``best_single``, losses and gains."""
        best = self.best_single
        value = asdict(self) | {"greedy": self.greedy.name, "best_single": None if best is None else best.name}
        value["gain_over_greedy"] = self.greedy.us / self.us
        value["gain_over_best_single"] = None if best is None else best.us / self.us
        for choice, found in zip(self.choices, value["choices"], strict=True):
            found["second_us"] = choice.second_us
        return value
