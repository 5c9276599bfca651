"""Checks a static archive as the linker of a program reads it, by allow lists of what packager's linker makes.

``structure`` reads sections and symbols by the section headers, which a linker reads too. It also reads the archive's
symbol index, gives sections a meaning by their names, and writes addresses into code and data: here nothing else is
allowed than what packager's own linker makes, so that what verifies is what is linked, and can be linked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from packager.bundle.elf import archive
from packager.bundle.elf.relocations import SHT_RELA, lay_out, read_relocations
from packager.bundle.elf.symbols import (
    DEFAULT,
    FUNCTION,
    GLOBAL,
    LOCAL,
    NOTYPE,
    OBJECT,
    SECTION,
    SHT_SYMTAB,
    SYMBOL,
    UNDEFINED,
    Symbol,
    read_symbols,
)
from packager.bundle.elf.tables import (
    HEADER,
    SHF_ALLOC,
    SHF_EXECINSTR,
    SHF_MERGE,
    SHF_TLS,
    SHF_WRITE,
    SHT_NOBITS,
    SHT_STRTAB,
    SectionTable,
    entries,
    only,
    read_sections,
)
from packager.bundle.elf.window import Window, open_window
from packager.bundle.gpu.fatbin import FATBIN_SECTION
from packager.bundle.isa.levels import CODE_PREFIX, DISPATCHED_SECTION
from packager.bundle.manifest import (
    ALIGNMENT,
    CONSTANTS_SECTION,
    GOLDEN_SECTION,
    GRAPH_SECTION,
    LIBRARIES_SECTION,
    SECTION_NAME,
    SELECTION_SECTION,
)
from packager.bundle.reader import BundleFile
from packager.deploy.verify.findings import Finding, error, some
from packager.deploy.verify.interface import interface_problems
from packager.deploy.verify.padding import gaps, overlaps
from packager.deploy.verify.relocations import relocation_problems

_PROGBITS, _NOTE, _X86_64_UNWIND = 1, 7, 0x70000001
_STRINGS, _INFO_LINK, _RETAIN, _LARGE = 0x20, 0x40, 0x200000, 0x10000000
_CODE, _DATA = SHF_ALLOC | SHF_EXECINSTR, SHF_ALLOC | SHF_WRITE
_READ_ONLY = (SECTION_NAME, CONSTANTS_SECTION, SELECTION_SECTION, LIBRARIES_SECTION, FATBIN_SECTION)
# What a linker does with a section follows from its name: those that it knows, with their types and flags. Names that
# are C identifiers mean nothing to it. Constructors, destructors and linker warnings are not among them.
_KINDS: tuple[tuple[str, set[int], set[int]], ...] = (
    (rf"\.text(\..*)?|{re.escape(CODE_PREFIX)}.*|{re.escape(DISPATCHED_SECTION)}", {_PROGBITS}, {_CODE}),
    (r"\.l?rodata(\..*)?|\.gcc_except_table(\..*)?", {_PROGBITS}, {SHF_ALLOC}),
    ("|".join(map(re.escape, _READ_ONLY)), {_PROGBITS}, {SHF_ALLOC}),
    ("|".join(map(re.escape, (GOLDEN_SECTION, GRAPH_SECTION))), {_PROGBITS}, {0}),
    (r"\.eh_frame", {_PROGBITS, _X86_64_UNWIND}, {SHF_ALLOC}),
    (r"\.l?data(\..*)?", {_PROGBITS}, {_DATA}),
    (r"\.l?bss(\..*)?", {SHT_NOBITS}, {_DATA}),
    (r"\.tdata(\..*)?", {_PROGBITS}, {_DATA | SHF_TLS}),
    (r"\.tbss(\..*)?", {SHT_NOBITS}, {_DATA | SHF_TLS}),
    (r"\.note\.GNU-stack|\.comment", {_PROGBITS}, {0}),
    (r"\.note\.gnu\.property", {_NOTE}, {SHF_ALLOC}),
    (r"\.rela\..*", {SHT_RELA}, {0}),
    (r"\.symtab", {SHT_SYMTAB}, {0}),
    (r"\.strtab|\.shstrtab", {SHT_STRTAB}, {0}),
    (r"[A-Za-z_][A-Za-z0-9_]*", {_PROGBITS}, {SHF_ALLOC, _CODE, _DATA}),
)  # fmt: skip
_MERGED = re.compile(r"\.rodata.*\.(?P<kind>cst|str)(?P<bytes>[1-9][0-9]?)(\.[0-9]+)?|\.comment")
_LARGEST_ALIGN = 0x10000
_MOST_ZEROED = 1 << 30
_WEAK, _FILE, _TLS, _IFUNC = 2, 4, 6, 10
_ABSOLUTE = 0xFFF1  # SHN_ABS


def archive_findings(bundle: BundleFile) -> Iterator[Finding]:
    """Compare what the linker of a program sees with what the other checks read. Raises BundleError for damage."""
    if bundle.manifest.form != "static":
        return
    with open_window(bundle.path) as window:
        for where, what in _problems(bundle, window, read_sections(window)):
            yield error(
                "elf.linking",
                what,
                where=where,
                why="a program would be linked with something else than what is verified, or not at all",
            )


def _problems(bundle: BundleFile, file: Window, table: SectionTable) -> Iterator[tuple[str, str]]:
    """Yield (where, what); no check follows one that found something, for it presumes what that checks."""
    symbols = read_symbols(table, SHT_SYMTAB)
    exports = bundle.manifest.requirements.exports
    for where, problems in (
        ("archive", _members(file, exports)),
        ("ELF header", _header(table)),
        ("section headers", _sections(table)),
        ("bytes between sections", gaps(table)),
        (".symtab", _symbols(table, symbols, exports)),
    ):
        found = list(some(problems))
        yield from ((where, what) for what in found)
        if found:
            return
    relocations = list(read_relocations(table, symbols))
    found = list(some(relocation_problems(table, relocations)))
    yield from (("relocations", what) for what in found)
    if not found:
        view = lay_out(table, relocations)
        yield from (("entrypoint", what) for what in interface_problems(view, bundle.manifest))


def _members(file: Window, exports: tuple[str, ...]) -> Iterator[str]:
    """Check that the bytes around the object are those that ar writes for it: index, long name, header."""
    if file.read(0, min(file.size, len(archive.MAGIC)), "file") != archive.MAGIC:
        yield "not an archive"
        return
    name, body = next(archive.members(file))
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,255}", name):
        yield f"its member is called {name!r}"
        return
    expected = _before(name, body.size, exports[0])
    if file.read(0, min(body.base, file.size), "archive") != expected:
        yield f"index, names and headers are not those of an archive with {name} and {exports[0]}"
    end = body.base + body.size
    if file.read(end, file.size - end, "archive") != b"\n" * (body.size % 2):
        yield f"{file.size - end} bytes follow the object"


def _before(name: str, size: int, symbol: str) -> bytes:
    """Return what ``ar rcsD`` writes before its only member."""

    def header(title: str, values: tuple[str, str, str, str], size: int) -> bytes:
        return f"{title:<16}{values[0]:<12}{values[1]:<6}{values[2]:<6}{values[3]:<8}{size:<10}`\n".encode()

    short = len(name) < 16
    names = b"" if short else f"{name}/\n".encode()
    names += b"\n" * (len(names) % 2)
    names = names and header("//", ("", "", "", ""), len(names)) + names
    index = symbol.encode() + b"\0"
    index += b"\0" * (len(index) % 2)
    at = len(archive.MAGIC) + 60 + 8 + len(index) + len(names)
    index = header("/", ("0", "0", "0", "0"), 8 + len(index)) + (1).to_bytes(4, "big") + at.to_bytes(4, "big") + index
    return archive.MAGIC + index + names + header(f"{name}/" if short else "/0", ("0", "0", "0", "644"), size)


def _header(table: SectionTable) -> Iterator[str]:
    identity, _, _, _, entry, segments_at, _, flags, _, segment_size, *_ = HEADER.unpack(
        table.window.read(0, HEADER.size, "ELF header")
    )
    if identity[7] not in (0, 3) or any(identity[8:]):
        yield f"the ABI is {identity[7]} version {identity[8]}, not System V's or GNU's"
    if entry or segments_at or flags or segment_size or table.segments:
        yield "an entry address, processor flags or program headers, which objects do not have"


def _sections(table: SectionTable) -> Iterator[str]:
    symbols = next((index for index, header in enumerate(table.headers) if header[1] == SHT_SYMTAB), -1)
    zeroed = 0
    relocated = set[int]()
    if any(table.headers[0]):
        yield "the first section header is not empty"
    for section, header in zip(table.sections[1:], table.headers[1:], strict=True):
        merged = _MERGED.fullmatch(section.name) if section.flags & (SHF_MERGE | _STRINGS) else None
        ignored = _RETAIN | _LARGE | (SHF_MERGE | _STRINGS if merged else 0) | (
            _INFO_LINK if section.type == SHT_RELA else 0
        )  # fmt: skip
        if not any(
            re.fullmatch(name, section.name) and section.type in types and section.flags & ~ignored in flags
            for name, types, flags in _KINDS
        ):
            yield f"{section.name!r} has type {section.type:#x} and flags {section.flags:#x}"
            continue
        link, info, align, entry = header[6:]
        if section.address or align & (align - 1) or align > _LARGEST_ALIGN or header[4] % max(align, 1):
            yield f"{section.name!r} at {header[4]:#x} has address {section.address:#x} and alignment {align:#x}"
        if section.name == CONSTANTS_SECTION and align < ALIGNMENT:
            yield f"{section.name!r} is aligned to {align}, not {ALIGNMENT}"
        if section.type == SHT_NOBITS:
            zeroed += section.size
        if merged and not _is_mergeable(merged, section.flags, section.size, align, entry):
            yield f"{section.name!r} cannot be merged by {entry} bytes, with flags {section.flags:#x}"
        if section.type == SHT_RELA:
            target = table.sections[info].name if info < len(table.sections) else ""
            if link != symbols or section.name != f".rela{target}" or info in relocated or entry != 24:
                yield f"{section.name!r} is not the one table of relocations of {target!r}"
            relocated.add(info)
        elif section.type == SHT_SYMTAB:
            if table.sections[link].name != ".strtab" or entry != SYMBOL.size:
                yield f"{section.name!r} has its names in another table"
        elif link or info:
            yield f"{section.name!r} refers to section {link} and {info}"
    if zeroed > _MOST_ZEROED:
        yield f"{zeroed} bytes of zeroed memory"
    yield from overlaps(table)


def _is_mergeable(name: re.Match[str], flags: int, size: int, align: int, entry: int) -> bool:
    """Whether a section holds what its name says: strings, or constants of so many bytes."""
    if name["kind"] == "cst":
        return not flags & _STRINGS and entry == int(name["bytes"]) and size % entry == 0 and align <= entry
    return flags & (SHF_MERGE | _STRINGS) == SHF_MERGE | _STRINGS and entry == int(name["bytes"] or 1)


def _symbols(table: SectionTable, symbols: list[Symbol], exports: tuple[str, ...]) -> Iterator[str]:
    header = only(table, SHT_SYMTAB)
    if header is None or not symbols or any(symbols[0][1:]) or symbols[0].name:
        yield "no symbols, or the first one is not empty"
        return
    locals_end = next((index for index, symbol in enumerate(symbols) if symbol.binding != LOCAL), len(symbols))
    if header[7] != locals_end:
        yield f"{header[7]} local symbols by its header, {locals_end} in it"
    rows = entries(table.window, SYMBOL, header[4], header[5], "symbol table")
    if any(other & ~3 for _, _, other, *_ in rows):
        yield "a symbol has processor flags"
    for index, symbol in enumerate(symbols[1:], start=1):
        if symbol.binding == LOCAL and index > locals_end:
            yield f"the local symbol {symbol.name!r} is behind a global one"
        if what := _fault(table, symbol, exports):
            yield f"{symbol.name!r} {what}"


def _fault(table: SectionTable, symbol: Symbol, exports: tuple[str, ...]) -> str | None:
    """Return what keeps a symbol from being one that packager's linker writes."""
    if symbol.section == UNDEFINED:
        known = symbol.type == NOTYPE and symbol.binding in (GLOBAL, _WEAK) and symbol.visibility == DEFAULT
        return None if known and symbol.name and not symbol.value else "is undefined in an unknown way"
    if symbol.type == _FILE:
        return None if (symbol.binding, symbol.section) == (LOCAL, _ABSOLUTE) else "is a file and not local"
    if symbol.section >= len(table.sections):
        return f"is in section {symbol.section:#x}"
    section = table.sections[symbol.section]
    if symbol.type == _IFUNC and (symbol.binding != LOCAL or section.name != DISPATCHED_SECTION):
        return f"is an ifunc whose resolver is not local in {DISPATCHED_SECTION}"  # as in a shared library
    if symbol.type not in (NOTYPE, OBJECT, FUNCTION, SECTION, _TLS, _IFUNC):
        return f"has type {symbol.type}"
    if bool(section.flags & SHF_TLS) != (symbol.type == _TLS) and symbol.type != SECTION:
        return f"has type {symbol.type} in {section.name!r}"
    if symbol.value + symbol.size > section.size:
        return f"is not inside {section.name!r}"
    if symbol.type == FUNCTION and not section.flags & SHF_EXECINSTR:
        return f"is a function in {section.name!r}"
    if symbol.binding != LOCAL and (
        symbol.name not in exports or (symbol.type, symbol.binding, symbol.visibility) != (FUNCTION, GLOBAL, DEFAULT)
    ):
        return f"is exported with type {symbol.type} and binding {symbol.binding}"
    return None
