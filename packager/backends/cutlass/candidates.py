"""Which candidates of a problem a bundle ships: those that rank first, or what was measured to be the fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packager.backends.cutlass.core.drafts import Candidate, FunctionDraft, GroupDraft, Ranking
from packager.bundle.tuning_records import Record, Records


@dataclass(frozen=True)
class Shipping:
    """The candidates of each function, by symbol, the one to use first; and what is to be said of the records."""

    candidates: Mapping[str, tuple[Candidate, ...]]
    warnings: tuple[str, ...]

    def of(self, draft: FunctionDraft) -> tuple[Candidate, ...]:
        """Return the candidates of a function."""
        return self.candidates[draft.symbol]


def ship(groups: Sequence[GroupDraft], count: int, records: Records, revision: str) -> Shipping:
    """Choose for all functions: of a problem that was measured the winner on each device, of others ``count``."""
    by_problem: dict[str, list[Record]] = {}
    for record in records.records:
        by_problem.setdefault(record.problem, []).append(record)
    found: dict[str, tuple[Candidate, ...]] = {}
    stale: set[str] = set()
    for draft in (draft for group in groups for draft in group.functions):
        measured = by_problem.get(draft.ranking.problem, [])
        winners = _winners(draft.ranking, [record for record in measured if record.revision == revision])
        if measured and not winners:
            stale.add(draft.ranking.problem)
        found[draft.symbol] = winners or draft.ranking.candidates[:count]
    warnings = [f"{problem}: its tuning records are of other kernels, and are ignored" for problem in sorted(stale)]
    return Shipping(found, tuple(warnings))


def _winners(ranking: Ranking, records: Sequence[Record]) -> tuple[Candidate, ...]:
    """Return what records choose; a bundle for more kinds of GPUs knows a kernel as a part of a candidate."""
    chosen = [set(record.chosen.split("+")) for record in records]
    found = [
        next((c for c in ranking.candidates if kernels & {choice.kernel.name for choice in c.choices}), None)
        for kernels in chosen
    ]
    return tuple(dict.fromkeys(candidate for candidate in found if candidate is not None))
