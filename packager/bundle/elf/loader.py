"""Reads a shared library as the dynamic linker does: program headers, the mapped dynamic table, mapped relocations.

``tables`` and ``file`` follow section headers, which the dynamic linker ignores. ``packager verify`` compares the two
views. Format: System V ABI, chapter 5; ld.so of glibc 2.28 to 2.41 (elf/dl-load.c, elf/do-rel.h).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from packager.bundle.elf.tables import SectionTable
from packager.errors import BundleError

PT_LOAD, PT_DYNAMIC, PT_NOTE, PT_TLS = 1, 2, 4, 7
PT_GNU_EH_FRAME, PT_GNU_STACK, PT_GNU_RELRO, PT_GNU_PROPERTY = 0x6474E550, 0x6474E551, 0x6474E552, 0x6474E553
PF_X, PF_W, PF_R = 1, 2, 4

DT_NEEDED, DT_PLTRELSZ, DT_PLTGOT, DT_STRTAB, DT_SYMTAB, DT_RELA, DT_RELASZ = 1, 2, 3, 5, 6, 7, 8
DT_RELAENT, DT_STRSZ, DT_SYMENT, DT_SONAME, DT_SYMBOLIC, DT_PLTREL, DT_JMPREL = 9, 10, 11, 14, 16, 20, 23
DT_BIND_NOW, DT_FLAGS, DT_GNU_HASH, DT_VERSYM, DT_RELACOUNT = 24, 30, 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFF9
DT_FLAGS_1, DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFFFB, 0x6FFFFFFE, 0x6FFFFFFF

_TAG = struct.Struct("<QQ")
_RELOCATION = struct.Struct("<QQq")
_HASH_HEADER = struct.Struct("<IIII")
MAX_TAGS, _MAX_RELOCATIONS = 256, 1 << 18


class Segment(NamedTuple):
    """A program header; offsets, addresses and sizes are in bytes."""

    type: int
    flags: int
    offset: int
    address: int
    physical: int
    file_size: int
    memory_size: int
    align: int

    @property
    def end(self) -> int:
        """The first address behind the segment."""
        return self.address + self.memory_size


class Relocation(NamedTuple):
    """An entry of a mapped RELA table."""

    offset: int
    type: int
    symbol: int
    addend: int


@dataclass(frozen=True)
class LoaderView:
    """What the dynamic linker sees. ``tags`` are those before DT_NULL, in order."""

    table: SectionTable
    segments: tuple[Segment, ...]
    tags: tuple[tuple[int, int], ...]

    def of_type(self, type_: int) -> tuple[Segment, ...]:
        """Return the segments of a type."""
        return tuple(segment for segment in self.segments if segment.type == type_)

    def value(self, tag: int) -> int | None:
        """Return the value of a dynamic tag, None without it."""
        return next((value for known, value in self.tags if known == tag), None)

    def read(self, address: int, size: int, what: str) -> bytes:
        """Return mapped bytes of the file. Raises BundleError if no segment maps them all."""
        for segment in self.of_type(PT_LOAD):
            if segment.address <= address and address + size <= segment.address + segment.file_size:
                return self.table.window.read(segment.offset + address - segment.address, size, what)
        raise BundleError(f"damaged ELF file: {what} is not mapped by the program headers")

    def relocations(self) -> Iterator[Relocation]:
        """Yield the entries of both tables, DT_RELA's and DT_JMPREL's. Raises BundleError."""
        for at, size in ((DT_RELA, DT_RELASZ), (DT_JMPREL, DT_PLTRELSZ)):
            address, nbytes = self.value(at), self.value(size) or 0
            if address is None:
                continue
            if nbytes % _RELOCATION.size or nbytes > _MAX_RELOCATIONS * _RELOCATION.size:
                raise BundleError("damaged ELF file: relocations are not whole entries, or too many")
            for offset, info, addend in _RELOCATION.iter_unpack(self.read(address, nbytes, "relocations")):
                yield Relocation(offset, info & 0xFFFFFFFF, info >> 32, addend)

    def lookup(self, name: str) -> int | None:
        """Return the index of the dynamic symbol ``name`` by DT_GNU_HASH, as dlsym finds it; None if it does not.

        Raises BundleError for a table that leads outside the mapped file.
        """
        table, symbols, names = (self.value(tag) for tag in (DT_GNU_HASH, DT_SYMTAB, DT_STRTAB))
        if table is None or symbols is None or names is None:
            return None
        buckets, first, words, shift = _HASH_HEADER.unpack(self.read(table, _HASH_HEADER.size, "hash table"))
        if not buckets or not words or words & (words - 1):
            return None
        hashed = _gnu_hash(name)
        word = self._number(table + 16 + 8 * (hashed // 64 % words), 8)
        if not word >> hashed % 64 & word >> ((hashed >> (shift & 31)) % 64) & 1:
            return None
        at = table + 16 + 8 * words
        index = self._number(at + 4 * (hashed % buckets), 4)
        while index >= first:
            chained = self._number(at + 4 * (buckets + index - first), 4)
            if chained | 1 == hashed | 1:
                offset = self._number(symbols + 24 * index, 4)
                if self.read(names + offset, len(name.encode()) + 1, "symbol name") == name.encode() + b"\0":
                    return index
            if chained & 1:
                return None
            index += 1
        return None

    def _number(self, address: int, size: int) -> int:
        return int.from_bytes(self.read(address, size, "hash table"), "little")


def read_loader_view(table: SectionTable) -> LoaderView:
    """Read the program headers and the dynamic table that they map. Raises BundleError."""
    segments = tuple(Segment(*segment) for segment in table.segments)
    view = LoaderView(table, segments, ())
    dynamic = view.of_type(PT_DYNAMIC)
    if len(dynamic) != 1:
        raise BundleError(f"damaged ELF file: {len(dynamic)} dynamic segments")
    size = dynamic[0].memory_size
    if size % _TAG.size or size > MAX_TAGS * _TAG.size:
        raise BundleError("damaged ELF file: the dynamic table is not whole entries, or longer than 256")
    tags: list[tuple[int, int]] = []
    for tag, value in _TAG.iter_unpack(view.read(dynamic[0].address, size, "dynamic table")):
        if tag == 0:
            return LoaderView(table, segments, tuple(tags))
        tags.append((tag, value))
    raise BundleError("damaged ELF file: the dynamic table has no end")


def _gnu_hash(name: str) -> int:
    """Return the hash of a symbol's name (DJB's, with the seed 5381)."""
    value = 5381
    for byte in name.encode():
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value
