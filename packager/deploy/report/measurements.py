"""The times of a bundle's calls, measured now or read from files of ``packager bench``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packager.bundle import strict_json
from packager.bundle.strict_json import MismatchError
from packager.deploy.measure.profile import Profile
from packager.errors import UsageError

_HINT = "write one with packager bench BUNDLE --profile-json FILE, or --profile --json"


RUNS, WARMUP = 30, 3
"""A page shows medians alone, which so many runs give: it is there sooner than what ``packager bench`` measures."""


@dataclass(frozen=True)
class Slice:
    """A call of one run: its symbol, start and duration in microseconds."""

    symbol: str
    start: float
    us: float


@dataclass(frozen=True)
class Measurement:
    """Microseconds per run of each symbol, and the calls of the median run.

    ``about`` says what was measured; ``median_ms`` is of whole runs that were not profiled, if known.
    """

    about: str
    median_ms: float | None
    total_us: float
    times: dict[str, float]
    slices: tuple[Slice, ...]


@dataclass(frozen=True)
class Roof:
    """The peak rates of a machine, as far as they are given."""

    gflops_per_second: float | None = None
    gb_per_second: float | None = None

    def attainable(self, flops: int, nbytes: int) -> float | None:
        """Return the microseconds that the work takes at least; None without a peak that bounds it."""
        bounds = [
            work / peak / 1e3
            for work, peak in ((flops, self.gflops_per_second), (nbytes, self.gb_per_second))
            if peak and work
        ]
        return max(bounds, default=None)


def measure(path: Path, *, threads: int, device: int, libraries: Sequence[str | Path] | None = None) -> Measurement:
    """Run a bundle on random inputs, and profile its calls. Raises UsageError, RunError."""
    from packager.deploy.measure.bench import bench

    found = bench(path, RUNS, WARMUP, threads, device=device, libraries=libraries, profile=True)
    assert found.profile is not None
    where = found.cuda.name if found.cuda else "1 thread" if found.threads == 1 else f"{found.threads} threads"
    return of_profile(found.profile, f"{found.runs} runs, {where}", found.median_ms)


def of_profile(profile: Profile, about: str, median_ms: float | None) -> Measurement:
    """Return the times of a profile."""
    return Measurement(
        about,
        median_ms,
        profile.total_us,
        {item.symbol: item.us for item in profile.primitives},
        tuple(Slice(*item) for item in profile.trace),
    )


def read_measurement(path: Path) -> Measurement:
    """Read a profile, alone or in the result of ``packager bench --json``. Raises UsageError."""
    try:
        value = strict_json.parse(path.read_bytes())
        return _measurement(value, path.name)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=_HINT) from None
    except (MismatchError, KeyError, TypeError, ValueError):
        raise UsageError(f"{path} is no profile of packager bench", hint=_HINT) from None


def _measurement(value: Any, name: str) -> Measurement:
    profile = value.get("profile", value)
    slices = tuple(Slice(str(symbol), float(start), float(us)) for symbol, start, us in profile["trace"])
    return Measurement(
        f"{int(profile['runs'])} runs, {name}",
        float(value["median_ms"]) if "median_ms" in value else None,
        float(profile["total_us"]),
        {str(item["symbol"]): float(item["us"]) for item in profile["primitives"]},
        slices,
    )
