"""Reads the relocations of a relocatable object, and its sections as a linker lays them out."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from packager.bundle.elf import loader
from packager.bundle.elf.symbols import UNDEFINED, Symbol
from packager.bundle.elf.tables import SHF_ALLOC, SHT_NOBITS, Section, SectionTable, entries
from packager.errors import BundleError

SHT_RELA = 4
_MAX_RELOCATIONS = 1 << 19
_RELOCATION = struct.Struct("<QQq")
ABSOLUTE = {"x86_64": 1, "aarch64": 257}
"""By machine, the type of a pointer: R_X86_64_64, R_AARCH64_ABS64."""


class Relocation(NamedTuple):
    """A relocation at ``offset`` of the section with this ``number``: the address of ``symbol`` plus ``addend``."""

    section: Section
    number: int
    offset: int
    type: int
    symbol: Symbol
    addend: int


def read_relocations(table: SectionTable, symbols: Sequence[Symbol]) -> Iterator[Relocation]:
    """Yield the relocations of the sections that are loaded. Raises BundleError."""
    left = _MAX_RELOCATIONS
    for header in table.headers:
        target = header[7]
        if header[1] != SHT_RELA or target >= len(table.sections) or not table.sections[target].flags & SHF_ALLOC:
            continue
        left -= header[5] // _RELOCATION.size
        if left < 0:
            raise BundleError(f"the ELF file has more than {_MAX_RELOCATIONS} relocations")
        for offset, info, addend in entries(table.window, _RELOCATION, header[4], header[5], "relocations"):
            if info >> 32 >= len(symbols):
                raise BundleError("damaged ELF file: a relocation refers to a missing symbol")
            yield Relocation(table.sections[target], target, offset, info & 0xFFFFFFFF, symbols[info >> 32], addend)


@dataclass(frozen=True)
class ObjectView:
    """An object whose sections have addresses, as a linker gives them: read like a LoaderView."""

    table: SectionTable
    pointers: tuple[loader.Relocation, ...]

    def read(self, address: int, size: int, what: str) -> bytes:
        """Return bytes of the file. Raises BundleError if they are not in one section."""
        for section in self.table.sections:
            if section.type == SHT_NOBITS or not section.flags & SHF_ALLOC:
                continue
            if section.address <= address and address + size <= section.address + section.size:
                at = section.offset - self.table.window.base + address - section.address
                return self.table.window.read(at, size, what)
        raise BundleError(f"damaged ELF file: {what} is in no section")

    def relocations(self) -> Iterator[loader.Relocation]:
        """Yield the pointers to what the object defines."""
        yield from self.pointers


def lay_out(table: SectionTable, relocations: Sequence[Relocation]) -> ObjectView:
    """Give the loaded sections addresses, one behind the other."""
    placed: list[Section] = []
    at = 1
    for section in table.sections:
        at += -at % 64 if section.flags & SHF_ALLOC else 0
        placed.append(dataclasses.replace(section, address=at if section.flags & SHF_ALLOC else 0))
        at += section.size + 1 if section.flags & SHF_ALLOC else 0
    pointers = tuple(
        loader.Relocation(
            placed[entry.number].address + entry.offset,
            entry.type,
            0,
            placed[entry.symbol.section].address + entry.symbol.value + entry.addend,
        )
        for entry in relocations
        if entry.type == ABSOLUTE.get(table.machine) and UNDEFINED < entry.symbol.section < len(placed)
    )
    return ObjectView(dataclasses.replace(table, sections=tuple(placed)), pointers)
