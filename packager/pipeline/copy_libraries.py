"""Copies the shared libraries that a bundle opens from this machine to the bundle's folder."""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from packager.backends.registry import known_libraries
from packager.bundle.elf.file import read_elf
from packager.bundle.elf.search import find_library, installed_folders
from packager.bundle.elf.symbols import version_key
from packager.bundle.reader import read_manifest
from packager.bundle.requirements import LibraryRequirement
from packager.bundle.staging import temporary_file
from packager.deploy.verify.libraries import find_libraries
from packager.errors import UsageError
from packager.pipeline.publish import OutputError
from packager.progress import report


def copy_libraries(bundle: Path) -> None:
    """Copy what a bundle's sessions open to its folder, under its soname, and what that needs of its own folder.

    Raises UsageError if a library is not found, or if another file has its name; OutputError.
    """
    folders = installed_folders()
    opens = {soname: known.opens for known in known_libraries() for soname in known.sonames}
    for library in read_manifest(bundle)[0].requirements.libraries:
        path, soname = _newest(library, folders, bundle)
        for source, name in _with_needed(path, [soname, *opens.get(soname, ())]):
            _copy(source, bundle.absolute().parent / name)


def _newest(library: LibraryRequirement, folders: Sequence[Path], bundle: Path) -> tuple[Path, str]:
    """Return the file of the first soname that is new enough, as far as that can be asked, and the soname."""
    for soname, version in find_libraries(library.sonames, folders).items():
        path = find_library(soname, folders)
        if path is not None and (version is None or version_key(version) >= version_key(library.least)):
            return path, soname
    raise UsageError(
        f"--copy-libraries: {' or '.join(library.sonames)} of version {library.least} or newer is not on this machine",
        hint=f"{bundle} was built; install the library, or put it there yourself",
    )


def _with_needed(path: Path, sonames: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Yield a library, and those of its folder that are named or needed, with the names that the dynamic linker looks
    for."""
    names = list(sonames)
    for name in names:  # grows
        file = path.parent / name
        if file.is_file():
            yield file, name
            names += [needed for needed in read_elf(file).needed if needed not in names]


def _copy(source: Path, target: Path) -> None:
    if target.exists() and (target.samefile(source) or filecmp.cmp(source, target, shallow=False)):
        return
    if target.exists():
        raise UsageError(
            f"--copy-libraries: {target} exists and is another file; it stays as it is", hint="remove it, or move it"
        )
    report(f"copying {source} to {target.parent}")
    try:
        temporary, descriptor = temporary_file(f".{target.name}.", target.parent)
        try:
            shutil.copyfile(source, temporary)
            temporary.replace(target)
        finally:
            if descriptor is not None:
                os.close(descriptor)
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"{target}: cannot be written: {error.strerror}") from None
