"""Bounds-checked reads from a range of a file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packager.errors import BundleError, UsageError

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Window:
    """Bytes [base, base + size) of an open file; offsets count from ``base``."""

    descriptor: int
    base: int
    size: int

    def read(self, offset: int, size: int, what: str) -> bytes:
        """Return ``size`` bytes. Raises BundleError, naming ``what``, if they are not all in the window."""
        self._check(offset, size, what)
        data = os.pread(self.descriptor, size, self.base + offset)
        if len(data) != size:
            raise BundleError(f"{what}: the file became shorter while it was read")
        return data

    def chunks(self, offset: int, size: int, what: str) -> Iterator[bytes]:
        """Yield ``size`` bytes in chunks. Raises BundleError like ``read``."""
        for start in range(offset, offset + size, _CHUNK_BYTES):
            yield self.read(start, min(_CHUNK_BYTES, offset + size - start), what)

    def part(self, offset: int, size: int, what: str) -> Window:
        """Return a sub-window. Raises BundleError if it is not inside this one."""
        self._check(offset, size, what)
        return Window(self.descriptor, self.base + offset, size)

    def _check(self, offset: int, size: int, what: str) -> None:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise BundleError(
                f"{what} is outside the file (bytes {offset} to {offset + size} of {self.size})",
                hint="the file is cut short or damaged: copy it again, or rebuild it",
            )


@contextmanager
def open_window(path: Path) -> Iterator[Window]:
    """Open a regular file. Raises UsageError if it cannot be opened, BundleError if it is not a regular file."""
    try:
        # Without O_NONBLOCK, opening a named pipe blocks until there is a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"cannot read {path}: {reason}") from None
    try:
        facts = os.fstat(descriptor)
        if stat.S_ISDIR(facts.st_mode):
            raise BundleError(f"{path} is a folder, not a bundle", hint="name a file in it")
        if not stat.S_ISREG(facts.st_mode):
            raise BundleError(f"{path} is not a regular file")
        yield Window(descriptor, 0, facts.st_size)
    finally:
        os.close(descriptor)
