"""Selects candidates of primitive functions and alternatives of regions: for one session, or in a resealed copy."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO

from packager.bundle.isa.cpu import this_cpu
from packager.bundle.manifest import SELECTION_SECTION, Manifest
from packager.bundle.reader import inspect
from packager.bundle.section import write_manifest
from packager.bundle.tuning_records import Records, chosen_alternatives, find_placement, measured_on
from packager.errors import UsageError, valid_names


def choose(manifest: Manifest, wanted: Mapping[str, str]) -> Manifest:
    """Return a manifest that uses what ``wanted`` names.

    Its keys are symbols of functions with candidates, and names of choices, which have alternatives. Raises UsageError.
    """
    names = {choice.name: [way.name for way in choice.alternatives] for choice in manifest.choices}
    names |= {entry.symbol: list(entry.candidates) for entry in manifest.selection}
    chosen: dict[str, int] = {}
    for key, candidate in wanted.items():
        if key not in names:
            hint = valid_names(key, sorted(names), "names") if names else "the bundle has no candidates"
            raise UsageError(f"selection: there are no candidates for {key!r}", hint=hint)
        if candidate not in names[key]:
            hint = valid_names(candidate, names[key], "candidates")
            raise UsageError(f"selection: {key} has no candidate {candidate!r}", hint=hint)
        chosen[key] = names[key].index(candidate)
    selection = tuple(replace(entry, chosen=chosen.get(entry.symbol, entry.chosen)) for entry in manifest.selection)
    choices = tuple(replace(choice, chosen=chosen.get(choice.name, choice.chosen)) for choice in manifest.choices)
    placement = manifest.placement and replace(manifest.placement, choices=choices)
    return replace(manifest, selection=selection, placement=placement)


def by_records(manifest: Manifest, records: Records, threads: int = 0) -> dict[str, str]:
    """Return what tuning records choose: symbol -> candidate, and name of a choice -> alternative.

    Of several placements, takes that of this CPU, and the one for ``threads``. Raises UsageError if no record matches
    the bundle's problems and revisions, or if they are for several devices.
    """
    placed = _placed(manifest, records, threads) if manifest.choices else {}
    fitting = {(entry.problem, entry.revision) for entry in manifest.selection}
    found = [record for record in records.records if (record.problem, record.revision) in fitting]
    devices = sorted({record.device for record in found})
    if len(devices) != 1 and not (placed and not devices):
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
    return chosen | placed


def _placed(manifest: Manifest, records: Records, threads: int) -> dict[str, str]:
    """Return what placements choose: where there are several, that of this machine's CPU."""
    assert manifest.placement is not None
    here = this_cpu().name if manifest.requirements.cuda is None else None
    of_model = [placement for placement in records.placements if placement.model == manifest.placement.model]
    device = here if here in {placement.device for placement in of_model} else None
    numbers = {placement.threads for placement in of_model}
    fitting = measured_on(records, device, threads if threads in numbers else None)
    placement = find_placement(fitting, manifest.placement.model, placement_revision(manifest))
    problems = {choice.problem: [way.name for way in choice.alternatives] for choice in manifest.choices}
    chosen = chosen_alternatives(placement, problems)
    return {choice.name: chosen[choice.problem] for choice in manifest.choices}


def foreign(manifest: Manifest, records: Records) -> str | None:
    """Return what to know of a placement that was measured on another CPU than this machine's, or None."""
    if not manifest.choices or manifest.requirements.cuda is not None:
        return None
    model = manifest.placement.model if manifest.placement else None
    measured = sorted({placement.device for placement in records.placements if placement.model == model})
    here = this_cpu().name
    if not measured or here in measured:
        return None
    return f"the placement was measured on {', '.join(measured)}; this is {here}, where another may be faster"


def placement_revision(manifest: Manifest) -> str:
    """Return the revision of the code that the choices of a bundle were built by."""
    return ", ".join(dict.fromkeys(choice.revision for choice in manifest.choices))


def write_selected(path: str | Path, stream: IO[bytes], wanted: Mapping[str, str]) -> Manifest:
    """Write a resealed copy of a bundle that uses the candidates of ``wanted``; return its manifest.

    Nothing else changes, and no compiler is needed. Raises BundleError if the bundle is damaged, UsageError for unknown
    names.
    """
    bundle = inspect(path)
    manifest = choose(bundle.manifest, wanted)
    with Path(path).open("rb") as original:
        shutil.copyfileobj(original, stream)
    if digits := manifest.digits():
        stream.seek(bundle.elf.sections[SELECTION_SECTION].offset)
        stream.write(digits)
    stream.flush()
    return write_manifest(Path(stream.name), manifest, bundle.section.offset, bundle.section.size)
