"""``packager tune``: measures candidates and alternatives of a bundle on the machine that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packager.bundle.tuning_records import Records, make_records
from packager.deploy.load.loader import load
from packager.deploy.measure.candidates import Tuned, tunable, tune_candidates
from packager.deploy.measure.placement.effort import Effort
from packager.deploy.measure.placement.result import PlacementResult
from packager.deploy.measure.placement.trial import measure_placement, placement_record
from packager.deploy.measure.turns import open_turns
from packager.errors import UsageError
from packager.progress import Receiver, received, report


@dataclass(frozen=True)
class TuneResult:
    """Microseconds of a run before and after, in turns at the end, the measurements of each function, and, of a bundle
    with choices, of its placement."""

    path: str
    device: str
    before_us: float
    after_us: float
    functions: tuple[Tuned, ...]
    placement: PlacementResult | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value of ``packager tune --json``."""
        placement = None if self.placement is None else self.placement.to_json()
        return {"schema_version": 1} | asdict(self) | {"placement": placement}

    @property
    def records(self) -> Records:
        """Return the tuning records for later builds."""
        placements = [] if self.placement is None else [placement_record(self.placement, self.device)]
        return make_records((function.record for function in self.functions), placements)

    @property
    def selection(self) -> dict[str, str]:
        """Return what was chosen: symbol -> candidate, and name of a choice -> alternative."""
        choices = self.placement.choices if self.placement else ()
        chosen = {function.symbol: function.record.chosen for function in self.functions}
        return chosen | {choice.name: choice.chosen for choice in choices}


def tune(
    path: str | Path,
    *,
    rounds: int = 30,
    seed: int = 0,
    threads: int = 0,
    device: int = 0,
    libraries: Sequence[str | Path] | None = None,
    seconds: float | None = None,
    journal: Path | None = None,
    progress: Receiver | None = None,
) -> TuneResult:
    """Measure all candidates and alternatives of a bundle with random inputs and symbolic dims at their maxima.

    Each gets ``rounds`` turns of at least ``TURN_MS``; ``seconds`` bounds the time. Of a bundle with choices,
    ``journal`` keeps what was measured when it is interrupted. ``progress`` gets events about what runs;
    ``libraries`` is as in ``packager.load``.
    Raises UsageError if there is nothing to choose, or for a journal of something else; BundleError, RunError.
    """
    if rounds < 3:
        raise UsageError(f"rounds must be at least 3, is {rounds}")
    with received(progress), load(path, threads=threads, device=device, libraries=libraries) as bundle:
        if not tunable(bundle.manifest) and not bundle.manifest.choices:
            raise UsageError(
                f"{path} has one candidate per function: there is nothing to tune",
                hint="build it with --place trial, or with a Target that includes several, such as "
                "'cutlass -candidates=3'",
            )
        with open_turns(bundle, seed=seed, device=device, threads=max(threads, 1)) as turns:
            if bundle.manifest.choices:
                effort = Effort(rounds=rounds, final_rounds=2 * rounds, seconds=seconds, seed=seed)
                placement, tuned = measure_placement(turns, effort, threads=max(threads, 1), journal=journal)
                return TuneResult(
                    str(path), turns.clock.name, placement.before_us, placement.us, tuned, placement=placement
                )
            tuned = tune_candidates(turns, rounds, seconds)
            chosen = {function.symbol: function.record.chosen for function in tuned}
            report("comparing the fastest with those in use")
            before, after = turns.compare([{}, chosen], rounds).mean(axis=0)
        return TuneResult(str(path), turns.clock.name, float(before), float(after), tuned)
