"""Engines of TensorRT in a bundle: a record for each, which says where its bytes are, and whether there are any.

The section ``.packager.engines`` has a record for each engine, as ``pk_engine_record_t`` of templates/tensorrt: little-
endian, without padding. An engine is *embedded* in the code, or *appended*: it lies in ``.packager.engine_data``, a
section that is not loaded, at the end of the file, from where the runtime maps it; or it is *pending*.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packager.bundle.elf.tables import HEADER, SECTION, SHF_COMPRESSED, SHT_PROGBITS, Section, read_sections
from packager.bundle.elf.window import open_window
from packager.bundle.hashing import sha256
from packager.errors import BundleError

ENGINES_SECTION = ".packager.engines"
ENGINE_DATA_SECTION = ".packager.engine_data"
ENGINE_ALIGNMENT = 0x10000
"""Of an appended engine: the largest pages that machines have, so that it can be mapped."""

LIBRARY_NUMBERS = {1: "tensorrt", 2: "tensorrt_rtx", 3: "tensorrt_lean"}
_RECORD = struct.Struct("<64sQQQi4ii32s")
_MAX_RECORDS = 4096


@dataclass(frozen=True)
class EngineRecord:
    """An engine: ``key`` names it, ``library`` runs it.

    The rest is zero while it is pending: ``bytes`` and ``sha256`` of its data, ``version`` of the library that has
    built it (major, minor, patch, build), ``arch`` of its GPU (90; 0: several), ``memory`` that a run needs, in bytes.
    ``offset`` is that of its data in the file; 0 if the code has them embedded.
    """

    key: str
    library: str
    bytes: int = 0
    offset: int = 0
    memory: int = 0
    version: tuple[int, int, int, int] = (0, 0, 0, 0)
    arch: int = 0
    sha256: str = "0" * 64

    @property
    def state(self) -> Literal["pending", "embedded", "appended"]:
        """Where it is."""
        if not self.bytes:
            return "pending"
        return "appended" if self.offset else "embedded"


@dataclass(frozen=True)
class NewEngine:
    """What ``append_engines`` is to write: the engine itself, and what its record says of it."""

    data: bytes
    version: tuple[int, int, int, int]
    arch: int
    memory: int


def read_engines(path: Path) -> tuple[EngineRecord, ...]:
    """Return the records of a bundle's engines; none if it has none. Raises BundleError, UsageError."""
    with open_window(path) as window:
        table = read_sections(window)
        section = table.by_name().get(ENGINES_SECTION)
        return _records(table.content(_checked(section)), window.size) if section else ()


def append_engines(path: Path, engines: Mapping[str, NewEngine]) -> tuple[EngineRecord, ...]:
    """Put engines, by their keys, at the end of a shared bundle, in place of those that are appended there already.

    The file is changed in place, and has to be sealed anew afterwards. Returns all records. Raises BundleError,
    UsageError, OSError.
    """
    with open_window(path) as window:
        table = read_sections(window)
        if window.base or table.type != "shared":
            raise BundleError(f"{path}: engines can be appended to a shared bundle only", hint="build one, NAME.so")
        named = table.by_name()
        if ENGINES_SECTION not in named or ENGINE_DATA_SECTION not in named:
            raise BundleError(f"{path} has no place for engines", hint="build it with a Target of kind tensorrt")
        section, data = _checked(named[ENGINES_SECTION]), named[ENGINE_DATA_SECTION]
        records = {record.key: record for record in _records(table.content(section), window.size)}
        header = HEADER.unpack(window.read(0, HEADER.size, "ELF header"))
        index = table.sections.index(data)
    if unknown := sorted(engines.keys() - records.keys()):
        raise BundleError(f"{path} has no engine {unknown[0][:12]}", hint="it is of another bundle")
    if lost := sorted(key for key, one in records.items() if one.state == "appended" and key not in engines):
        raise BundleError(f"engine {lost[0][:12]} would be lost", hint="append all engines of a bundle at once")
    with path.open("r+b") as file:
        if any(record.state == "appended" for record in records.values()):
            file.truncate(data.offset)
        start = _padded(file.seek(0, os.SEEK_END))
        for key, engine in engines.items():
            records[key] = EngineRecord(
                key,
                records[key].library,
                len(engine.data),
                _padded(file.seek(0, os.SEEK_END)),
                engine.memory,
                engine.version,
                engine.arch,
                sha256([engine.data]),
            )
            file.seek(records[key].offset)
            file.write(engine.data)
        end = file.seek(0, os.SEEK_END)
        file.seek(section.offset)
        file.write(b"".join(map(encode_record, records.values())))
        sections_at = header[6] + index * SECTION.size
        file.seek(sections_at)
        fields = list(SECTION.unpack(file.read(SECTION.size)))
        fields[4:6] = start, end - start
        file.seek(sections_at)
        file.write(SECTION.pack(*fields))
    return tuple(records.values())


def encode_record(record: EngineRecord) -> bytes:
    """Return the bytes of a record."""
    numbers = {name: number for number, name in LIBRARY_NUMBERS.items()}
    return _RECORD.pack(
        record.key.encode("ascii"),
        record.offset,
        record.bytes,
        record.memory,
        numbers[record.library],
        *record.version,
        record.arch,
        bytes.fromhex(record.sha256),
    )


def check_engines(path: Path, records: Sequence[EngineRecord]) -> list[str]:
    """Return what is wrong with the appended engines of a bundle: their keys, of those whose hash differs."""
    with open_window(path) as window:
        return [
            record.key
            for record in records
            if record.state == "appended"
            and sha256(window.chunks(record.offset, record.bytes, "engine")) != record.sha256
        ]


def _padded(offset: int) -> int:
    return -(-offset // ENGINE_ALIGNMENT) * ENGINE_ALIGNMENT


def _checked(section: Section) -> Section:
    if section.type != SHT_PROGBITS or section.flags & SHF_COMPRESSED or section.size > _MAX_RECORDS * _RECORD.size:
        raise _damaged("it is compressed, too long or has no bytes in the file")
    return section


def _records(content: bytes, file_bytes: int) -> tuple[EngineRecord, ...]:
    if len(content) % _RECORD.size:
        raise _damaged("it is cut short")
    records = tuple(_record(fields, file_bytes) for fields in _RECORD.iter_unpack(content))
    if len({record.key for record in records}) != len(records):
        raise _damaged("two records have the same key")
    return records


def _record(fields: tuple[Any, ...], file_bytes: int) -> EngineRecord:
    key, offset, size, memory, library, major, minor, patch, build, arch, data_sha256 = fields
    text = key.decode("ascii", "replace")
    if len(text) != 64 or set(text) - set("0123456789abcdef"):
        raise _damaged("a key is no SHA-256")
    if library not in LIBRARY_NUMBERS:
        raise _damaged(f"{text[:12]} is for library {library}")
    if offset + size > file_bytes or (offset and not size):
        raise _damaged(f"{text[:12]} lies outside the file")
    version = (major, minor, patch, build)
    return EngineRecord(text, LIBRARY_NUMBERS[library], size, offset, memory, version, arch, data_sha256.hex())


def _damaged(why: str) -> BundleError:
    return BundleError(f"{ENGINES_SECTION} is damaged: {why}", hint="copy the bundle again, or rebuild it")
