"""Placements of regions on known devices that ship with packager, for builds where nothing can be measured.

A region is known by its pattern, what it computes but for the extents of its tensors, and by these. One whose extents
are all within a factor of two is placed as the nearest known one. Written by ``benchmarks.zoo.ship_placement``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from packager.bundle import strict_json
from packager.bundle.fields import Count, Name
from packager.bundle.strict_json import MismatchError
from packager.errors import UsageError, listed

FOLDER = Path(__file__).with_name("devices")
FACTOR = 2.0
"""How many times as large or small as a measured extent another may be."""


@dataclass(frozen=True)
class ShippedRegion:
    """The fastest alternative of a region; ``problem`` is for people."""

    pattern: Name
    extents: tuple[Count, ...]
    problem: Name
    chosen: Name


@dataclass(frozen=True)
class ShippedDevice:
    """Regions that were measured on a device by trials of Targets of these kinds, with packages of these versions."""

    schema_version: Literal[1]
    device: Name
    threads: Count
    targets: tuple[Name, ...]
    versions: Name
    regions: tuple[ShippedRegion, ...]

    def to_json(self) -> bytes:
        """Encode the file, a line for each region, so that two can be compared."""
        value = asdict(self)
        regions = ",\n".join("  " + json.dumps(region) for region in value.pop("regions"))
        head = ",\n".join(f" {json.dumps(key)}: {json.dumps(item)}" for key, item in value.items())
        return f'{{\n{head},\n "regions": [\n{regions}\n ]\n}}\n'.encode()

    def find(self, pattern: str, extents: Sequence[int], names: Collection[str]) -> tuple[ShippedRegion, float] | None:
        """Return the nearest region of a pattern with one of these alternatives, and how far it is: 0 is the same."""
        near = []
        for region in self.regions:
            if region.pattern == pattern and region.chosen in names and len(region.extents) == len(extents):
                distance = _distance(region.extents, extents)
                if distance is not None:
                    near.append((distance, region))
        distance, found = min(near, key=lambda entry: entry[0], default=(0.0, None))
        return None if found is None else (found, distance)


def _distance(known: Iterable[int], extents: Iterable[int]) -> float | None:
    """Return the sum of the logarithms of all ratios; None if one is beyond FACTOR, or an extent is 0."""
    total = 0.0
    for first, second in zip(known, extents, strict=True):
        if first != second:
            if not min(first, second) or max(first, second) > FACTOR * min(first, second):
                return None
            total += abs(math.log(first / second))
    return total


def find_shipped(device: str | None, threads: int | None, kinds: Collection[str]) -> ShippedDevice:
    """Return what ships for a device, by its name or a part of it, a number of threads, and Targets of these kinds.

    Raises UsageError if that is none, or several.
    """
    known = [_read(path) for path in sorted(FOLDER.glob("*.json"))]
    found = [
        entry
        for entry in known
        if (device or "").lower() in entry.device.lower()
        and threads in (None, entry.threads)
        and {*entry.targets} == {*kinds}
    ]
    if len(found) != 1:
        shown = listed(f"{e.device} with {e.threads} threads for {'+'.join(e.targets)}" for e in found or known)
        raise UsageError(
            f"--place shipped: {'several measurements fit' if found else 'no measurements fit these Targets'}: {shown}",
            hint="choose by --place-device NAME --place-threads N; or measure: docs/placement.md",
        )
    return found[0]


def _read(path: Path) -> ShippedDevice:
    try:
        return strict_json.read(ShippedDevice, strict_json.parse(path.read_bytes()))
    except MismatchError as mismatch:
        raise UsageError(f"{path} is damaged: {mismatch}", hint="install packager again") from None
