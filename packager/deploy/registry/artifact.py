"""What an artifact of a registry holds: a bundle, and what belongs to it.

A file is a blob by its SHA-256; a large one is several, so that a transfer that was interrupted goes on with the next.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packager.errors import BundleError, UsageError

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.packager.bundle.config.v1+json"
TITLE = "org.opencontainers.image.title"
ROLES = {
    "bundle": "application/vnd.packager.bundle.v1",
    "weights": "application/vnd.packager.weights.v1+safetensors",
    "signature": "application/vnd.dev.sigstore.bundle.v0.3+json",
    "provenance": "application/vnd.in-toto+json",
    "record": "application/octet-stream",
}
"""Media types by what a file is to a bundle; ``record`` is any file that was attached."""
MAX_MANIFEST_BYTES = 1 << 22
MAX_FILES = 256
MAX_BLOB_BYTES = 1 << 32
PIECE_BYTES = 1 << 26
PIECE_OF = "io.packager.piece-of"
"""Annotation of a piece, whose title is that of the file with a number: the name of the file."""


@dataclass(frozen=True)
class Blob:
    """Bytes in a registry: ``digest`` begins with ``sha256:``."""

    digest: str
    size: int


@dataclass(frozen=True)
class File:
    """A file of an artifact, of one or several blobs, one after the other; ``name`` is without folders."""

    role: str
    name: str
    blobs: tuple[Blob, ...]

    @property
    def size(self) -> int:
        """The size of the file."""
        return sum(blob.size for blob in self.blobs)

    def is_at(self, path: Path) -> bool:
        """Whether a file has the same content."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        with path.open("rb") as stream:
            return all(digest_of(stream.read(blob.size)) == blob.digest for blob in self.blobs)


def file_of(role: str, path: Path, piece_bytes: int) -> File:
    """Return a file as it will be in an artifact, in pieces of so many bytes. Raises UsageError."""
    blobs: list[Blob] = []
    try:
        with path.open("rb") as stream:
            while (piece := stream.read(piece_bytes)) or not blobs:
                blobs.append(Blob(digest_of(piece), len(piece)))
    except OSError as failure:
        raise UsageError(f"cannot read {path}: {failure.strerror}") from None
    return File(role, path.name, tuple(blobs))


def write_manifest(config: Blob, files: Sequence[File]) -> bytes:
    """Return the manifest of an artifact (OCI image specification, v1.1); equal artifacts have equal ones."""
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": ROLES["bundle"],
        "config": {"mediaType": CONFIG, "digest": config.digest, "size": config.size},
        "layers": [layer for file in files for layer in _layers(file)],
    }
    return json.dumps(manifest, separators=(",", ":"), sort_keys=True).encode()


def _layers(file: File) -> Iterator[dict[str, Any]]:
    for number, blob in enumerate(file.blobs):
        whole = len(file.blobs) == 1
        names = {TITLE: file.name} if whole else {TITLE: f"{file.name}.{number:05}", PIECE_OF: file.name}
        yield {"mediaType": ROLES[file.role], "digest": blob.digest, "size": blob.size, "annotations": names}


def read_manifest(content: bytes, where: str) -> list[File]:
    """Return the files of an artifact, exactly one of them a bundle. Raises BundleError."""
    pieces: dict[str, list[tuple[str, Blob]]] = {}
    try:
        value = json.loads(content)
        config = value["config"]["mediaType"]
        if config != CONFIG:
            raise BundleError(f"{where} is no bundle but of type {str(config)[:100]!r}")
        for layer in value["layers"]:
            name, role, blob = _read_layer(layer)
            if name in pieces and PIECE_OF not in layer["annotations"]:
                raise ValueError(f"two files are named {name!r}")
            pieces.setdefault(name, []).append((role, blob))
        files = [File(parts[0][0], name, tuple(blob for _, blob in parts)) for name, parts in pieces.items()]
        if any(len({role for role, _ in parts}) > 1 for parts in pieces.values()) or len(files) > MAX_FILES:
            raise ValueError("too many files, or pieces that do not belong together")
    except (ValueError, KeyError, TypeError, AttributeError) as failure:
        raise BundleError(f"{where}: its manifest is damaged: {type(failure).__name__}: {failure}") from None
    roles = [file.role for file in files]
    if roles.count("bundle") != 1 or max(map(roles.count, ("weights", "signature", "provenance"))) > 1:
        raise BundleError(f"{where}: its manifest is damaged: it is not of one bundle")
    return files


def _read_layer(layer: Any) -> tuple[str, str, Blob]:
    """Return what a layer is or belongs to: the name of its file, its role, and its blob."""
    annotations, digest, size = layer["annotations"], layer["digest"], layer["size"]
    name = annotations.get(PIECE_OF, annotations[TITLE])
    role = next((role for role, media in ROLES.items() if media == layer["mediaType"]), "record")
    # A hidden file could be one that programs read, and nobody sees.
    if not isinstance(name, str) or not re.fullmatch(r"[^/\\\0-\x1f.][^/\\\0-\x1f]{0,199}", name):
        raise ValueError(f"a file cannot be named {str(name)[:100]!r}")
    if not isinstance(digest, str) or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ValueError(f"{name} has no SHA-256")
    if type(size) is not int or not 0 <= size <= MAX_BLOB_BYTES:
        raise ValueError(f"{name} has no size")
    return name, role, Blob(digest, size)


def digest_of(content: bytes) -> str:
    """Return the digest of a blob or a manifest."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
