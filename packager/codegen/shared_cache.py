"""A cache that machines share, behind the local one: entries of a store, checked before they are used.

A store that is stuck, slow, absent or wrong costs a bounded time and one warning; the build goes on without it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from packager.bundle.staging import temporary_folder
from packager.codegen.shared_entry import EntryError, Signatures, pack, unpack
from packager.codegen.stores import ReadOnlyError, Store
from packager.errors import last_line
from packager.progress import warn

T = TypeVar("T")

TIMEOUT_SECONDS = 30.0
"""Seconds that a store may take for an answer, and for each ``RATE`` bytes more of it."""
RATE = 1 << 24
MAX_ENTRY_BYTES = 1 << 32
_CHUNK = 1 << 18
_TICK = 0.2


@dataclass
class Counts:
    """What a store was asked for. ``errors`` are failures, and entries that were refused."""

    hits: int = 0
    misses: int = 0
    added: int = 0
    errors: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    last_error: str = ""


class _StoppedError(Exception):
    """Nobody waits for the work any more."""


class _Work:
    """What a thread does for a store, and how far it is."""

    def __init__(self) -> None:
        self.done_bytes = 0
        self.stopped = False

    def moved(self, count: int) -> None:
        """Say that so many bytes more have arrived. Raises _StoppedError."""
        if self.stopped:
            raise _StoppedError
        self.done_bytes += count
        if self.done_bytes > MAX_ENTRY_BYTES:
            raise EntryError("it does not end")


@dataclass
class SharedCache:
    """A shared cache in ``store``; used by several threads. With ``fill`` it also gets what the local cache has."""

    store: Store
    signatures: Signatures | None = None
    timeout: float = TIMEOUT_SECONDS
    fill: bool = False
    present: int = 0  # entries that were asked for, and not read, since the local cache has them
    counts: Counts = field(default_factory=Counts)
    _usable: bool = True
    _writable: bool = True
    _warned: bool = False
    _refused: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fetch(self, kind: str, key: str, into: Path) -> list[Path] | None:
        """Write an entry's files to a folder and return them; None if the store has no such entry that can be used."""
        if not self._usable:
            return None
        name = place_of(kind, key)
        with temporary_folder("entry") as folder:
            copy = folder / "entry.tar"
            work = _Work()
            try:
                self._wait(lambda: self._read(name, copy, work), work)
                files = unpack(copy, kind, key, into, self.signatures)
            except FileNotFoundError:
                self._count(misses=1)
                return None
            except EntryError as failure:
                with self._lock:
                    self._refused.add(name)  # to be written again
                self._fail(f"an entry is not used: {failure}")
                return None
            except Exception as failure:  # packages for stores raise what has no common base
                self._give_up(failure)
                return None
        self._count(hits=1, bytes_read=work.done_bytes)
        return files

    def has(self, kind: str, key: str) -> bool:
        """Whether the store has a file for an entry, which is not read."""
        name = place_of(kind, key)
        try:
            return self._usable and self._wait(lambda: self.store.has(name), _Work())
        except Exception as failure:
            self._give_up(failure)
            return False

    def keep(self, kind: str, key: str, files: Iterable[Path]) -> None:
        """Store an entry of the local cache, where a store is filled and lacks it."""
        if not self.fill:
            return
        if self.has(kind, key):
            with self._lock:
                self.present += 1
        else:
            self.add(kind, key, files)

    def add(self, kind: str, key: str, files: Iterable[Path]) -> None:
        """Store an entry, unless the store is only read; an equal one of another machine may be replaced."""
        if not self._usable or not self._writable:
            return
        name = place_of(kind, key)
        with temporary_folder("entry") as folder:
            packed = folder / "entry.tar"
            with packed.open("wb") as stream:
                pack(kind, key, files, stream, self.signatures)
            size = packed.stat().st_size
            work = _Work()
            work.done_bytes = size  # how far an upload is is not known: it gets the time of all
            try:
                self._wait(lambda: self._write(name, packed), work)
            except ReadOnlyError:
                self._writable = False
                return
            except Exception as failure:
                self._give_up(failure)
                return
        self._count(added=1, bytes_written=size)

    def _read(self, name: str, copy: Path, work: _Work) -> None:
        with self.store.open(name) as source, copy.open("wb") as target:
            while chunk := source.read(_CHUNK):
                work.moved(len(chunk))
                target.write(chunk)

    def _write(self, name: str, packed: Path) -> None:
        with self._lock:
            again = name in self._refused
        if again or not self.store.has(name):
            self.store.write(name, packed)

    def _wait(self, work: Callable[[], T], state: _Work) -> T:
        """Return what ``work`` returns, done by a thread. Raises what it raises; TimeoutError if that takes too long.

        The thread is left to itself then: nothing ends a system call on a file system that does not answer.
        """
        result: list[T] = []
        failure: list[BaseException] = []

        def do() -> None:
            try:
                result.append(work())
            except BaseException as raised:
                failure.append(raised)

        thread = threading.Thread(target=do, daemon=True)
        start = time.monotonic()
        thread.start()
        while thread.is_alive():
            thread.join(_TICK)
            if time.monotonic() - start > self.timeout * (1 + state.done_bytes / RATE):
                state.stopped = True
                raise TimeoutError(f"no answer within {self.timeout:g} s")
        if failure:
            raise failure[0]
        return result[0]

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, count in more.items():
                setattr(self.counts, name, getattr(self.counts, name) + count)

    def _give_up(self, failure: BaseException) -> None:
        self._usable = False
        self._fail(f"it is not used any further: {last_line(failure)}")

    def _fail(self, text: str) -> None:
        """Count a failure and warn of the first."""
        with self._lock:
            self.counts.errors += 1
            self.counts.last_error = text
            first, self._warned = not self._warned, True
        if first:
            warn(f"the shared cache {self.store.name}: {text}")


def place_of(kind: str, key: str) -> str:
    """Return the name of an entry's file in a store."""
    return f"{kind}/{key[:2]}/{key}.tar"
