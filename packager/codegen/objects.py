"""Relocatable objects, and archives of them, as backends hand them in: what they define, need and would run."""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from packager.bundle.elf import archive
from packager.bundle.elf.symbols import GLOBAL, SECTION, SHT_SYMTAB, SYMBOL, UNDEFINED, UNIQUE, Symbol, read_symbols
from packager.bundle.elf.tables import (
    SHF_ALLOC,
    SHF_EXECINSTR,
    SHF_WRITE,
    Section,
    SectionTable,
    entries,
    only,
    read_sections,
)
from packager.bundle.elf.window import Window, open_window
from packager.errors import BundleError

_SHT_RELA = 4
_RELOCATION = struct.Struct("<QQq")
_ARRAYS = (14, 15, 16)  # SHT_INIT_ARRAY, SHT_FINI_ARRAY, SHT_PREINIT_ARRAY
_OLD_ARRAYS = (".ctors", ".dtors")
_FUNCTIONS = (".init", ".fini")
CONSTRUCTOR_SECTIONS = (".init_array*", ".fini_array*", ".preinit_array*", ".ctors*", ".dtors*", *_FUNCTIONS)
"""Patterns of the sections that name code to run when a file is loaded or unloaded."""

# Relocations that hold an address as it is: no code that may be loaded anywhere has these narrow ones, ...
_NARROW = {"x86_64": {10, 11, 12, 14}, "aarch64": {258, 259, *range(263, 270)}}  # R_X86_64_32, R_AARCH64_ABS32, ...
# ... and pages with these could not be shared between processes.
_WIDE = {"x86_64": 1, "aarch64": 257}  # R_X86_64_64, R_AARCH64_ABS64
# The distance to a symbol: to another file's it is not known before load. Branches are not among them.
_RELATIVE = {"x86_64": {2, 24}, "aarch64": {260, 261, 262, *range(273, 279)}}  # R_X86_64_PC32, R_AARCH64_PREL64, ...
# Of variables per thread, the model that only the program itself may use.
_LOCAL_EXEC = {"x86_64": {18, 23}, "aarch64": set(range(544, 560))}  # R_X86_64_TPOFF64, R_AARCH64_TLSLE_...


class Relocation(NamedTuple):
    """A place in ``section`` that is filled in with the address of ``symbol`` plus ``addend``."""

    section: Section
    type: int
    symbol: Symbol
    addend: int


@dataclass(frozen=True)
class ObjectFile:
    """An object: a file of its own, or ``member`` of an archive; ``relocations`` of the sections that are loaded."""

    file: Path
    member: str | None
    machine: str
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    relocations: tuple[Relocation, ...]

    def __str__(self) -> str:
        return f"{self.file.name}({self.member})" if self.member else self.file.name

    @property
    def leaks(self) -> tuple[str, ...]:
        """Return what it defines for everyone. Weak definitions are the compiler's own, as of inline functions."""
        return tuple(symbol.name for symbol in self.symbols if symbol.exported and symbol.binding == GLOBAL)

    @property
    def undefined(self) -> frozenset[str]:
        """Return the names of the symbols that others must define."""
        return frozenset(symbol.name for symbol in self.symbols if symbol.section == UNDEFINED and symbol.name)

    @property
    def wants_executable_stack(self) -> bool:
        """Whether it says so. Old assembly files say nothing, and want none."""
        return any(s.name == ".note.GNU-stack" and s.flags & SHF_EXECINSTR for s in self.sections)

    @property
    def is_intermediate(self) -> bool:
        """Whether it holds a compiler's intermediate code and no machine code."""
        return any(symbol.name == "__gnu_lto_slim" for symbol in self.symbols)

    def has_code(self, symbol: Symbol) -> bool:
        """Say whether a symbol is defined in a section of code."""
        return symbol.section < len(self.sections) and bool(self.sections[symbol.section].flags & SHF_EXECINSTR)

    def constructors(self) -> Iterator[str]:
        """Yield the functions that would run when a file with this object is loaded or unloaded."""
        for section in self.sections:
            if section.name in _FUNCTIONS and section.size:
                yield section.name
        for relocation in self.relocations:
            section = relocation.section
            if section.type in _ARRAYS or section.name.startswith(_OLD_ARRAYS):
                yield self._function(relocation)

    def _function(self, relocation: Relocation) -> str:
        symbol = relocation.symbol
        if symbol.type != SECTION:
            return symbol.name
        place = (symbol.section, symbol.value + relocation.addend)
        named = (s.name for s in self.symbols if s.is_function and (s.section, s.value) == place)
        return next(named, relocation.section.name)

    def position_faults(self) -> Iterator[str]:
        """Yield, once each, why its code cannot be loaded anywhere and shared between processes."""
        for relocation in self.relocations:
            where, kind = f"{relocation.section.name} ({relocation.symbol.name or 'a section'})", relocation.type
            if kind in _NARROW[self.machine]:
                yield f"{where}: absolute address"
            elif kind == _WIDE[self.machine] and not relocation.section.flags & SHF_WRITE:
                yield f"{where}: relocation in read-only memory"
            elif kind in _RELATIVE[self.machine] and relocation.symbol.section == UNDEFINED and relocation.symbol.name:
                yield f"{where}: distance to another file's symbol"
            elif kind in _LOCAL_EXEC[self.machine]:
                yield f"{where}: thread-local variable of a program"


