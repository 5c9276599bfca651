"""An entry of a shared cache as one file: a tar archive of an index, its signature if there is one, and the files.

The index names the entry's kind and key and the SHA-256 of each file. So an entry that was damaged, cut off, or put in
the place of another is not taken for what was asked for, and a signature of the index covers everything.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Protocol

from packager.bundle.hashing import sha256_of_file

INDEX = "entry.json"
SIGNATURE = "entry.json.sig"
SCHEMA_VERSION = 1
MAX_INDEX_BYTES = 1 << 20
_CHUNK = 1 << 20


class EntryError(Exception):
    """An entry is not what was asked for, or nobody who is trusted signed it."""


class Signatures(Protocol):
    """Signs indexes, and checks who signed them."""

    def sign(self, index: bytes) -> bytes | None:
        """Return a signature, or None if there is no key to sign with."""

    def refusal(self, index: bytes, signature: bytes | None) -> str:
        """Return why a signature does not count, or an empty string."""


def pack(kind: str, key: str, files: Iterable[Path], output: IO[bytes], signatures: Signatures | None) -> None:
    """Write an entry; equal files give equal bytes, signatures apart."""
    paths = sorted(files)
    hashes = {path.name: sha256_of_file(path) for path in paths}
    index = json.dumps(
        {"schema_version": SCHEMA_VERSION, "kind": kind, "key": key, "files": hashes}, sort_keys=True
    ).encode()
    signature = signatures.sign(index) if signatures is not None else None
    with tarfile.open(fileobj=output, mode="w") as archive:
        for name, content in ((INDEX, index), (SIGNATURE, signature)):
            if content is not None:
                archive.addfile(_member(name, len(content)), io.BytesIO(content))
        for path in paths:
            with path.open("rb") as stream:
                archive.addfile(_member(path.name, path.stat().st_size), stream)


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    return member


def unpack(entry: Path, kind: str, key: str, into: Path, signatures: Signatures | None) -> list[Path]:
    """Write an entry's files to a folder and return them, checked. Raises EntryError, and writes nothing then."""
    written: list[Path] = []
    try:
        _unpack(entry, kind, key, into, signatures, written)
    except Exception as failure:  # tarfile raises about anything for archives that were made up
        for path in written:
            path.unlink(missing_ok=True)
        if isinstance(failure, EntryError):
            raise
        raise EntryError(f"it is damaged: {type(failure).__name__}") from failure
    return written


def _unpack(entry: Path, kind: str, key: str, into: Path, signatures: Signatures | None, written: list[Path]) -> None:
    with contextlib.closing(tarfile.open(entry, "r:")) as archive:
        members = _plain_members(archive)
        index = _content(archive, next(members, None), INDEX)
        hashes = _hashes(index, kind, key)
        member = next(members, None)
        signature = None
        if member is not None and member.name == SIGNATURE:
            signature = _content(archive, member, SIGNATURE)
            member = next(members, None)
        if signatures is not None and (reason := signatures.refusal(index, signature)):
            raise EntryError(reason)
        seen: set[str] = set()
        while member is not None:
            if member.name not in hashes or member.name in seen:
                raise EntryError(f"it is damaged: {member.name[:100]!r} does not belong to it")
            seen.add(member.name)
            written.append(into / member.name)
            _copy(archive, member, written[-1], hashes[member.name])
            member = next(members, None)
        if seen != set(hashes):
            raise EntryError("it is damaged: it lacks files that it names")


def _plain_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for member in archive:
        if member.type != tarfile.REGTYPE or member.issparse():
            raise EntryError("it is damaged: it has other things than files")
        yield member


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo | None, name: str) -> bytes:
    if member is None or member.name != name or member.size > MAX_INDEX_BYTES:
        raise EntryError("it is no entry of a cache")
    stream = archive.extractfile(member)
    assert stream is not None  # a plain file
    return stream.read()


def _hashes(index: bytes, kind: str, key: str) -> Mapping[str, str]:
    """Return the SHA-256 of each file by name, from the index of the entry that was asked for."""
    value = json.loads(index)
    if value["schema_version"] != SCHEMA_VERSION:
        raise EntryError(f"it is of format {value['schema_version']!r}, which this version does not read")
    if (value["kind"], value["key"]) != (kind, key):
        raise EntryError("it is another entry's")
    hashes: dict[str, str] = value["files"]
    if not hashes or any(not _is_plain(name) for name in hashes):
        raise EntryError("it is damaged: it names no files, or none that can be there")
    return hashes


def _is_plain(name: str) -> bool:
    return name == Path(name).name and name not in ("", ".", "..", INDEX, SIGNATURE) and "\0" not in name


def _copy(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path, expected: str) -> None:
    stream = archive.extractfile(member)
    assert stream is not None  # a plain file
    digest = hashlib.sha256()
    with target.open("wb") as copy:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            copy.write(chunk)
    if digest.hexdigest() != expected:
        raise EntryError(f"it is damaged: {member.name!r} has another SHA-256 than it says")
