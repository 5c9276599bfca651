"""Collects the facts of an ELF file: a shared library, or a relocatable object, possibly in a one-member archive."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packager.bundle.elf.symbols import (
    FUNCTION,
    IFUNC,
    LOCAL,
    NOTYPE,
    OBJECT,
    SHT_DYNSYM,
    SHT_SYMTAB,
    UNDEFINED,
    NeededVersions,
    Symbol,
    needed_versions,
    read_symbols,
)
from packager.bundle.elf.tables import (
    PT_LOAD,
    SHF_EXECINSTR,
    Section,
    SectionTable,
    entries,
    linked_strings,
    only,
    read_sections,
    string,
)
from packager.bundle.elf.window import open_window
from packager.errors import BundleError

_DYNAMIC = struct.Struct("<qQ")
_PT_DYNAMIC, _PT_GNU_STACK, _PT_GNU_RELRO = 2, 0x6474E551, 0x6474E552
_PF_X, _PF_W = 1, 2
_MAX_TAGS = 4096
_SHT_DYNAMIC = 6
_INIT_TYPES, _FINI_TYPES = (14, 16), (15,)
_CODE_OR_DATA = (NOTYPE, OBJECT, FUNCTION, IFUNC)
_DT_NEEDED, _DT_STRTAB, _DT_SYMTAB, _DT_SONAME, _DT_RPATH, _DT_TEXTREL, _DT_BIND_NOW = 1, 5, 6, 14, 15, 22, 24
_DT_INIT, _DT_FINI, _DT_INIT_SIZE, _DT_FINI_SIZE, _DT_PREINIT_SIZE = 12, 13, 27, 28, 33
_DT_RUNPATH, _DT_FLAGS, _DT_FLAGS_1 = 29, 30, 0x6FFFFFFB
_DT_LOADS_OTHERS = (0x6FFFFEFB, 0x6FFFFEFC, 0x7FFFFFFD, 0x7FFFFFFF)  # DEPAUDIT, AUDIT, AUXILIARY, FILTER


@dataclass(frozen=True)
class ElfImage:
    """The facts of an ELF file. In a relocatable object ``exports`` are all global definitions."""

    machine: str
    type: str
    file_size: int
    sections: Mapping[str, Section]
    soname: str | None
    needed: tuple[str, ...]
    other_libraries: tuple[str, ...]  # filters and auditors, which the dynamic linker also loads
    glibc: str | None
    glibc_private: tuple[str, ...]  # versions such as GLIBC_PRIVATE, which are not stable across releases
    version_libraries: tuple[str, ...]  # the libraries that needed symbol versions belong to
    exports: tuple[str, ...]
    symbols: Mapping[str, Symbol]  # definitions of code and data in .symtab
    functions: frozenset[str]  # the symbols that are functions in executable sections
    section_names: tuple[str, ...]  # by section index
    undefined: tuple[str, ...]
    imports: tuple[str, ...]  # the same with the versions that they need
    unversioned: tuple[str, ...]  # undefined symbols without a version, and so without a library
    has_textrel: bool
    relro: str  # "full", "partial" or "none"
    exec_stack: bool
    writable_code: bool
    rpath: str | None
    runpath: str | None
    init_entries: int  # functions that run at load
    fini_entries: int  # functions that run at unload
    code_bytes: int

    def section_of(self, name: str) -> str | None:
        """Return the name of the section that defines a symbol, or None."""
        symbol = self.symbols.get(name)
        return self.section_names[symbol.section] if symbol and symbol.section < len(self.section_names) else None


def read_elf(path: Path) -> ElfImage:
    """Read all facts. Raises BundleError if the file is not a supported ELF file, UsageError if it cannot be opened."""
    with open_window(path) as window:
        return image(read_sections(window), window.size)


def image(table: SectionTable, file_size: int) -> ElfImage:
    """Collect all facts, given the section table. Raises BundleError."""
    dynamic = _dynamic(table)
    pool = linked_strings(table, _SHT_DYNAMIC) if dynamic else b""

    def texts(*tags: int) -> tuple[str, ...]:
        return tuple(string(pool, value) for tag, value in dynamic if tag in tags)

    def number(wanted: int) -> int:
        return next((value for tag, value in dynamic if tag == wanted), 0)

    relocatable = table.type == "relocatable"
    static_symbols = read_symbols(table, SHT_SYMTAB)
    linked_symbols = static_symbols if relocatable else read_symbols(table, SHT_DYNSYM)
    defined = [symbol for symbol in static_symbols if symbol.section != UNDEFINED]
    versions = (
        NeededVersions((), (), _undefined(static_symbols)) if relocatable else needed_versions(table, linked_symbols)
    )
    glibc, glibc_private = versions.glibc()
    flags, flags_1 = number(_DT_FLAGS), number(_DT_FLAGS_1)
    bind_now = any(tag == _DT_BIND_NOW for tag, _ in dynamic) or flags & 8 or flags_1 & 1
    has_relro = any(segment[0] == _PT_GNU_RELRO for segment in table.segments)
    loads = [segment for segment in table.segments if segment[0] == PT_LOAD]
    return ElfImage(
        machine=table.machine,
        type=table.type,
        file_size=file_size,
        sections=table.by_name(),
        soname=next(iter(texts(_DT_SONAME)), None),
        needed=texts(_DT_NEEDED),
        other_libraries=texts(*_DT_LOADS_OTHERS),
        glibc=glibc,
        glibc_private=glibc_private,
        version_libraries=tuple(dict.fromkeys(version.library for version in versions.versions)),
        exports=tuple(
            sorted(
                symbol.name
                for symbol in linked_symbols
                if symbol.exported or (relocatable and symbol.section != UNDEFINED and symbol.binding != LOCAL)
            )
        ),
        symbols={symbol.name: symbol for symbol in reversed(defined) if symbol.type in _CODE_OR_DATA},
        functions=frozenset(
            symbol.name for symbol in defined if symbol.is_function and table.executable(symbol.section)
        ),
        section_names=tuple(section.name for section in table.sections),
        undefined=_undefined(linked_symbols),
        imports=versions.imports,
        unversioned=versions.unversioned,
        has_textrel=any(tag == _DT_TEXTREL for tag, _ in dynamic) or bool(flags & 4),
        relro="none" if not has_relro else "full" if bind_now else "partial",
        exec_stack=_exec_stack(table),
        writable_code=any(segment[1] & _PF_X and segment[1] & _PF_W for segment in loads),
        rpath=next(iter(texts(_DT_RPATH)), None),
        runpath=next(iter(texts(_DT_RUNPATH)), None),
        init_entries=_entries(table, _INIT_TYPES, number(_DT_INIT_SIZE) + number(_DT_PREINIT_SIZE), number(_DT_INIT)),
        fini_entries=_entries(table, _FINI_TYPES, number(_DT_FINI_SIZE), number(_DT_FINI)),
        code_bytes=sum(section.size for section in table.sections if section.flags & SHF_EXECINSTR),
    )


def _undefined(symbols: list[Symbol]) -> tuple[str, ...]:
    return tuple(sorted({symbol.name for symbol in symbols if symbol.section == UNDEFINED and symbol.name}))


def _entries(table: SectionTable, types: tuple[int, ...], declared: int, function: int) -> int:
    """Count the functions that the dynamic linker runs at load (or unload)."""
    size = max(declared, sum(section.size for section in table.sections if section.type in types))
    if size > table.window.size:
        raise BundleError("damaged ELF file: more constructors than fit in the file")
    return size // 8 + (function != 0)


def _dynamic(table: SectionTable) -> list[tuple[int, int]]:
    """Return the dynamic tags up to DT_NULL.

    The dynamic linker follows program headers, this reader section headers: they must agree, or verification would
    check other data than what is executed.
    """
    segments = [segment for segment in table.segments if segment[0] == _PT_DYNAMIC]
    header = only(table, _SHT_DYNAMIC)
    if header is None and not segments:
        return []
    if header is None or len(segments) != 1 or (segments[0][2], segments[0][5]) != (header[4], header[5]):
        raise BundleError("damaged ELF file: program headers and section headers disagree on the dynamic section")
    if header[5] > _MAX_TAGS * _DYNAMIC.size:
        raise BundleError(f"damaged ELF file: a dynamic section of {header[5]} bytes")
    tags = []
    for tag, value in entries(table.window, _DYNAMIC, header[4], header[5], "dynamic section"):
        if tag == 0:
            break
        tags.append((tag, value))
    symbols = only(table, SHT_DYNSYM)
    if header[6] >= len(table.headers) or symbols is None:
        raise BundleError("damaged ELF file: no dynamic symbols")
    for wanted, section in ((_DT_STRTAB, table.headers[header[6]]), (_DT_SYMTAB, symbols)):
        if [value for tag, value in tags if tag == wanted] != [section[3]] or not _mapped(table, section):
            raise BundleError("damaged ELF file: the dynamic section and the section headers disagree")
    return tags


def _mapped(table: SectionTable, section: tuple[int, ...]) -> bool:
    """Whether the program headers map this section's file bytes to its address."""
    address, offset, size = section[3:6]
    return any(
        segment[0] == PT_LOAD
        and segment[3] <= address
        and address + size <= segment[3] + segment[5]
        and address - segment[3] == offset - segment[2]
        for segment in table.segments
    )


def _exec_stack(table: SectionTable) -> bool:
    """Whether the stack is executable: marked so, or not marked at all, as in old objects."""
    if table.type == "relocatable":
        notes = [section for section in table.sections if section.name == ".note.GNU-stack"]
        return not notes or any(section.flags & SHF_EXECINSTR for section in notes)
    marks = [segment[1] for segment in table.segments if segment[0] == _PT_GNU_STACK]
    return not marks or any(flags & _PF_X for flags in marks)
