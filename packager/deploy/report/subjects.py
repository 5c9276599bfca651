"""Reads what a report is about: bundles, kept work folders of builds, and files of measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packager.bundle import strict_json
from packager.bundle.graph.call_graph import CallGraph
from packager.bundle.graph.section import read_call_graph
from packager.bundle.reader import BundleFile, inspect
from packager.bundle.strict_json import MismatchError
from packager.bundle.tuning_records import make_records, read_records
from packager.deploy.measure.placement.result import AlternativeTime
from packager.deploy.report.tuned import Tuned, is_tuned, read_tuned
from packager.errors import UsageError

_BUILT = ("bundle.so", "bundle.a")  # in a work folder
_HINT = (
    "give NAME.so or libNAME.a, the folder of build --keep-workdir, the records of tune -o, or what tune --json prints"
)


@dataclass(frozen=True)
class BuildStage:
    """A stage of a build and its seconds."""

    name: str
    seconds: float


@dataclass(frozen=True)
class UndonePartition:
    """A partition that a backend was asked for and that was undone."""

    backend: str
    operators: tuple[str, ...]
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class BundleSubject:
    """A bundle, and what its work folder says of its build."""

    name: str
    file: BundleFile
    graph: CallGraph | None
    stages: tuple[BuildStage, ...] = ()
    undone: tuple[UndonePartition, ...] = ()


@dataclass(frozen=True)
class Subjects:
    """One or two bundles, or none; and the measurements of any number of files."""

    bundles: tuple[BundleSubject, ...]
    measured: Tuned


def read_subjects(paths: Sequence[Path]) -> Subjects:
    """Read the subjects of a report. Raises UsageError, BundleError."""
    files = [path for path in paths if _is_json(path)]
    bundles = tuple(_read_bundle(path) for path in paths if path not in files)
    if len(bundles) > 2:
        raise UsageError(f"a report compares two bundles, not {len(bundles)}")
    return Subjects(bundles, _read_measured(files))


def _read_measured(paths: Sequence[Path]) -> Tuned:
    """Read and merge records, and results of tune."""
    values = [(path, _parse(path)) for path in paths]
    records = [read_records([path]) for path, value in values if not is_tuned(value)]
    alternatives: dict[str, tuple[AlternativeTime, ...]] = {}
    for path, value in values:
        if is_tuned(value):
            try:
                found = read_tuned(value)
            except (KeyError, TypeError, ValueError):
                raise UsageError(f"{path} is no result of packager tune", hint=_HINT) from None
            records.append(found.records)
            alternatives |= found.alternatives
    merged = make_records(
        (record for one in records for record in one.records),
        (placement for one in records for placement in one.placements),
    )
    return Tuned(merged, alternatives)


def _is_json(path: Path) -> bool:
    if path.is_dir():
        return False
    try:
        with path.open("rb") as stream:
            return stream.read(64).lstrip()[:1] == b"{"
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=_HINT) from None


def _read_bundle(path: Path) -> BundleSubject:
    if not path.is_dir():
        found = inspect(path)
        return BundleSubject(path.name, found, read_call_graph(found))
    built = [path / name for name in _BUILT if (path / name).is_file()]
    if not built:
        raise UsageError(f"{path} is no work folder of a build: it has no {' or '.join(_BUILT)}", hint=_HINT)
    found = inspect(built[0])
    return BundleSubject(
        path.resolve().name, found, read_call_graph(found), _stages(path / "timings.json"), _undone(path)
    )


def _stages(path: Path) -> tuple[BuildStage, ...]:
    """Read the seconds of the stages, if the build got to the end."""
    if not path.is_file():
        return ()
    try:
        return tuple(BuildStage(str(item["stage"]), float(item["seconds"])) for item in _parse(path)["stages"])
    except (KeyError, TypeError, ValueError):
        raise UsageError(f"{path} has no times of stages", hint=_HINT) from None


def _undone(folder: Path) -> tuple[UndonePartition, ...]:
    path = folder / "2-partitions.json"
    if not path.is_file():
        return ()
    try:
        return tuple(
            UndonePartition(
                str(row["backend"]),
                tuple(map(str, row["operators"])),
                tuple(str(node) for site in row["sites"] for node in site["nodes"]),
                str(row["undone"]),
            )
            for row in _parse(path)["partitions"]
            if row["undone"]
        )
    except (KeyError, TypeError):
        raise UsageError(f"{path} is no partition table", hint=_HINT) from None


def _parse(path: Path) -> Any:
    try:
        return strict_json.parse(path.read_bytes())
    except (OSError, MismatchError) as error:
        raise UsageError(f"cannot read {path}: {error}", hint=_HINT) from None
