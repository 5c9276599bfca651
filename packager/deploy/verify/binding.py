"""Checks what the dynamic linker binds: relocations, dynamic symbols, the hash table and the needed versions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from packager.bundle.elf import loader
from packager.bundle.elf.loader import LoaderView, Relocation
from packager.bundle.elf.symbols import (
    DEFAULT,
    FUNCTION,
    GLOBAL,
    LOCAL,
    NOTYPE,
    OBJECT,
    SECTION,
    SHT_DYNSYM,
    SHT_SYMTAB,
    UNDEFINED,
    Symbol,
    misspelled_versions,
    read_symbols,
)
from packager.bundle.elf.tables import SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE
from packager.bundle.isa.levels import DISPATCHED_SECTION
from packager.bundle.manifest import CONSTANTS_SECTION, LIBRARIES_SECTION, SECTION_NAME, SELECTION_SECTION
from packager.bundle.section import SECTION_HEADER
from packager.deploy.verify.findings import some

_RESERVED_SLOTS = 3 * 8  # bytes at DT_PLTGOT that belong to the dynamic linker
_WEAK, _TLS = 2, 6
# Per machine: relative; absolute by symbol; slots of the GOT and PLT; of thread-local storage; ifunc.
_RELOCATIONS = {
    "x86_64": (8, 1, {6, 7}, {16, 17, 18, 36}, 37),
    "aarch64": (1027, 257, {1025, 1026}, {1028, 1029, 1030, 1031}, 1032),
    "riscv64": (3, 2, {5}, {7, 9, 11}, 58),
}


def binding_problems(view: LoaderView, exports: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield (where, what) of everything that the dynamic linker would bind otherwise than it is verified, or refuse.

    Ifuncs are allowed in the section of code that checks the CPU itself alone. Raises BundleError.
    """
    symbols = read_symbols(view.table, SHT_DYNSYM)
    for what in some(_relocations(view, symbols)):
        yield "relocations", what
    for what in some(_symbols(view, symbols)):
        yield ".dynsym", what
    for name in exports:
        found = view.lookup(name)
        if found is None or found >= len(symbols) or symbols[found].name != name:
            yield ".gnu.hash", f"the exported {name} cannot be found by its hash"
    for what in some(misspelled_versions(view.table, symbols)):
        yield ".gnu.version_r", what


def _relocations(view: LoaderView, symbols: list[Symbol]) -> Iterator[str]:
    if view.table.machine not in _RELOCATIONS:
        yield f"of a machine without a list of relocations: {view.table.machine}"
        return
    entries = list(view.relocations())
    yield from _places(view, entries)
    relative, absolute, slots, thread_local, ifunc = _RELOCATIONS[view.table.machine]
    mapped = [(s.address, s.address + s.size) for s in view.table.sections if s.flags & SHF_ALLOC and s.size]
    own = view.table.by_name().get(DISPATCHED_SECTION)
    for entry in entries:
        if entry.type == relative:
            if entry.symbol or not any(start <= entry.addend <= end for start, end in mapped):
                yield f"one at {entry.offset:#x} that points outside the image's sections"
        elif entry.type == absolute or entry.type in slots:
            yield from _by_symbol(entry, symbols)
        elif entry.type in thread_local:
            if entry.symbol and (entry.symbol >= len(symbols) or symbols[entry.symbol].type != _TLS):
                yield f"one at {entry.offset:#x} of a symbol that is not thread-local"
        elif entry.type == ifunc and own is not None:
            if not own.address <= entry.addend < own.address + own.size:
                yield f"an ifunc at {entry.offset:#x} whose resolver is not in {DISPATCHED_SECTION}"
        else:
            yield f"one of type {entry.type} at {entry.offset:#x}"
    yield from _slots(view, [entry for entry in entries if entry.type in slots])
    yield from _relative(view, [entry for entry in entries if entry.type == relative])
    used = {entry.symbol for entry in entries if entry.type != relative}
    for index, symbol in enumerate(symbols):
        if index and symbol.section == UNDEFINED and symbol.binding != _WEAK and index not in used:
            yield f"none binds {symbol.name!r}, which the file needs"


