"""Encodes the manifest's ELF section, and hashes the file around it (``docs/bundle-format.md``)."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from packager.bundle.elf.window import open_window
from packager.bundle.hashing import sha256
from packager.errors import BundleError
from packager.progress import counted_bytes

if TYPE_CHECKING:
    from packager.bundle.manifest import Manifest

SECTION_HEADER = struct.Struct("<8sQ32s16s")
SECTION_MAGIC = b"PKGRMAN1"
LARGEST_TEXT = 1 << 24
"""Bytes of a manifest: as Python's values, hostile JSON takes thirty times as much memory."""


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


def content_sha256(path: Path, section_offset: int, section_size: int) -> str:
    """Return the hex SHA-256 of a whole file, with the manifest section read as zeros.

    Reads in chunks. Raises UsageError if the file cannot be opened, BundleError if the section is outside the file.
    """
    end = section_offset + section_size
    with open_window(path) as window, counted_bytes(f"hashing {path.name}", window.size) as used:
        window.part(section_offset, section_size, "manifest section")
        before = window.chunks(0, section_offset, "file")
        after = window.chunks(end, window.size - end, "file")
        return sha256(used(itertools.chain(before, [bytes(section_size)], after)))
