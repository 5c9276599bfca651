"""What a load of a server has shown, and its thresholds."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.harness.measure import Report, Spread, Threshold, make_parser

GROWTH_MIB = 4.0
"""More memory than that at the end of a load, beside the end of its first quarter, is a leak."""
RATIO = 1.1
"""A request takes at most so many times what the bare session and the server's own work take together."""


def parser_of(name: str, description: str, *, rounds: int) -> argparse.ArgumentParser:
    """Return a parser of what loads of servers have in common; each has its own number of ``rounds`` of latency."""
    parser = make_parser(name, description)
    parser.add_argument("--seconds", type=float, default=60.0, help="of load for each model; default: 60")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"of latency; default: {rounds}")
    parser.add_argument("--models", nargs="+", default=["digits", "resnet50"])
    return parser


@dataclass(frozen=True)
class Load:
    """Requests of a load and what was wrong with them, and the server's resident memory, once a second."""

    seconds: float
    requests: int
    errors: int
    resident_mib: Sequence[float]

    @property
    def growth_mib(self) -> float:
        """How much larger the memory of the last quarter is than that of the second, when all has been allocated."""
        quarter = max(1, len(self.resident_mib) // 4)
        return float(np.median(self.resident_mib[-quarter:]) - np.median(self.resident_mib[quarter : 2 * quarter]))


@dataclass(frozen=True)
class Latency:
    """Microseconds of a request alone: through the server, of the bare session, and of the server without a model.

    A sample is the median of a turn; the three took turns.
    """

    request: Spread
    bare: Spread
    own: Spread
    above: Spread  # the two others together, of each round
    ratio: Spread

    @classmethod
    def of(cls, rounds: Sequence[tuple[float, float, float]]) -> Latency:
        """Summarize rounds of (request, bare, own), in microseconds. Raises ValueError without any."""
        requests, bares, owns = (list(column) for column in zip(*rounds, strict=True))
        above = [request - bare - own for request, bare, own in rounds]
        ratios = [request / (bare + own) for request, bare, own in rounds]
        return cls(*map(Spread.of, (requests, bares, owns, above, ratios)))


def thresholds(name: str, load: Load, latency: Latency, least_us: float) -> list[Threshold]:
    """Return what the load of a model has to keep; ``least_us`` more than bare session and server is no miss, which
    is what it takes to hand a request on: small models take less than that themselves.
    """
    most_us = max(least_us, (RATIO - 1) * (latency.bare.median + latency.own.median))
    return [
        Threshold(f"{name}: errors", load.errors, 1, ""),
        Threshold(f"{name}: growth of memory", load.growth_mib, GROWTH_MIB, "MiB"),
        Threshold(f"{name}: latency above bare session and server", latency.above.median, most_us, "us"),
    ]


HEADER = ("model", "requests", "a second", "errors", "memory, MiB", "growth, MiB", "request, us", "bare session, us",
          "server's own, us", "ratio")  # fmt: skip


def row(name: str, load: Load, latency: Latency) -> tuple[str, ...]:
    """Return a line of the table."""
    return (
        name,
        f"{load.requests:,}",
        f"{load.requests / load.seconds:,.0f}",
        str(load.errors),
        f"{load.resident_mib[-1]:.0f}",
        f"{load.growth_mib:.2f}",
        *(f"{spread.median:,.1f}" for spread in (latency.request, latency.bare, latency.own)),
        f"{latency.ratio.median:.2f} ({latency.ratio.low:.2f} to {latency.ratio.high:.2f})",
    )


def make_report(
    title: str, found: Mapping[str, tuple[Load, Latency]], least_us: float, note: str, packages: tuple[str, ...] = ()
) -> Report:
    """Return what was found of each model, with its thresholds."""
    return Report(
        title=title,
        header=HEADER,
        rows=[row(name, *each) for name, each in found.items()],
        figures={name: {"load": load, "latency_us": latency} for name, (load, latency) in found.items()},
        thresholds=[each for name, pair in found.items() for each in thresholds(name, *pair, least_us)],
        notes=[note],
        packages=packages,
    )
