"""Select the candidates that a bundle ships: top-ranked by the cost model, or the tuned ones."""

from __future__ import annotations

from collections.abc import Sequence

from packager.backends.cutlass.core.drafts import Candidate, GroupDraft, Ranking
from packager.bundle.tuning_records import Record, Records

Shipping = dict[str, tuple[Candidate, ...]]


def ship(groups: Sequence[GroupDraft], count: int, records: Records, revision: str) -> tuple[Shipping, tuple[str, ...]]:
    """Select candidates by symbol, and return warnings about records.

    A problem with tuning records gets the winner on each device, others their first ``count`` candidates.
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
