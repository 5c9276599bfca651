"""Select the candidates that a bundle ships: top-ranked by the cost model, or the tuned ones.

Where each problem gets one kernel, problems share those that are about as fast: each takes half a minute to compile.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from packager.backends.cutlass.core.drafts import Candidate, GroupDraft, Ranking
from packager.bundle.tuning_records import Record, Records

Shipping = dict[str, tuple[Candidate, ...]]

# The share of a run's estimated time that a kernel must save. Of ten models of 12 to 30 kernels a fifth to a third is
# saved, and estimates grow by 0.2 to 0.7 %, which is less than their error.
WORTH = 0.002


def ship(
    groups: Sequence[GroupDraft], count: int, records: Records, revision: str, calls: Mapping[str, int]
) -> tuple[Shipping, tuple[str, ...]]:
    """Select candidates by symbol, and return warnings about records.

    A problem with tuning records gets the winner on each device, others their first ``count`` candidates; if that is
    one, another if it saves a kernel that is not worth its compilation. ``calls`` are how often each group is called.
    """
    by_problem: dict[str, list[Record]] = {}
    for record in records.records:
        by_problem.setdefault(record.problem, []).append(record)
    found: Shipping = {}
    stale: set[str] = set()
    for draft in (draft for group in groups for draft in group.functions):
        measured = by_problem.get(draft.ranking.problem, [])
        winners = _winners(draft.ranking, [record for record in measured if record.revision == revision])
        if measured and not winners:
            stale.add(draft.ranking.problem)
        found[draft.symbol] = winners or draft.ranking.candidates[:count]
    if count == 1:
        found |= _share(groups, found, calls)
    warnings = [f"{problem}: its tuning records are of other kernels, and are ignored" for problem in sorted(stale)]
    return found, tuple(warnings)


def _winners(ranking: Ranking, records: Sequence[Record]) -> tuple[Candidate, ...]:
    """Return the winners of records; a candidate of a bundle for several GPUs may contain a kernel that won alone."""
    chosen = [set(record.chosen.split("+")) for record in records]
    found = [
        next((c for c in ranking.candidates if kernels & {choice.kernel.name for choice in c.choices}), None)
        for kernels in chosen
    ]
    return tuple(dict.fromkeys(candidate for candidate in found if candidate is not None))


@dataclass(frozen=True)
class _Shared:
    """A problem that may share its kernel: how often it is solved, and the microseconds of each kernel."""

    symbol: str
    calls: int
    times: Mapping[Candidate, float]

    def best(self, kept: Collection[Candidate]) -> Candidate:
        return min(self.times, key=lambda candidate: self.times[candidate] if candidate in kept else math.inf)

    def cost(self, kept: Collection[Candidate]) -> float:
        return self.calls * min((time for each, time in self.times.items() if each in kept), default=math.inf)


def _share(groups: Sequence[GroupDraft], found: Shipping, calls: Mapping[str, int]) -> Shipping:
    """Return what problems with estimates get: of all kernels that are the best of one, those that are worth it.

    Drops the one that saves least, one after the other.
    """
    drafts = [(calls[group.name], draft) for group in groups for draft in group.functions]
    shared = [
        _Shared(draft.symbol, count, dict(zip(draft.ranking.candidates, draft.ranking.estimates, strict=True)))
        for count, draft in drafts
        if draft.ranking.estimates and found[draft.symbol] == draft.ranking.candidates[:1]
    ]
    symbols = {problem.symbol for problem in shared}
    fixed = {each for symbol, candidates in found.items() if symbol not in symbols for each in candidates}
    kept = dict.fromkeys(candidate for candidates in found.values() for candidate in candidates)
    worth = WORTH * sum(problem.cost(kept) for problem in shared)
    while losses := {each: _loss(shared, kept, each) for each in kept if each not in fixed}:
        least = min(losses, key=lambda each: losses[each])
        if losses[least] > worth:
            break
        del kept[least]
    return {problem.symbol: (problem.best(kept),) for problem in shared}


def _loss(shared: Sequence[_Shared], kept: Collection[Candidate], candidate: Candidate) -> float:
    """Return the microseconds that a run takes longer without a candidate."""
    others = [each for each in kept if each != candidate]
    readers = [problem for problem in shared if problem.best(kept) == candidate]
    return sum(problem.cost(others) - problem.cost(kept) for problem in readers)
