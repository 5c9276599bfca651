"""Places that keep entries of a shared cache: folders, and what fsspec reaches (S3, HTTP and others)."""

from __future__ import annotations

import contextlib
import re
import shutil
import uuid
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import unquote, urlsplit

from packager.bundle.staging import replacing
from packager.errors import ToolchainError, UsageError, last_line

INSTALL = "pip install 'packager[remote]'"
HTTP = ("http", "https")
# An upload to these shows whole or not at all, and a rename is a copy.
WHOLE = (*HTTP, "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory")
# What servers that are only read say to a PUT.
READ_ONLY = (401, 403, 405, 411, 501)


class ReadOnlyError(Exception):
    """A store that can be read cannot be written."""


class Store(Protocol):
    """Files by name, which has slashes. Methods may raise what the place raises, and take as long as it takes."""

    name: str  # for messages and statistics: without a password

    def open(self, name: str) -> IO[bytes]:
        """Open a file to read. Raises FileNotFoundError."""

    def has(self, name: str) -> bool:
        """Whether there is a file."""

    def write(self, name: str, content: Path) -> None:
        """Store a copy of a file, which is never half there. Raises ReadOnlyError."""


class FolderStore:
    """A folder, on this machine or mounted."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._folder = folder

    def open(self, name: str) -> IO[bytes]:
        """Open a file to read. Raises FileNotFoundError."""
        return (self._folder / name).open("rb")

    def has(self, name: str) -> bool:
        """Whether there is a file."""
        return (self._folder / name).is_file()

    def write(self, name: str, content: Path) -> None:
        """Store a copy of a file. Raises ReadOnlyError."""
        place = self._folder / name
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with replacing(place) as temporary:
                shutil.copyfile(content, temporary)
        except PermissionError as failure:
            raise ReadOnlyError(str(failure)) from None
        except OSError as failure:
            if failure.strerror == "Read-only file system":
                raise ReadOnlyError(str(failure)) from None
            raise


class RemoteStore:
    """What fsspec reaches."""

    def __init__(self, url: str, system: Any) -> None:
        self.name = without_password(url)
        self._base = url.rstrip("/")
        self._system = system
        self._scheme = urlsplit(url).scheme

    def open(self, name: str) -> IO[bytes]:
        """Open a file to read, as a stream. Raises FileNotFoundError."""
        # A size that is given is not asked for, where every failure would look like an absent file.
        streamed = {"block_size": 0, "size": 1} if self._scheme in HTTP else {}
        stream: IO[bytes] = self._system.open(f"{self._base}/{name}", "rb", **streamed)
        return stream

    def has(self, name: str) -> bool:
        """Whether there is a file."""
        return bool(self._system.exists(f"{self._base}/{name}"))

    def write(self, name: str, content: Path) -> None:
        """Store a copy of a file. Raises ReadOnlyError."""
        place = f"{self._base}/{name}"
        try:
            if self._scheme in HTTP:
                headers = {"Content-Length": str(content.stat().st_size)}  # else it comes in chunks, which few take
                self._system.put_file(str(content), place, method="put", headers=headers)
            elif self._scheme in WHOLE:
                self._system.put_file(str(content), place)
            else:
                self._rename_into(content, place)
        except PermissionError as failure:
            raise ReadOnlyError(str(failure)) from None
        except Exception as failure:
            if getattr(failure, "status", None) in READ_ONLY:
                raise ReadOnlyError(last_line(failure)) from None
            raise

    def _rename_into(self, content: Path, place: str) -> None:
        self._system.makedirs(place.rpartition("/")[0], exist_ok=True)
        temporary = f"{place}.{uuid.uuid4().hex}.packager-tmp"
        try:
            self._system.put_file(str(content), temporary)
            self._system.mv(temporary, place)
        except BaseException:
            with contextlib.suppress(Exception):  # the first failure is the one to tell
                self._system.rm_file(temporary)
            raise


def open_store(url: str) -> Store:
    """Return the store of a folder or URL, which is not asked yet.

    Raises UsageError for a URL that nothing serves; ToolchainError if the package that does is not installed.
    """
    parts = urlsplit(url)
    if not re.match(r"[A-Za-z][A-Za-z0-9+.:-]*://", url):
        return FolderStore(Path(url).absolute())
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise UsageError(f"{url}: names a machine", hint="write file:///FOLDER")
        return FolderStore(Path(unquote(parts.path)))
    name = without_password(url)
    try:
        import fsspec

        system, _ = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as failure:
        raise ToolchainError(f"the cache {name} requires a package: {last_line(failure)}", hint=INSTALL) from None
    except (ValueError, TypeError) as failure:
        raise UsageError(
            f"cannot use the cache {name}: {last_line(failure)}",
            hint="give a folder, or a URL such as s3://BUCKET/FOLDER or https://HOST/FOLDER",
        ) from None
    return RemoteStore(url, system)


def without_password(url: str) -> str:
    """Return a URL without user, password and query, which may be secret."""
    return re.sub(r"(://)[^/@]*@", r"\1", url).partition("?")[0]
