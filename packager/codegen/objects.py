"""Reads relocatable objects and archives from backends: definitions, undefined symbols, constructors."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

from packager.bundle.elf import archive
from packager.bundle.elf.relocations import Relocation, read_relocations
from packager.bundle.elf.symbols import GLOBAL, SECTION, SHT_SYMTAB, SYMBOL, UNDEFINED, UNIQUE, Symbol, read_symbols
from packager.bundle.elf.tables import (
    SHF_EXECINSTR,
    SHF_WRITE,
    Section,
    entries,
    only,
    read_sections,
)
from packager.bundle.elf.window import Window, open_window
from packager.errors import BundleError

_ARRAYS = (14, 15, 16)  # SHT_INIT_ARRAY, SHT_FINI_ARRAY, SHT_PREINIT_ARRAY
_OLD_ARRAYS = (".ctors", ".dtors")
_FUNCTIONS = (".init", ".fini")
CONSTRUCTOR_SECTIONS = (".init_array*", ".fini_array*", ".preinit_array*", ".ctors*", ".dtors*", *_FUNCTIONS)
"""Patterns of the sections of constructors and destructors."""

# Absolute relocations. Narrow ones are impossible in position-independent code, ...
_NARROW = {"x86_64": {10, 11, 12, 14}, "aarch64": {258, 259, *range(263, 270)}}  # R_X86_64_32, R_AARCH64_ABS32, ...
# ... and wide ones in read-only sections would prevent sharing of pages.
_WIDE = {"x86_64": 1, "aarch64": 257}  # R_X86_64_64, R_AARCH64_ABS64
# PC-relative relocations except branches: the distance to another file's symbol is unknown before load.
_RELATIVE = {"x86_64": {2, 24}, "aarch64": {260, 261, 262, *range(273, 279)}}  # R_X86_64_PC32, R_AARCH64_PREL64, ...
# The local-exec TLS model, which only executables may use.
_LOCAL_EXEC = {"x86_64": {18, 23}, "aarch64": set(range(544, 560))}  # R_X86_64_TPOFF64, R_AARCH64_TLSLE_...


@dataclass(frozen=True)
class ObjectFile:
    """An object: a file, or ``member`` of an archive; ``relocations`` are those of loaded sections."""

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
        """Return its global definitions, except weak ones, which the compiler emits for inline functions."""
        return tuple(symbol.name for symbol in self.symbols if symbol.exported and symbol.binding == GLOBAL)

    @property
    def undefined(self) -> frozenset[str]:
        """Return the names of its undefined symbols."""
        return frozenset(symbol.name for symbol in self.symbols if symbol.section == UNDEFINED and symbol.name)

    @property
    def wants_executable_stack(self) -> bool:
        """Whether it is marked so. Unmarked old assembly files do not need one."""
        return any(s.name == ".note.GNU-stack" and s.flags & SHF_EXECINSTR for s in self.sections)

    @property
    def is_intermediate(self) -> bool:
        """Whether it holds only a compiler's intermediate code (LTO)."""
        return any(symbol.name == "__gnu_lto_slim" for symbol in self.symbols)

    def has_code(self, symbol: Symbol) -> bool:
        """Whether a symbol is defined in a code section."""
        return symbol.section < len(self.sections) and bool(self.sections[symbol.section].flags & SHF_EXECINSTR)

    def constructors(self) -> Iterator[str]:
        """Yield its constructors and destructors."""
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
        """Yield the distinct reasons why it is not position-independent code."""
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
    """Whether a file is an archive. Raises OSError, and BundleError for a thin archive, which holds no objects."""
    with path.open("rb") as file:
        magic = file.read(len(archive.MAGIC))
    if magic == archive.THIN_MAGIC:
        raise BundleError("a thin archive, which does not hold its members")
    return magic == archive.MAGIC


def read_objects(path: Path, members: Container[str] | None = None) -> Iterator[ObjectFile]:
    """Yield the object at ``path``, or the objects of the archive, restricted to ``members`` if given.

    Raises BundleError if it is not an object, UsageError if the file cannot be opened.
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
    return ObjectFile(path, member, table.machine, table.sections, symbols, tuple(read_relocations(table, symbols)))


def code_sections(path: Path) -> tuple[str, ...]:
    """Return the names of an object's code sections. Raises BundleError."""
    with open_window(path) as window:
        sections = read_sections(window).sections
    return tuple(dict.fromkeys(section.name for section in sections if section.flags & SHF_EXECINSTR))


def forget_uniqueness(path: Path) -> None:
    """Convert STB_GNU_UNIQUE symbols to ordinary globals: objcopy cannot localize them."""
    with open_window(path) as window:
        table = read_sections(window)
        header = only(table, SHT_SYMTAB)
        rows = list(entries(window, SYMBOL, header[4], header[5], "symbol table")) if header else []
    with path.open("r+b") as file:
        for index, row in enumerate(rows):
            if header and row[1] >> 4 == UNIQUE:
                file.seek(header[4] + index * SYMBOL.size)
                file.write(SYMBOL.pack(row[0], GLOBAL << 4 | row[1] & 15, *row[2:]))
