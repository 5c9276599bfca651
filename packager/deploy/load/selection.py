"""Selects candidate kernels of primitive functions: for one session, or in a resealed copy of the bundle."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from packager.bundle.manifest import SELECTION_SECTION, Manifest, Selection
from packager.bundle.reader import inspect
from packager.bundle.section import write_manifest
from packager.bundle.tuning_records import Records
from packager.errors import UsageError, valid_names


def choose(manifest: Manifest, wanted: Mapping[str, str]) -> tuple[Selection, ...]:
    """Return the manifest's selection, overridden by ``wanted`` (symbol -> candidate). Raises UsageError."""
    entries = {entry.symbol: entry for entry in manifest.selection}
    for symbol, candidate in wanted.items():
        if symbol not in entries:
            hint = valid_names(symbol, sorted(entries), "names") if entries else "the bundle has no candidates"
            raise UsageError(f"selection: there are no candidates for {symbol!r}", hint=hint)
        names = entries[symbol].candidates
        if candidate not in names:
            hint = valid_names(candidate, names, "candidates")
            raise UsageError(f"selection: {symbol} has no candidate {candidate!r}", hint=hint)
        entries[symbol] = dataclasses.replace(entries[symbol], chosen=names.index(candidate))
    return tuple(entries.values())


def by_records(manifest: Manifest, records: Records) -> dict[str, str]:
    """Return symbol -> candidate as chosen by tuning records, among the bundle's candidates.

    Raises UsageError if no record matches the bundle's problems and revisions, or if they are for several devices.
    """
    fitting = {(entry.problem, entry.revision) for entry in manifest.selection}
    found = [record for record in records.records if (record.problem, record.revision) in fitting]
    devices = sorted({record.device for record in found})
    if len(devices) != 1:
        what = f"are for several devices: {', '.join(devices)}" if devices else "match none of its functions"
        hint = (
            "give the records of one device" if devices else "measure it with packager tune, on the machine it runs on"
        )
        raise UsageError(f"the records {what}", hint=hint)
    recorded = {(record.problem, record.revision): record.timings for record in found}
    chosen: dict[str, str] = {}
    for entry in manifest.selection:
        names = [timing.candidate for timing in recorded.get((entry.problem, entry.revision), ())]
        best = next((name for name in names if name in entry.candidates), None)
        if best is not None:
            chosen[entry.symbol] = best
    return chosen


def write_selected(path: str | Path, stream: IO[bytes], wanted: Mapping[str, str]) -> Manifest:
    """Write a resealed copy of a bundle that uses the candidates of ``wanted``; return its manifest.

    Nothing else changes, and no compiler is needed. Raises BundleError if the bundle is damaged, UsageError for unknown
    names.
    """
    bundle = inspect(path)
    selection = choose(bundle.manifest, wanted)
    with Path(path).open("rb") as original:
        shutil.copyfileobj(original, stream)
    if selection:
        stream.seek(bundle.elf.sections[SELECTION_SECTION].offset)
        stream.write(bytes(entry.chosen for entry in selection))
    stream.flush()
    manifest = dataclasses.replace(bundle.manifest, selection=selection)
    return write_manifest(Path(stream.name), manifest, bundle.section.offset, bundle.section.size)
