"""Encodes the manifest's ELF section, and hashes the file around it (``docs/bundle-format.md``)."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from packager.errors import BundleError

if TYPE_CHECKING:
    from packager.bundle.manifest import Manifest

SECTION_HEADER = struct.Struct("<8sQ32s16s")
SECTION_MAGIC = b"PKGRMAN1"


def encode_section(manifest_json: bytes, capacity: int) -> bytes:
    """Encode the manifest section in ``capacity`` bytes: header, JSON text, blanks.

    Raises ValueError if the text does not fit.
    """
    room = capacity - SECTION_HEADER.size
    if len(manifest_json) > room:
        raise ValueError(f"the manifest has {len(manifest_json)} bytes; the section has room for {room}")
    padded = manifest_json.ljust(room, b" ")
    return SECTION_HEADER.pack(SECTION_MAGIC, room, hashlib.sha256(padded).digest(), bytes(16)) + padded


def decode_section(section: bytes) -> bytes:
    """Return the JSON text of a manifest section, without padding. Raises BundleError if any bit is wrong."""
    hint = "copy the bundle again, or rebuild it"
    if len(section) < SECTION_HEADER.size:
        raise BundleError("the manifest section is shorter than its header", hint=hint)
    magic, size, digest, reserved = SECTION_HEADER.unpack_from(section)
    if not any(section):
        raise BundleError("the manifest section is empty: the bundle was never sealed", hint="rebuild it")
    if magic != SECTION_MAGIC:
        raise BundleError(f"the manifest section does not start with {SECTION_MAGIC.decode()}", hint=hint)
    padded = section[SECTION_HEADER.size :]
    if size != len(padded) or any(reserved) or hashlib.sha256(padded).digest() != digest:
        raise BundleError("the manifest is damaged: its SHA-256 does not match", hint=hint)
    return padded.rstrip(b" ")


def write_manifest(path: Path, manifest: Manifest, offset: int, size: int) -> Manifest:
    """Hash the file around its manifest section, write the manifest with that hash, and return it.

    Raises OSError, or ValueError if the text does not fit.
    """
    sealed = dataclasses.replace(manifest, content_sha256=content_sha256(path, offset, size))
    content = encode_section(sealed.to_json(), size)
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)
    return sealed


def content_sha256(file: Path | bytes, section_offset: int, section_size: int) -> str:
    """Return the hex SHA-256 of a whole file, with the manifest section read as zeros.

    Reads in chunks. Raises OSError, or ValueError if the section is outside the file.
    """
    digest = hashlib.sha256()
    end = section_offset + section_size
    if isinstance(file, bytes):
        if end > len(file):
            raise ValueError("the section does not lie in the file")
        view = memoryview(file)
        digest.update(view[:section_offset])
        digest.update(bytes(section_size))
        digest.update(view[end:])
        return digest.hexdigest()
    chunk_size = 1 << 20
    with file.open("rb") as stream:
        remaining = section_offset
        while remaining:
            chunk = stream.read(min(chunk_size, remaining))
            if not chunk:
                raise ValueError("the section does not lie in the file")
            digest.update(chunk)
            remaining -= len(chunk)
        if len(stream.read(section_size)) != section_size:
            raise ValueError("the section does not lie in the file")
        digest.update(bytes(section_size))
        while chunk := stream.read(chunk_size):
            digest.update(chunk)
    return digest.hexdigest()
