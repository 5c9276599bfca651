"""Tables of `packager tune`."""

from __future__ import annotations

from collections.abc import Iterator

from packager.cli.reports.tables import Table, facts
from packager.deploy.measure.candidates import Tuned
from packager.deploy.measure.placement.result import PlacementResult
from packager.deploy.measure.tune import TuneResult


def tune_tables(result: TuneResult) -> list[Table]:
    """Return the tables: each choice's alternatives, each function's candidates, all plans, and the gain."""
    place = f"{result.path} on {result.device}"
    tables = []
    if result.placement is not None:
        columns = ("choice", "regions", "us per run", "", "alternative")  # names of alternatives are long
        tables.append(Table(place, columns, tuple(_choices(result.placement))))
        tables.append(_regions(result.placement))
    if result.functions or result.placement is None:
        columns = ("function", "calls", "candidate", "us per call", "")
        title = "Functions" if tables else place
        tables.append(Table(title, columns, tuple(row for tuned in result.functions for row in _function(tuned))))
    if result.placement is not None:
        return [*tables, _plans(result.placement)]
    before, after = result.before_us, result.after_us
    run = (("before", f"{before:.1f} us"), ("after", f"{after:.1f} us"), ("ratio", f"{before / after:.3f}"))
    return [*tables, facts("A run", *run)]


def _regions(placement: PlacementResult) -> Table:
    """Return the table of what choices are about, and what a run loses with the best alternative but the chosen one."""
    rows = []
    for choice in placement.choices:
        lost = "-" if choice.second_us is None else f"{choice.second_us:+.2f} us"
        rows.append((choice.name, lost, choice.problem))
    return Table("Choices", ("choice", "next best", "region"), tuple(rows))


def _function(tuned: Tuned) -> Iterator[tuple[str, ...]]:
    for index, timing in enumerate(tuned.record.timings):
        first = (tuned.symbol, str(tuned.calls)) if index == 0 else ("", "")
        shown = _marks(timing.candidate, chosen=tuned.record.chosen, before=tuned.before)
        yield (*first, timing.candidate, f"+{timing.slower_us:.2f} +- {timing.error_us:.2f}", shown)


def _choices(placement: PlacementResult) -> Iterator[tuple[str, ...]]:
    for choice in placement.choices:
        for index, way in enumerate(choice.alternatives):
            first = (choice.name, str(choice.regions)) if index == 0 else ("", "")
            measured = "-" if way.slower_us is None else f"+{way.slower_us:.2f} +- {way.error_us:.2f}"
            shown = _marks(way.name, chosen=choice.chosen, greedy=choice.greedy)
            yield (*first, measured, shown, way.name)


def _marks(name: str, **marks: str) -> str:
    return ", ".join(mark for mark, marked in marks.items() if marked == name)


def _plans(placement: PlacementResult) -> Table:
    """Return the table of the final: the winner, and how much longer each plan takes; quartiles are of turns."""
    rows = [("chosen", f"{placement.us:.1f} us", "1.000", "", placement.plan or f"found among {placement.vectors}")]
    for plan in placement.plans:
        marks = {"greedy": placement.greedy, "best of one backend": placement.best_single}
        shown = ", ".join(mark for mark, marked in marks.items() if marked == plan)
        turns = "" if plan.ratio is None else "{:.3f} to {:.3f}".format(*plan.ratio)
        rows.append((plan.name, f"{plan.us:.1f} us", f"{plan.us / placement.us:.3f}", turns, shown))
    threads = f"{placement.threads} thread" + ("s" if placement.threads > 1 else "")
    return Table(f"Plans, {threads}", ("plan", "a run", "ratio", "quartiles", ""), tuple(rows))
