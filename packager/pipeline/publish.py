"""Publish the outputs of a build atomically, without overwriting files that packager did not write."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packager.bundle.manifest import DATA_SHA256
from packager.bundle.section import SECTION_MAGIC
from packager.bundle.staging import lock, temporary_file, temporary_folder
from packager.errors import PackagerError, UsageError

if TYPE_CHECKING:
    from packager.pipeline.request import Request

BUNDLE_NAMES = ("bundle.so", "bundle.a")
WEIGHTS_SUFFIX = ".safetensors"
MAX_HEADER_BYTES = 1 << 24


# errno values of a folder that cannot be written; others are bugs.
UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}


class OutputError(PackagerError):
    """An output cannot be written."""

    exit_code = 2


@dataclass(frozen=True)
class Outputs:
    """The output paths: bundle, header and weights."""

    bundle: Path
    header: Path | None
    weights: Path

    def check(self, *, external: bool) -> None:
        """Raise UsageError or OutputError before the build if the outputs could not be written.

        ``external``: there will be a weights file.
        """
        places = {
            "bundle": self.bundle,
            "header": self.header,
            "weights file": self.weights if external else None,
        }
        taken: dict[Path, str] = {}
        for kind, path in places.items():
            if path is None:
                continue
            other = taken.setdefault(path.absolute(), kind)
            if other != kind:
                raise UsageError(f"{path} is to be the {other} and the {kind}", hint="give them different names")
            check_output(path, kind)

    def publish(self, folder: Path, request: Request) -> None:
        """Move the results of a build to their paths; copy them from a kept work folder. Raises OutputError."""
        put = _move if request.keep_workdir is None else shutil.copyfile
        bundle = next(folder / name for name in BUNDLE_NAMES if (folder / name).exists())
        weights = next(iter(folder.glob(f"*{WEIGHTS_SUFFIX}")), None)
        if weights is not None:
            _keep_foreign(self.weights, "weights file")  # not checked before: large weights become external by default
        pending: list[tuple[Path, Path]] = []
        locks: list[int | None] = []
        try:
            locks += [lock(path) for path in (bundle, weights) if path is not None]  # they keep theirs when moved
            if weights is not None:
                put(weights, _stage(self.weights, pending, locks))
            if self.header is not None:
                from packager.link.header import render_header

                text = render_header(bundle, self.header.name, self.bundle.name, request.entry_symbol)
                _stage(self.header, pending, locks).write_text(text)
            put(bundle, _stage(self.bundle, pending, locks))
            while pending:  # the bundle last: if it exists, all outputs do
                temporary, target = pending[0]
                temporary.replace(target)
                pending.pop(0)
        except OSError as error:
            raise OutputError(f"{self.bundle}: cannot be written: {error.strerror}") from None
        finally:
            for temporary, _ in pending:
                temporary.unlink(missing_ok=True)
            for descriptor in filter(None, locks):
                os.close(descriptor)


def results(folder: Path) -> list[Path]:
    """Return the results in a work folder: the bundle, and external weights."""
    return [path for path in folder.iterdir() if path.name in BUNDLE_NAMES or path.suffix == WEIGHTS_SUFFIX]


def check_output(path: Path, kind: str) -> None:
    """Raise UsageError or OutputError if ``path`` cannot be written, or is a file that packager did not write."""
    if not path.parent.is_dir():
        raise OutputError(f"{path}: the folder {path.parent} does not exist", hint="make it first")
    if path.is_dir():
        raise OutputError(f"{path}: is a folder", hint="name a file")
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"{path}: the folder {path.parent} cannot be written to")
    _keep_foreign(path, kind)


def _keep_foreign(path: Path, kind: str) -> None:
    """Raise UsageError if ``path`` is a file that packager did not write."""
    if path.exists() and not _is_ours(path, kind):
        article = "an" if kind[0] in "AEIO" else "a"
        raise UsageError(
            f"{path} exists and is not {article} {kind} that packager wrote; it stays as it is",
            hint="remove it, or give another output",
        )


def _is_ours(path: Path, kind: str) -> bool:
    try:
        file = path.open("rb")
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror}") from None
    with file:
        start = file.read(65536)
        if kind == "weights file":  # its header may be long
            return not start or f'"{DATA_SHA256}"'.encode() in start + file.read(MAX_HEADER_BYTES)
    if kind == "ONNX model":
        from packager.emit.file import is_packagers

        return is_packagers(start)
    if kind == "header":
        from packager.codegen.templates import MARK

        return MARK.encode() in start
    if not start.startswith((b"\x7fELF", b"!<arch>\n")):
        return not start
    # An ELF file or archive may be the user's own, such as an input of this build.
    with path.open("rb") as whole, mmap.mmap(whole.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(SECTION_MAGIC) >= 0


def _move(source: Path, target: Path) -> None:
    """Replace ``target``, keeping its permissions; copy across file systems."""
    mode = target.stat().st_mode
    try:
        source.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copyfile(source, target)
    else:
        target.chmod(mode)


def _stage(target: Path, pending: list[tuple[Path, Path]], locks: list[int | None]) -> Path:
    """Create an empty, locked temporary file next to ``target``, with default permissions.

    It is registered in ``pending`` before it is filled, so that it is removed on failure. What killed builds of the
    same target left is removed.
    """
    path, descriptor = temporary_file(f".{target.name[:32]}.", target.parent)
    pending.append((path, target))
    locks.append(descriptor)
    return path


@contextlib.contextmanager
def work_folder(keep: Path | None) -> Iterator[Path]:
    """Yield an empty work folder: ``keep``, or a temporary one that is removed at the end.

    Raises UsageError if ``keep`` exists and is not empty, OutputError if the folder cannot be written or is full.
    """
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise UsageError(f"--keep-workdir {keep}: exists and is not an empty folder", hint="name a new folder")
    try:
        folder = keep or tempfile.gettempdir()
    except FileNotFoundError as error:
        raise OutputError(f"there is no folder for temporary files: {error.strerror}", hint="set TMPDIR") from None
    try:
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            yield keep.resolve()
        else:
            with temporary_folder("build", folder) as place:
                yield place
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise OutputError(
            f"{folder}: the work folder cannot be written: {error.strerror}", hint="free disk space, or set TMPDIR"
        ) from None
