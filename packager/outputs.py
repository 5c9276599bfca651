"""The files that a build writes: all of them complete or none, and nothing of the user's overwritten unasked."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packager.errors import PackagerError, UsageError
from packager.header import MARK, render_header

if TYPE_CHECKING:
    from packager.request import Request

BUNDLE_NAMES = ("bundle.so", "bundle.a")
WEIGHTS_SUFFIX = ".safetensors"
DATA_SHA256 = "packager.data_sha256"  # as in packager.safetensors, which needs numpy
MAX_HEADER_BYTES = 1 << 24


class OutputError(PackagerError):
    """An output cannot be written."""

    exit_code = 2


@dataclass(frozen=True)
class Outputs:
    """Where the bundle goes, and what goes beside it."""

    bundle: Path
    header: Path | None
    weights: Path

    def check(self, *, external: bool) -> None:
        """Raise UsageError or OutputError now, before the work, if the outputs cannot be written in the end.

        ``external`` says that there will be a weights file.
        """
        for path, kind in (
            (self.bundle, "bundle"),
            (self.header, "header"),
            (self.weights if external else None, "weights file"),
        ):
            if path is None:
                continue
            if not path.parent.is_dir():
                raise OutputError(f"{path}: the folder {path.parent} does not exist", hint="make it first")
            if path.is_dir():
                raise OutputError(f"{path}: is a folder", hint="name a file")
            if not os.access(path.parent, os.W_OK):
                raise OutputError(f"{path}: the folder {path.parent} cannot be written to")
            _keep_foreign(path, kind)

    def publish(self, folder: Path, request: Request) -> None:
        """Move the results of a build, or copies of a cache entry, to their places. Raises OutputError."""
        bundle = next(folder / name for name in BUNDLE_NAMES if (folder / name).exists())
        weights = next(iter(folder.glob(f"*{WEIGHTS_SUFFIX}")), None)
        if weights is not None:
            _keep_foreign(self.weights, "weights file")  # that they are external may follow from their size
        pending: list[tuple[Path, Path]] = []
        try:
            if weights is not None:
                pending.append((_stage(weights, self.weights), self.weights))
            if self.header is not None:
                text = render_header(bundle, self.header.name, self.bundle.name, request.entry_symbol)
                pending.append((_stage_text(text, self.header), self.header))
            pending.append((_stage(bundle, self.bundle), self.bundle))
            while pending:  # the bundle last: when it is there, all is there
                temporary, target = pending[0]
                temporary.replace(target)
                pending.pop(0)
        except OSError as error:
            raise OutputError(f"{self.bundle}: cannot be written: {error.strerror}") from None
        finally:
            for temporary, _ in pending:
                temporary.unlink(missing_ok=True)

    def keep(self, workdir: Path, place: Path) -> None:
        """Copy the results of a build into a cache entry."""
        for path in workdir.iterdir():
            if path.name in BUNDLE_NAMES or path.suffix == WEIGHTS_SUFFIX:
                shutil.copyfile(path, place / path.name)


def _keep_foreign(path: Path, kind: str) -> None:
    """Raise UsageError if ``path`` is a file that packager did not write."""
    if path.exists() and not _is_ours(path, kind):
        raise UsageError(
            f"{path} exists and is not a {kind} that packager wrote; it stays as it is",
            hint="remove it, or give another output",
        )


def _is_ours(path: Path, kind: str) -> bool:
    with path.open("rb") as file:
        start = file.read(65536)
        if kind == "weights file":  # its header may be long
            return not start or f'"{DATA_SHA256}"'.encode() in start + file.read(MAX_HEADER_BYTES)
    if kind == "header":
        return MARK.encode() in start
    return not start or start.startswith((b"\x7fELF", b"!<arch>\n"))


def _stage(source: Path, target: Path) -> Path:
    temporary = _temporary(target)
    try:
        shutil.copyfile(source, temporary)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _stage_text(text: str, target: Path) -> Path:
    temporary = _temporary(target)
    try:
        temporary.write_text(text)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _temporary(target: Path) -> Path:
    """Return a new empty file beside ``target``, with the permissions that a plainly written file would have."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".new", dir=target.parent)
    umask = os.umask(0)
    os.umask(umask)
    os.fchmod(handle, 0o666 & ~umask)
    os.close(handle)
    return Path(name)


@contextlib.contextmanager
def work_folder(keep: Path | None) -> Iterator[Path]:
    """Yield an empty work folder: ``keep``, which stays, or one that is removed however the build ends.

    Raises UsageError if ``keep`` exists and is not empty.
    """
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="packager-") as name:
            yield Path(name)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise UsageError(f"--keep-workdir {keep}: exists and is not an empty folder", hint="name a new folder")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep.resolve()