def _places(view: LoaderView, entries: list[Relocation]) -> Iterator[str]:
    """Check that each pointer that is written is whole, alone and in memory for data."""
    writable = [s for s in view.table.sections if s.flags & SHF_ALLOC and s.flags & SHF_WRITE and s.name != ".dynamic"]
    taken = set[int]()
    for entry in entries:
        if not any(s.address <= entry.offset and entry.offset + 8 <= s.address + s.size for s in writable):
            yield f"one at {entry.offset:#x}, in memory that is not written to"
        if entry.offset % 8:
            yield f"one at {entry.offset:#x}, which is not aligned"
        if entry.offset in taken:
            yield f"two at {entry.offset:#x}"
        taken.add(entry.offset)


def _slots(view: LoaderView, entries: list[Relocation]) -> Iterator[str]:
    """Check that each symbol has one slot of a kind, and in the global offset table behind its reserved ones."""
    tables = [s for s in view.table.sections if s.name in (".got", ".got.plt")]
    reserved = view.value(loader.DT_PLTGOT) or 0
    bound = set[tuple[int, int]]()
    for entry in entries:
        if (entry.type, entry.symbol) in bound:
            yield f"two slots of the symbol {entry.symbol}"
        bound.add((entry.type, entry.symbol))
        inside = any(table.address <= entry.offset < table.address + table.size for table in tables)
        if not inside or reserved <= entry.offset < reserved + _RESERVED_SLOTS:
            yield f"a slot at {entry.offset:#x} that is not in the global offset table"


def _relative(view: LoaderView, entries: list[Relocation]) -> Iterator[str]:
    """Check the order of relative relocations, their count, and that the entrypoint's data are pointed to."""
    for one, other in itertools.pairwise(entries):
        if one.offset > other.offset:
            yield f"one at {other.offset:#x} that is out of order"
    pointed = {entry.addend for entry in entries}
    whole = (CONSTANTS_SECTION, SELECTION_SECTION, LIBRARIES_SECTION)
    for name, skipped in ((SECTION_NAME, SECTION_HEADER.size), *((name, 0) for name in whole)):
        section = view.table.by_name().get(name)
        if section is not None and section.size and section.address + skipped not in pointed:
            yield f"none points to {name}"
    count = view.value(loader.DT_RELACOUNT)
    if count is not None and count > len(entries):
        yield f"DT_RELACOUNT is {count}, but {len(entries)} are relative"


def _by_symbol(entry: Relocation, symbols: list[Symbol]) -> Iterator[str]:
    if not 0 < entry.symbol < len(symbols):
        yield f"one at {entry.offset:#x} of symbol {entry.symbol}, of {len(symbols)}"
    elif symbols[entry.symbol].type not in (NOTYPE, OBJECT, FUNCTION):
        yield f"one at {entry.offset:#x} of a symbol of type {symbols[entry.symbol].type}"
    elif entry.addend and symbols[entry.symbol].section == UNDEFINED:
        yield f"one at {entry.offset:#x} that adds {entry.addend} to another library's symbol"


def _symbols(view: LoaderView, symbols: list[Symbol]) -> Iterator[str]:
    sections = view.table.sections
    static = {symbol.name: symbol for symbol in read_symbols(view.table, SHT_SYMTAB) if symbol.section != UNDEFINED}
    if not symbols or any(symbols[0][1:]):
        yield "the first symbol is not empty"
    for symbol in symbols[1:]:
        if symbol.type == SECTION and symbol.binding == LOCAL and not symbol.name:
            continue  # ld writes them for aarch64; nothing binds to them
        if symbol.type not in (NOTYPE, OBJECT, FUNCTION) or symbol.binding not in (GLOBAL, _WEAK):
            yield f"{symbol.name!r} has type {symbol.type} and binding {symbol.binding}"
        elif symbol.section == UNDEFINED:
            if symbol.visibility != DEFAULT or symbol.value:
                yield f"{symbol.name!r} is undefined and has a value or a visibility"
        elif symbol.section >= len(sections) or not sections[symbol.section].flags & SHF_EXECINSTR:
            yield f"{symbol.name!r} is exported and not in a section of code"
        elif symbol.name in static and static[symbol.name][3:] != symbol[3:]:
            yield f"{symbol.name!r} is not the symbol of that name in .symtab"
        else:
            yield from _inside(view, symbol)
    for symbol in symbols[1:]:
        if symbol.section == UNDEFINED and symbol.binding != _WEAK and not symbol.name:
            yield "an undefined symbol without a name"


def _inside(view: LoaderView, symbol: Symbol) -> Iterator[str]:
    section = view.table.sections[symbol.section]
    if not section.address <= symbol.value <= symbol.value + symbol.size <= section.address + section.size:
        yield f"{symbol.name!r} is not inside {section.name!r}"