def is_archive(path: Path) -> bool:
    """Say whether a file is an archive. Raises OSError, and BundleError for a thin one, which holds no objects."""
    with path.open("rb") as file:
        magic = file.read(len(archive.MAGIC))
    if magic == archive.THIN_MAGIC:
        raise BundleError("a thin archive, which does not hold its members")
    return magic == archive.MAGIC


def read_objects(path: Path, members: Container[str] | None = None) -> Iterator[ObjectFile]:
    """Yield the object at ``path``, or those in the archive there; of an archive only the named members, if given.

    Raises BundleError for what is not an object, UsageError if the file cannot be opened.
    """
    archived = is_archive(path)
    with open_window(path) as window:
        if not archived:
            yield _read(path, None, window)
            return
        for name, body in archive.members(window):
            if members is None or name in members:
                yield _read(path, name, body)


def _read(path: Path, member: str | None, window: Window) -> ObjectFile:
    table = read_sections(window)
    if table.type != "relocatable":
        raise BundleError(f"not an object file but {table.type}")
    symbols = tuple(read_symbols(table, SHT_SYMTAB))
    return ObjectFile(path, member, table.machine, table.sections, symbols, tuple(_relocations(table, symbols)))


def _relocations(table: SectionTable, symbols: Sequence[Symbol]) -> Iterator[Relocation]:
    for header in table.headers:
        target = header[7]
        if header[1] != _SHT_RELA or target >= len(table.sections) or not table.sections[target].flags & SHF_ALLOC:
            continue
        for _, info, addend in entries(table.window, _RELOCATION, header[4], header[5], "relocations"):
            if info >> 32 >= len(symbols):
                raise BundleError("damaged ELF file: a relocation of a symbol that is not there")
            yield Relocation(table.sections[target], info & 0xFFFFFFFF, symbols[info >> 32], addend)


def code_sections(path: Path) -> tuple[str, ...]:
    """Return the names of an object's sections of code. Raises BundleError."""
    with open_window(path) as window:
        sections = read_sections(window).sections
    return tuple(dict.fromkeys(section.name for section in sections if section.flags & SHF_EXECINSTR))


def forget_uniqueness(path: Path) -> None:
    """Make ordinary global symbols of those that are to be one in the whole process: objcopy cannot make them local."""
    with open_window(path) as window:
        table = read_sections(window)
        header = only(table, SHT_SYMTAB)
        rows = list(entries(window, SYMBOL, header[4], header[5], "symbol table")) if header else []
    with path.open("r+b") as file:
        for index, row in enumerate(rows):
            if header and row[1] >> 4 == UNIQUE:
                file.seek(header[4] + index * SYMBOL.size)
                file.write(SYMBOL.pack(row[0], GLOBAL << 4 | row[1] & 15, *row[2:]))
