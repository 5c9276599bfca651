"""``packager tune``: measures the alternatives of a bundle on the machine that runs it: candidates of its functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packager.bundle.tuning_records import Records, make_records
from packager.deploy.load.loader import load
from packager.deploy.measure.candidates import Tuned, tunable, tune_candidates
from packager.deploy.measure.turns import open_turns
from packager.errors import UsageError


@dataclass(frozen=True)
class TuneResult:
    """Microseconds of a run before and after, interleaved at the end, and the measurements of each function."""

    path: str
    device: str
    before_us: float
    after_us: float
    functions: tuple[Tuned, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value of ``packager tune --json``."""
        return {"schema_version": 1} | asdict(self)

    @property
    def records(self) -> Records:
        """Return the tuning records for later builds."""
        return make_records(function.record for function in self.functions)

    @property
    def selection(self) -> dict[str, str]:
        """Return symbol -> chosen candidate."""
        return {function.symbol: function.record.chosen for function in self.functions}


def tune(
    path: str | Path,
    *,
    rounds: int = 30,
    seed: int = 0,
    threads: int = 0,
    device: int = 0,
    seconds: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> TuneResult:
    """Measure all candidates of a bundle with random inputs and symbolic dims at their maxima.

    Each candidate gets ``rounds`` turns of at least ``TURN_MS``. ``progress`` is called with a line per function.
    Raises UsageError if no function has several candidates; BundleError, RunError.
    """
    if rounds < 3:
        raise UsageError(f"rounds must be at least 3, is {rounds}")
    with load(path, threads=threads, device=device) as bundle:
        if not tunable(bundle.manifest):
            raise UsageError(
                f"{path} has one candidate per function: there is nothing to tune",
                hint="build it with a Target that includes several, such as 'cutlass -candidates=3'",
            )
        with open_turns(bundle, seed=seed, device=device) as turns:
            tuned = tune_candidates(turns, rounds, seconds, progress)
            chosen = {function.symbol: function.record.chosen for function in tuned}
            before, after = turns.compare([{}, chosen], rounds).mean(axis=0)
        return TuneResult(str(path), turns.clock.name, float(before), float(after), tuned)
