"""Folders in which a session looks for the shared libraries that a bundle's code calls."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from packager.bundle.elf.search import installed_folders
from packager.errors import UsageError


def library_path(folders: Sequence[str | Path] | None) -> bytes | None:
    """Return ``library_folders`` as the C ABI wants them. Raises UsageError for what is not a folder."""
    return os.fsencode(":".join(map(str, library_folders(folders)))) or None


def library_folders(folders: Sequence[str | Path] | None) -> list[Path]:
    """Return the absolute paths of ``folders``; None stands for ``installed_folders``.

    Raises UsageError for what is not a folder.
    """
    if isinstance(folders, (str, Path)):
        raise UsageError(f"libraries={str(folders)!r}: expected a list of folders", hint="libraries=[folder]")
    return installed_folders() if folders is None else [_checked(Path(folder)) for folder in folders]


def _checked(folder: Path) -> Path:
    if not folder.is_dir():
        why = "is a file" if folder.exists() else "does not exist"
        raise UsageError(f"libraries: the folder {folder} {why}", hint="name the folder that the library is in")
    if ":" in str(folder.absolute()):
        raise UsageError(f"libraries: the folder {folder} has a colon in its path", hint="link to it from another")
    return folder.absolute()
