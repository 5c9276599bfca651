"""Tuning records (``docs/tuning.md``): what was measured on a GPU or CPU.

A record has the times of a primitive function's candidates; backends read it through their attribute ``tuning``. A
placement has the alternatives of a model's regions that are the fastest together; ``packager build --place`` reads it.
``packager tune`` writes both. Of several with one key the last wins.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from packager.bundle import strict_json
from packager.bundle.fields import Count, Name, Sha256
from packager.bundle.strict_json import MismatchError, Range
from packager.errors import UsageError, listed, valid_names

SCHEMA_VERSION: Literal[1] = 1
Microseconds = Annotated[float, Range(0)]


@dataclass(frozen=True)
class Timing:
    """A candidate and its slowdown in microseconds per call relative to the fastest, which has 0.

    ``error_us`` is the standard error of that difference.
    """

    candidate: Name
    slower_us: Microseconds
    error_us: Microseconds


@dataclass(frozen=True)
class Record:
    """The candidates measured for a problem on a device, the chosen one first.

    The chosen one is the fastest, unless its gain over the previous choice is within the noise.
    """

    problem: Name
    revision: Name
    device: Name
    timings: tuple[Timing, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        """The key by which records are merged."""
        return (self.problem, self.revision, self.device)

    @property
    def chosen(self) -> str:
        """The candidate to use."""
        return self.timings[0].candidate


@dataclass(frozen=True)
class MeasuredPlacement:
    """The fastest placement of a model, whose classes of regions have the hash ``model``, on a device.

    ``choices`` maps the problem of each class to its alternative, ``plans`` what else was measured to microseconds of a
    run; the placement itself takes ``us``.
    """

    model: Sha256
    revision: Name
    device: Name
    threads: Count
    choices: dict[str, str]
    us: Microseconds
    plans: dict[str, Microseconds]

    @property
    def key(self) -> tuple[str, str, str, int]:
        """The key by which placements are merged."""
        return (self.model, self.revision, self.device, self.threads)


@dataclass(frozen=True)
class Records:
    """A file of records."""

    schema_version: Literal[1]
    records: tuple[Record, ...]
    placements: tuple[MeasuredPlacement, ...] = ()

    def to_json(self) -> bytes:
        """Encode the file; without placements as earlier versions did."""
        value = asdict(self)
        for placement in value["placements"]:
            placement["choices"] = dict(sorted(placement["choices"].items()))
        if not self.placements:
            del value["placements"]
        return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def make_records(records: Iterable[Record], placements: Iterable[MeasuredPlacement] = ()) -> Records:
    """Sort records and placements, and merge them by key; the last of each key wins."""
    merged = {record.key: record for record in records}
    placed = {placement.key: placement for placement in placements}
    return Records(
        SCHEMA_VERSION, tuple(merged[key] for key in sorted(merged)), tuple(placed[key] for key in sorted(placed))
    )


def merge_records(files: Iterable[Records]) -> Records:
    """Return the records of several files; of one key the last counts."""
    every = list(files)
    return make_records(
        (record for file in every for record in file.records),
        (placement for file in every for placement in file.placements),
    )


def read_records(paths: Sequence[str | Path]) -> Records:
    """Read and merge files of records. Raises UsageError with the file and the JSON path."""
    return merge_records(_read(Path(path)) for path in paths)


def measured_on(records: Records, device: str | None, threads: int | None) -> Records:
    """Return the records with the placements of one device, by its name or a part of it, and number of threads.

    None takes all. Raises UsageError if nothing is left.
    """
    names = {placement.device for placement in records.placements}
    if device is not None and device not in names:
        names = {name for name in names if device.lower() in name.lower()}
    elif device is not None:
        names = {device}
    found = tuple(p for p in records.placements if p.device in names and threads in (None, p.threads))
    if records.placements and not found:
        wanted = [device or "any device", *([] if threads is None else [_threads(threads)])]
        raise UsageError(
            f"the records hold no placement for {' with '.join(wanted)}: they are for {_places(records.placements)}",
            hint="name one of these, or " + _MEASURE,
        )
    return replace(records, placements=found)


def find_placement(records: Records, model: str, revision: str) -> MeasuredPlacement:
    """Return the placement of a model's classes of regions, measured with code of this revision.

    Raises UsageError if there is none, or only of another revision, or several.
    """
    if not records.placements:
        raise UsageError("the records hold no placement", hint=_MEASURE)
    same = [placement for placement in records.placements if placement.model == model]
    if not same:
        known = listed(sorted({placement.model[:12] for placement in records.placements}))
        raise UsageError(
            f"the records hold no placement of this model: its regions have the hash {model[:12]}, theirs {known}",
            hint=_MEASURE + "; another model, batch, dim or list of Targets has other regions",
        )
    found = [placement for placement in same if placement.revision == revision]
    if not found:
        raise UsageError(
            "the records hold a placement of this model for other code than this build's",
            detail=f"measured: {same[-1].revision}\nthis build: {revision}",
            hint=_MEASURE,
        )
    if len(found) > 1:
        raise UsageError(f"the records hold several placements of this model: {_places(found)}", hint=_WHICH)
    return found[0]


def choices_of_others(records: Records, revision: str, problems: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return problem -> alternative as measured in other models by code of this revision, of those with these
    alternatives.

    Where models disagree, the first by their hashes decides. Raises UsageError for records of several devices.
    """
    fitting = [placement for placement in records.placements if placement.revision == revision]
    found: dict[str, str] = {}
    for placement in reversed(fitting):
        found |= {p: way for p, way in placement.choices.items() if way in problems.get(p, ())}
    if found and len({(placement.device, placement.threads) for placement in fitting}) > 1:
        raise UsageError(
            f"the records hold placements of other models for several devices or threads: {_places(fitting)}",
            hint=_WHICH,
        )
    return found


