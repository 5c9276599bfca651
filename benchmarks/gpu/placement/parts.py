"""What the parts of a trial take: each region with each alternative, and what is outside of all regions.

Times are of single calls in a profile, so their sum is longer than a run, whose graph overlaps calls. Sums compare with
each other: no placement makes less of it than ``floor_us``, the rest and the fastest alternative of each region.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from packager.bundle.manifest import Manifest
from packager.deploy.measure.placement.sessions import calls_of, owners_of

PROFILES = 9
# Bytes and operations of half precision a microsecond, of the data sheets of SXM modules.
RATES = {"H200": (4.8e6, 989e6), "H100": (3.35e6, 989e6)}


def measure_parts(
    bundle: Any, path: Path, inputs: Mapping[str, Any], functions: Mapping[str, str], device: str
) -> dict[str, Any]:
    """Return microseconds of each choice with each alternative, of the rest, and of each plan as a sum of both.

    ``functions`` are the candidates of functions. ``bound_us`` is what memory and tensor cores allow by the data sheet,
    for the alternative that allows least time.
    """
    manifest = bundle.manifest
    choices = manifest.choices
    calls = calls_of(path)
    work = _bounds(manifest, device)
    us: list[dict[str, float]] = [{} for _ in choices]
    bounds: list[dict[str, float]] = [{} for _ in choices]
    rests, rest_bounds = [], []
    for number in range(max(len(choice.alternatives) for choice in choices)):
        ways = [choice.alternatives[min(number, len(choice.alternatives) - 1)].name for choice in choices]
        selection = {choice.name: way for choice, way in zip(choices, ways, strict=True)}
        owners = owners_of(manifest, calls, selection)
        with bundle.session(graph="off" if bundle.on_cuda else "auto", selection={**functions, **selection}) as session:
            session.profile(inputs)
            runs = [session.profile(inputs) for _ in range(PROFILES)]
        if len(owners) != len(runs[0]):
            raise ValueError(f"a run makes {len(runs[0])} calls, and not the {len(owners)} of the call graph")
        times = np.median([[step.duration_ns / 1e3 for step in run] for run in runs], axis=0)
        least = [work.get(step.symbol, 0.0) for step in runs[0]]
        sums, least_sums = np.zeros(len(choices) + 1), np.zeros(len(choices) + 1)
        np.add.at(sums, owners, times)
        np.add.at(least_sums, owners, least)
        for index, way in enumerate(ways):
            us[index].setdefault(way, round(float(sums[index]), 2))
            bounds[index].setdefault(way, round(float(least_sums[index]), 2))
        rests.append(float(sums[-1]))
        rest_bounds.append(float(least_sums[-1]))
    rest = float(np.median(rests))
    plans = {
        plan.name: [choice.alternatives[digit].name for choice, digit in zip(choices, plan.digits, strict=True)]
        for plan in (manifest.placement.plans if manifest.placement else ())
    }
    sums_of_plans = {
        name: rest + sum(times[way] for times, way in zip(us, ways, strict=True)) for name, ways in plans.items()
    }
    return {
        "rest_us": round(rest, 2),
        "rest_bound_us": round(float(np.median(rest_bounds)), 2),
        "floor_us": round(rest + sum(min(times.values()) for times in us), 2),
        "plans_us": {name: round(total, 2) for name, total in sums_of_plans.items()},
        "plans": plans,
        "choices": [
            {"name": c.name, "problem": c.problem, "regions": len(c.regions), "us": u, "bound_us": min(b.values())}
            for c, u, b in zip(choices, us, bounds, strict=True)
        ],
    }


def _bounds(manifest: Manifest, device: str) -> dict[str, float]:
    """Return symbol -> the least microseconds of a call by the data sheet; empty for other devices."""
    rates = next((rates for name, rates in RATES.items() if name in device), None)
    if rates is None:
        return {}
    moved, flops = rates
    return {
        item.symbol: max((item.bytes_read + item.bytes_written) / moved, item.flops / flops)
        for _, item in manifest.primitives()
    }
