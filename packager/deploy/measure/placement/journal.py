"""Keep the batches of a search that is interrupted: the same command goes on where it stopped.

The search decides by its measurements alone, so a later run that gets the same answers takes the same way: a journal
answers what it has, and measures the rest. It is a file of JSON lines: what is measured, then a line for each batch.
"""

from __future__ import annotations

import fcntl
import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import numpy as np

from packager.bundle import strict_json
from packager.bundle.fields import Count, Name, Sha256
from packager.bundle.strict_json import MismatchError, Range
from packager.deploy.measure.placement.space import Vector
from packager.deploy.measure.placement.timing import Batch, Timer
from packager.errors import UsageError

VERSION: Literal[2] = 2
T = TypeVar("T")
_Positive = Annotated[float, Range(1e-4)]


@dataclass(frozen=True)
class Subject:
    """What a journal is about: measurements of another bundle, on another device or of other inputs do not count."""

    bundle: Sha256
    device: Name
    threads: Count
    seed: Count


@dataclass(frozen=True)
class _Header:
    journal_version: Literal[2]
    subject: Subject


@dataclass(frozen=True)
class _Entry:
    vectors: tuple[tuple[Count, ...], ...]
    us: tuple[tuple[_Positive, ...], ...]
    seconds: Annotated[float, Range(0)]
    profiled: bool  # columns are what choices take, not vectors


class Journal:
    """A timer that answers from a file what was measured already, and adds to it what it measures.

    A context manager, which closes the file. Raises UsageError if the file is of another subject, damaged, in use, or
    cannot be written. A last line without its end is what an interruption leaves, and is measured again.
    """

    def __init__(self, path: Path, subject: Subject, timer: Timer) -> None:
        self._path = path
        self._timer = timer
        self._entries: list[_Entry] = []
        self._ends: list[int] = []  # of the header and of each entry, in bytes
        self._next = 0
        try:
            self._stream = path.open("a+b")
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{path} is in use: another `packager tune` keeps its measurements there",
                hint="wait until it is done, or write other records",
            ) from None
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}", hint="choose another folder with -o") from None
        try:
            self._load(subject)
        except UsageError:
            self._stream.close()
            raise

    @property
    def batches(self) -> int:
        """The number of batches that earlier runs have measured."""
        return len(self._entries)

    def time(self, vectors: Sequence[Vector], rounds: int) -> Batch:
        """Return the next batch of the file if it is this one; else drop the rest of the file and measure."""
        return self._answer(vectors, rounds, lambda: self._timer.time(vectors, rounds), profiled=False)

    def profile(self, vector: Vector, rounds: int) -> Batch:
        """Return the next batch of the file if it is this profile; else drop the rest of the file and measure."""
        return self._answer([vector], rounds, lambda: self._timer.profile(vector, rounds), profiled=True)

    def _answer(self, vectors: Sequence[Vector], rounds: int, measure: Callable[[], Batch], *, profiled: bool) -> Batch:
        if self._next < len(self._entries):
            entry = self._entries[self._next]
            if (entry.vectors, len(entry.us), entry.profiled) == (tuple(vectors), rounds, profiled):
                self._next += 1
                return Batch(np.array(entry.us), entry.seconds)
            # Other options lead another way from here on.
            del self._entries[self._next :], self._ends[self._next + 1 :]
            self._stream.truncate(self._ends[-1])
        measured = measure()
        us = tuple(tuple(max(round(float(time), 4), 1e-4) for time in row) for row in measured.times)
        entry = _Entry(tuple(vectors), us, round(measured.seconds, 4), profiled)
        self._write(entry)
        self._entries.append(entry)
        self._next += 1
        return Batch(np.array(us), entry.seconds)  # the same numbers as the file's

    def remove(self) -> None:
        """Remove the file: the search is over."""
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def _load(self, subject: Subject) -> None:
        expected = _Header(VERSION, subject)
        self._stream.seek(0)
        *lines, unfinished = self._stream.read().split(b"\n")
        if not lines and _line(expected).startswith(unfinished):
            self._stream.truncate(0)
            self._write(expected)
            return
        header, *entries = lines or [unfinished]
        found = self._read(_Header, 1, header).subject
        if found != subject:
            before, now = asdict(found), asdict(subject)
            names = ", ".join(name for name in now if before[name] != now[name])
            raise UsageError(
                f"{self._path} keeps the measurements of an interrupted run that differs in: {names}",
                hint="finish that one by its own command, or remove the file to start anew",
            )
        self._entries = [self._read(_Entry, number, line) for number, line in enumerate(entries, 2)]
        self._ends = list(itertools.accumulate(len(line) + 1 for line in lines))
        self._stream.truncate(self._ends[-1])

    def _read(self, kind: type[T], number: int, line: bytes) -> T:
        try:
            found = strict_json.read(kind, strict_json.parse(line))
            lengths = {len(row) for row in found.us} if isinstance(found, _Entry) else set()
            if isinstance(found, _Entry) and (
                len(lengths) != 1 or (not found.profiled and lengths != {len(found.vectors)})
            ):
                raise MismatchError("$.us", "has not a time for each vector in each round")
        except MismatchError as mismatch:
            raise UsageError(
                f"{self._path} is damaged in line {number}: {mismatch}", hint="remove the file to start anew"
            ) from None
        return found

    def _write(self, value: _Header | _Entry) -> None:
        line = _line(value)
        try:
            self._stream.write(line)
            self._stream.flush()
        except OSError as error:
            raise UsageError(f"cannot write {self._path}: {error.strerror}") from None
        self._ends.append(len(line) + (self._ends[-1] if self._ends else 0))


def _line(value: _Header | _Entry) -> bytes:
    return strict_json.canonical(asdict(value)) + b"\n"
