"""Reads what ``packager tune --json`` prints: records, and the times of all alternatives of choices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from packager.bundle import strict_json
from packager.bundle.tuning_records import MeasuredPlacement, Record, Records, make_records
from packager.deploy.measure.placement.result import AlternativeTime


@dataclass(frozen=True)
class Tuned:
    """Records, and the times of alternatives by the problem of their choice."""

    records: Records
    alternatives: dict[str, tuple[AlternativeTime, ...]]


def is_tuned(value: Any) -> bool:
    """Tell the result of ``packager tune --json`` from a file of records."""
    return isinstance(value, dict) and "functions" in value and "placement" in value


def read_tuned(value: Any) -> Tuned:
    """Convert the JSON value. Raises KeyError, TypeError, ValueError if it is no such result."""
    records = [strict_json.read(Record, function["record"]) for function in value["functions"]]
    found = value["placement"]
    if found is None:
        return Tuned(make_records(records), {})
    placement = {
        "model": found["model"],
        "revision": found["revision"],
        "device": value["device"],
        "threads": found["threads"],
        "choices": {choice["problem"]: choice["chosen"] for choice in found["choices"]},
        "us": found["us"],
        "plans": {plan["name"]: plan["us"] for plan in found["plans"]},
    }
    times = {
        str(choice["problem"]): tuple(strict_json.read(AlternativeTime, way) for way in choice["alternatives"])
        for choice in found["choices"]
    }
    return Tuned(make_records(records, [strict_json.read(MeasuredPlacement, placement)]), times)
