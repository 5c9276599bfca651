"""Content-addressed cache in the user's cache folder: objects of the runtime, and whole bundles.

Entries are folders named by the SHA-256 of everything their content depends on. An entry is written to a temporary
folder and renamed, so that concurrent or killed builds never leave partial entries. Each stores the hashes of its
files; damaged entries are dropped. Shared caches are asked for what is not here, and get what is made here. What was
used longest ago makes room for what is new, bundles before objects: ten of a large model are as many bytes as all
kernels that it took days to compile, and one is made again from these in seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packager.bundle.hashing import sha256_of_file
from packager.bundle.staging import FOLDERS, remove_leftovers, temporary_folder
from packager.errors import UsageError

if TYPE_CHECKING:
    from packager.codegen.shared_cache import SharedCache

HASHES = "hashes.json"
LIMIT, DEFAULT_LIMIT = "PACKAGER_CACHE_LIMIT", "10G"
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Usage:
    """Entries and bytes by kind."""

    folder: Path
    entries: dict[str, int]
    nbytes: dict[str, int]


@dataclass(frozen=True)
class Cache:
    """A cache folder, and the shared caches behind it. If not ``enabled``, lookups miss and nothing is stored.

    ``limit`` is how many bytes its entries may have after a build; None for any number.
    """

    folder: Path
    enabled: bool = True
    shared: tuple[SharedCache, ...] = ()
    limit: int | None = None

    @classmethod
    def of_user(cls, *, enabled: bool = True, shared: tuple[SharedCache, ...] = ()) -> Cache:
        """Return the cache in ``$XDG_CACHE_HOME/packager`` or ``~/.cache/packager``. Raises UsageError.

        Its limit is ``$PACKAGER_CACHE_LIMIT``.
        """
        base, limit = os.environ.get("XDG_CACHE_HOME"), limit_of(os.environ)
        try:
            return cls((Path(base) if base else Path.home() / ".cache") / "packager", enabled, shared, limit)
        except RuntimeError:  # TVM's import also fails then
            raise UsageError(
                "there is no home folder: HOME is not set, and this user is not in the password database",
                hint="set HOME or XDG_CACHE_HOME",
            ) from None

    def fetch(self, kind: str, key: str, into: Path) -> bool:
        """Copy an entry's files to a folder; return whether it was found intact, here or in a shared cache."""
        if not self.enabled:
            return False
        found = self._fetch(kind, key, into)
        if found:
            for shared in self.shared:
                shared.keep(kind, key, found)
            return True
        for shared in self.shared:
            files = shared.fetch(kind, key, into)
            if files is not None:
                self._add(kind, key, files)
                return True
        return False

    def _fetch(self, kind: str, key: str, into: Path) -> list[Path]:
        """Copy the files of an entry of this folder and return the copies. A damaged entry is removed.

        The copies are checked, not the entry: another process may clear the cache at any time.
        """
        entry = self.folder / kind / key
        if not entry.is_dir():
            return []
        self._make_private()
        copies: list[Path] = []
        try:
            expected = json.loads((entry / HASHES).read_text())
            for name in expected:
                copies.append(into / name)
                shutil.copyfile(entry / name, copies[-1])
            if expected and expected == {name: sha256_of_file(into / name) for name in expected}:
                with contextlib.suppress(OSError):  # the age only orders eviction
                    os.utime(entry)
                return copies
        except (OSError, ValueError, TypeError):
            expected = None  # damaged or removed: a miss
        for copy in copies:
            copy.unlink(missing_ok=True)
        shutil.rmtree(entry, ignore_errors=True)
        return []

    def add(self, kind: str, key: str, files: Iterable[Path]) -> None:
        """Store copies of files as an entry, here and in the shared caches.

        Errors are ignored: a build must not fail if the cache is not writable (full disk, read-only home).
        """
        if not self.enabled:
            return
        paths = list(files) if self.shared else files
        self._add(kind, key, paths)
        for shared in self.shared:
            shared.add(kind, key, paths)

    def _add(self, kind: str, key: str, files: Iterable[Path]) -> None:
        parent = self.folder / kind
        with contextlib.suppress(OSError):
            parent.mkdir(parents=True, exist_ok=True)
            self._make_private()
            with temporary_folder("entry", parent) as temporary:
                for file in files:
                    shutil.copyfile(file, temporary / file.name)
                hashes = {path.name: sha256_of_file(path) for path in sorted(temporary.iterdir())}
                (temporary / HASHES).write_text(json.dumps(hashes))
                temporary.rename(parent / key)  # fails if another build was first; its entry is identical

    def _make_private(self) -> None:
        """Take others' permissions from the folder: who can write to it decides what is linked into bundles.

        Raises UsageError if it belongs to another user.
        """
        facts = self.folder.stat()
        if facts.st_uid != os.geteuid():
            raise UsageError(
                f"the cache {self.folder} belongs to another user, who could put code into your bundles",
                hint="set XDG_CACHE_HOME to a folder of your own, or build with --no-cache",
            )
        if facts.st_mode & 0o077:
            self.folder.chmod(0o700)

    def usage(self) -> Usage:
        """Count entries and bytes."""
        entries: dict[str, int] = {}
        nbytes: dict[str, int] = {}
        for kind, entry in self._entries():
            entries[kind] = entries.get(kind, 0) + 1
            nbytes[kind] = nbytes.get(kind, 0)
            with contextlib.suppress(OSError):  # another process clears the cache
                nbytes[kind] += _bytes_of(entry)
        return Usage(self.folder, entries, nbytes)

    def trim(self) -> int:
        """Remove entries until all fit the limit, bundles first, each kind by when it was used; return their number.

        Whoever is reading one finds it damaged, which is a miss.
        """
        if self.limit is None or not self.enabled:
            return 0
        found: list[tuple[bool, int, int, Path]] = []
        for kind, entry in self._entries():
            with contextlib.suppress(OSError):  # another process clears the cache
                found.append((kind != "bundle", entry.stat().st_mtime_ns, _bytes_of(entry), entry))
        total, count = sum(nbytes for _, _, nbytes, _ in found), 0
        for _, _, nbytes, entry in sorted(found):
            if total <= self.limit:
                break
            shutil.rmtree(entry, ignore_errors=True)
            total, count = total - nbytes, count + 1
        return count

    def clear(self) -> int:
        """Remove all entries and return their number, and what killed builds left."""
        count = 0
        for _, entry in self._entries():
            shutil.rmtree(entry, ignore_errors=True)
            count += 1
        remove_leftovers(self.folder.glob(f"*/{FOLDERS}"))
        return count

    def _entries(self) -> Iterator[tuple[str, Path]]:
        for kind in ("bundle", "object"):
            for entry in sorted((self.folder / kind).glob("[0-9a-f]*")):
                yield kind, entry


def limit_of(environment: Mapping[str, str]) -> int | None:
    """Return the bytes that ``$PACKAGER_CACHE_LIMIT`` says, as ``500M`` or ``10G``; None for 0. Raises UsageError."""
    text = environment.get(LIMIT) or DEFAULT_LIMIT
    number, unit = (text[:-1], text[-1].upper()) if text[-1].upper() in UNITS else (text, "")
    if not (number.isascii() and number.isdigit()):
        raise UsageError(
            f"{LIMIT} is {text!r}, not a number of bytes", hint="write it as 500M, 10G or 1T; 0 is no limit"
        )
    return int(number) * UNITS.get(unit, 1) or None


def _bytes_of(entry: Path) -> int:
    with os.scandir(entry) as files:
        return sum(file.stat().st_size for file in files)
