"""Tuning records (``docs/tuning.md``): measured times of a primitive function's candidates on a GPU or CPU.

``packager tune`` writes them, backends read them through their attribute ``tuning``. The key of a record is (problem,
code revision, device); of several with one key the last wins.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from packager.bundle import strict_json
from packager.bundle.fields import Name
from packager.bundle.strict_json import MismatchError, Range
from packager.errors import UsageError

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
class Records:
    """A file of records."""

    schema_version: Literal[1]
    records: tuple[Record, ...]

    def to_json(self) -> bytes:
        """Encode the file."""
        return (json.dumps(asdict(self), indent=1) + "\n").encode()


def make_records(records: Iterable[Record]) -> Records:
    """Sort records and merge them by key; the last of each key wins."""
    merged = {record.key: record for record in records}
    return Records(SCHEMA_VERSION, tuple(merged[key] for key in sorted(merged)))


def read_records(paths: Sequence[str | Path]) -> Records:
    """Read and merge files of records. Raises UsageError with the file and the JSON path."""
    return make_records(record for path in paths for record in _read(Path(path)))


def _read(path: Path) -> tuple[Record, ...]:
    try:
        value: Any = strict_json.parse(path.read_bytes())
        found = strict_json.read(Records, value)
        for index, record in enumerate(found.records):
            if not record.timings:
                raise MismatchError(f"$.records[{index}].timings", "is empty")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="`packager tune` writes such files") from None
    except MismatchError as mismatch:
        raise UsageError(
            f"{path} is not a tuning records file: {mismatch}", hint="`packager tune` writes them"
        ) from None
    return found.records