def chosen_alternatives(placement: MeasuredPlacement, problems: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return problem -> alternative of a placement, for problems with these alternatives.

    Raises UsageError if the placement names others, or lacks a problem.
    """
    for problem, alternative in placement.choices.items():
        if problem not in problems:
            hint = valid_names(problem, problems, "problems") + "; or " + _MEASURE
            raise UsageError(f"the records' placement has an unknown problem: {problem!r}", hint=hint)
        if alternative not in problems[problem]:
            hint = valid_names(alternative, problems[problem], "alternatives")
            raise UsageError(
                f"the records' placement has an unknown alternative of {problem}: {alternative!r}", hint=hint
            )
    if missing := [problem for problem in problems if problem not in placement.choices]:
        raise UsageError(f"the records' placement lacks the problem {listed(missing, 3)}", hint=_MEASURE)
    return dict(placement.choices)


_MEASURE = "build the model with --place trial, and measure it: packager tune TRIAL.so -o RECORDS.json"

_WHICH = "choose one: packager build --place-device NAME --place-threads N, packager tune --threads N"


def _places(placements: Iterable[MeasuredPlacement]) -> str:
    return listed(dict.fromkeys(f"{p.device} with {_threads(p.threads)}" for p in placements))


def _threads(count: int) -> str:
    return f"{count} thread" + ("s" if count > 1 else "")


def _read(path: Path) -> Records:
    try:
        value: Any = strict_json.parse(path.read_bytes())
        found = strict_json.read(Records, value)
        for index, record in enumerate(found.records):
            if not record.timings:
                raise MismatchError(f"$.records[{index}].timings", "is empty")
        for index, placement in enumerate(found.placements):
            if not placement.choices:
                raise MismatchError(f"$.placements[{index}].choices", "is empty")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="`packager tune` writes such files") from None
    except MismatchError as mismatch:
        raise UsageError(
            f"{path} is not a tuning records file: {mismatch}", hint="`packager tune` writes them"
        ) from None
    return found
