"""Temporary folders and files that the next run removes if this one is killed.

Whoever makes one holds a lock on it (flock(2)), which the system drops when the process ends, however it ends. What is
not locked, and belongs to this user, is left over.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

# No name that a user would give: what matches is removed.
SUFFIX = ".packager-tmp"
FOLDERS = f"packager-*-????????{SUFFIX}"
_ATTEMPTS, _PAUSE = 50, 0.01  # seconds


def lock(path: Path) -> int | None:
    """Lock a file or folder until the returned descriptor is closed; None if another holds it, or it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.lstat()):
            return descriptor
    except OSError:
        pass  # held by another, removed meanwhile, or on a file system without locks: not to be touched
    os.close(descriptor)
    return None


def remove_leftovers(paths: Iterable[Path]) -> None:
    """Remove those of this user's files and folders that no process holds."""
    for path in paths:
        try:
            if path.lstat().st_uid != os.geteuid():
                continue
        except OSError:
            continue
        descriptor = lock(path)
        if descriptor is None:
            continue
        with contextlib.suppress(OSError):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        os.close(descriptor)


@contextlib.contextmanager
def temporary_folder(purpose: str, parent: str | Path | None = None) -> Iterator[Path]:
    """Yield a new folder that only this user can enter, and remove it; before, remove leftovers of any purpose.

    Raises OSError if ``parent``, by default the folder for temporary files, cannot be written.
    """
    base = Path(parent or tempfile.gettempdir())
    remove_leftovers(base.glob(FOLDERS))
    folder, descriptor = _locked(lambda: tempfile.mkdtemp(prefix=f"packager-{purpose}-", suffix=SUFFIX, dir=base))
    try:
        yield folder
    finally:
        _remove(folder)
        if descriptor is not None:
            os.close(descriptor)


def _remove(folder: Path) -> None:
    """Remove a folder into which a compiler's child process may still write: an interrupt ends the compiler alone."""
    for _ in range(_ATTEMPTS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(_PAUSE)


def temporary_file(prefix: str, parent: Path) -> tuple[Path, int | None]:
    """Make an empty file with default permissions, and return it with its lock, which the caller closes.

    Before, remove leftovers of its kind.
    """
    remove_leftovers(parent.glob(f"{glob.escape(prefix)}????????{SUFFIX}"))

    def make() -> str:
        handle, name = tempfile.mkstemp(prefix=prefix, suffix=SUFFIX, dir=parent)
        os.close(handle)
        return name

    path, descriptor = _locked(make)
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)
    return path, descriptor


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield an empty file beside ``target`` to fill, and rename it to ``target``, which is so never half there.

    After an exception nothing is renamed. Raises OSError.
    """
    path, descriptor = temporary_file(f".{target.name[:32]}.", target.parent)
    try:
        yield path
        path.replace(target)
    finally:
        path.unlink(missing_ok=True)
        if descriptor is not None:
            os.close(descriptor)


def _locked(make: Callable[[], str]) -> tuple[Path, int | None]:
    """Make a file or folder and lock it; another process may take it for a leftover between the two.

    On a file system without locks there is none: what is made there is not removed after a kill.
    """
    while True:
        path = Path(make())
        for _ in range(_ATTEMPTS):
            descriptor = lock(path)
            if descriptor is not None:
                return path, descriptor
            if not path.exists():
                break
            time.sleep(_PAUSE)
        else:
            return path, None
