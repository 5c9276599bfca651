"""Reads the symbols of an ELF file and the symbol versions it needs, bounds-checked like ``tables``.

Format: System V ABI, chapter 4; symbol versions: LSB.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from packager.bundle.elf.tables import SectionTable, entries, linked_strings, only, string
from packager.errors import BundleError

SHT_SYMTAB, SHT_DYNSYM = 2, 11
_SHT_VERNEED, _SHT_VERSYM = 0x6FFFFFFE, 0x6FFFFFFF
SYMBOL = struct.Struct("<IBBHQQ")
_VERSION = struct.Struct("<H")
_VERSION_NEED = struct.Struct("<HHIII")
_VERSION_AUX = struct.Struct("<IHHII")
_MAX_SYMBOLS, _MAX_NAMES, _MAX_VERSIONS = 1 << 18, 1 << 26, 1 << 16  # count, bytes, bytes

LOCAL, GLOBAL, UNIQUE = 0, 1, 10  # bindings
DEFAULT, INTERNAL, HIDDEN, PROTECTED = 0, 1, 2, 3  # visibilities
NOTYPE, OBJECT, FUNCTION, SECTION, IFUNC = 0, 1, 2, 3, 10  # types
UNDEFINED = 0  # SHN_UNDEF


class Symbol(NamedTuple):
    """A symbol: ``section`` is the index of its section; ``value`` is its address, or in objects its offset in the
    section; ``size`` is in bytes."""

    name: str
    binding: int
    visibility: int
    type: int
    section: int
    value: int
    size: int

    @property
    def exported(self) -> bool:
        """Whether other files can bind to this definition."""
        return self.section != UNDEFINED and self.binding != LOCAL and self.visibility in (DEFAULT, PROTECTED)

    @property
    def is_function(self) -> bool:
        """Whether it is a function or an ifunc."""
        return self.type in (FUNCTION, IFUNC)


class NeededVersion(NamedTuple):
    """A symbol version that a file needs, and the library that provides it."""

    library: str
    name: str


@dataclass(frozen=True)
class NeededVersions:
    """All versions that a file needs; ``unversioned`` are the undefined symbols that any library may provide.

    ``imports`` are the undefined symbols, with the versions they need: ``memcpy@GLIBC_2.14``.
    """

    versions: tuple[NeededVersion, ...]
    unversioned: tuple[str, ...]
    imports: tuple[str, ...]

    def glibc(self) -> tuple[str | None, tuple[str, ...]]:
        """Return the highest GLIBC_x.y needed, and the other GLIBC_ versions."""
        found: list[str] = []
        private: set[str] = set()
        for _, name in self.versions:
            match = re.fullmatch(r"GLIBC_([0-9]{1,4}(?:\.[0-9]{1,4}){1,2})", name, re.ASCII)
            if match:
                found.append(match[1])
            elif name == "GLIBC_ABI_DT_RELR":  # marks relative relocations, which need glibc 2.36
                found.append("2.36")
            elif name.startswith("GLIBC_"):
                private.add(name)
        return max(found, key=version_key, default=None), tuple(sorted(private))


def read_symbols(table: SectionTable, type_: int) -> list[Symbol]:
    """Return the symbols of the symbol table of this section type, with its null entry; empty if there is no table."""
    header = only(table, type_)
    if header is None:
        return []
    if header[5] > _MAX_SYMBOLS * SYMBOL.size:
        raise BundleError(f"the ELF file has more than {_MAX_SYMBOLS} symbols")
    pool = linked_strings(table, type_)
    symbols = []
    left = _MAX_NAMES
    for name, info, other, index, value, size in entries(table.window, SYMBOL, header[4], header[5], "symbol table"):
        text = string(pool, name)
        left -= len(text)
        if left < 0:
            raise BundleError(f"the names of the ELF file's symbols have more than {_MAX_NAMES} bytes")
        symbols.append(Symbol(text, info >> 4, other & 3, info & 15, index, value, size))
    return symbols


def needed_versions(table: SectionTable, dynamic_symbols: list[Symbol]) -> NeededVersions:
    """Return the symbol versions that a shared library needs. Raises BundleError."""
    header = only(table, _SHT_VERNEED)
    needed: dict[int, NeededVersion] = {}
    if header is not None and header[5] > _MAX_VERSIONS:
        raise BundleError(f"the ELF file's symbol versions have more than {_MAX_VERSIONS} bytes")
    if header is not None:
        data = table.window.read(header[4], header[5], "symbol versions")
        needed = dict(_needed(data, linked_strings(table, _SHT_VERNEED)))
    indexes = _version_indexes(table, len(dynamic_symbols))
    undefined = [
        (symbol.name, needed.get(index & 0x7FFF))
        for symbol, index in zip(dynamic_symbols, indexes, strict=True)
        if symbol.section == UNDEFINED and symbol.name
    ]
    return NeededVersions(
        tuple(needed.values()),
        tuple(sorted(name for name, version in undefined if version is None)),
        tuple(sorted({f"{name}@{version.name}" if version else name for name, version in undefined})),
    )


def _version_indexes(table: SectionTable, count: int) -> list[int]:
    """Return the version index of each dynamic symbol; all 0 (no version) in a file without versions."""
    header = only(table, _SHT_VERSYM)
    if header is None:
        return [0] * count
    indexes = [index for (index,) in entries(table.window, _VERSION, header[4], header[5], "symbol versions")]
    if len(indexes) != count:
        raise BundleError("damaged ELF file: not one version for each dynamic symbol")
    return indexes


def _needed(data: bytes, pool: bytes) -> Iterator[tuple[int, NeededVersion]]:
    """Yield (version index, needed version)."""
    try:
        need_at, steps = 0, 0
        while data:
            _, count, file, aux, following = _VERSION_NEED.unpack_from(data, need_at)
            aux_at = need_at + aux
            for _ in range(count):
                steps += 1
                if steps > len(data):
                    raise BundleError("damaged ELF file: symbol versions form a cycle")
                _, _, index, name, aux_step = _VERSION_AUX.unpack_from(data, aux_at)
                yield index, NeededVersion(string(pool, file), string(pool, name))
                aux_at += aux_step
            if not following:
                return
            need_at += following
    except struct.error:
        raise BundleError("damaged ELF file: symbol versions are outside their section") from None


def misspelled_versions(table: SectionTable, dynamic_symbols: list[Symbol]) -> Iterator[str]:
    """Yield what keeps the dynamic linker from finding versions: their hashes and chains, and indexes of symbols."""
    for symbol, index in zip(dynamic_symbols, _version_indexes(table, len(dynamic_symbols)), strict=True):
        if index & 0x8000 or (symbol.exported and index > 1):
            yield f"{symbol.name!r} has the version index {index:#x}"
    header = only(table, _SHT_VERNEED)
    if header is None:
        return
    data, pool = table.window.read(header[4], header[5], "symbol versions"), linked_strings(table, _SHT_VERNEED)
    need_at = 0
    for _ in _needed(data, pool):  # raises BundleError for a table that has a cycle or leaves its section
        pass
    while data:
        version, count, _, aux, following = _VERSION_NEED.unpack_from(data, need_at)
        if version != 1:
            yield f"a table of version {version}"
        aux_at = need_at + aux
        for left in reversed(range(count)):
            hashed, flags, index, name, step = _VERSION_AUX.unpack_from(data, aux_at)
            if bool(step) != bool(left):  # which the dynamic linker follows, whatever the count
                yield "a chain of versions is longer or shorter than its count"
            if hashed != _elf_hash(string(pool, name)) or flags not in (0, 2) or not 2 <= index < 0x8000:
                yield f"{string(pool, name)!r} cannot be found by its hash"
            aux_at += step
        if not following:
            return
        need_at += following


def _elf_hash(name: str) -> int:
    """Return the hash of a version's name (System V ABI, chapter 5, Hash Table)."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high & 0xFFFFFFFF
    return value


def version_key(version: str) -> tuple[int, ...]:
    """Return the sort key of a version such as ``2.28`` or ``2.2.5``."""
    return tuple(int(part) for part in version.split("."))
