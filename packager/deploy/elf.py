"""Facts about an ELF file, read with every offset, count and size checked against the file first.

Only what packager makes is accepted: 64-bit little-endian shared libraries and relocatable objects, also as the
one member of an archive. All else, and every inconsistency, is a BundleError; nothing here can loop or allocate
more than the file's size allows. The format: System V ABI, chapters 4 and 5, and the LSB for symbol versions.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packager.deploy import archive
from packager.deploy.window import Window, open_window
from packager.errors import BundleError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<qQ")
_VERSION_NEED = struct.Struct("<HHIII")
_VERSION_AUX = struct.Struct("<IHHII")

_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}
_TYPES = {1: "relocatable", 2: "executable", 3: "shared"}
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK, _PT_GNU_RELRO = 1, 2, 0x6474E551, 0x6474E552
_PF_X, _PF_W = 1, 2
_SHT_SYMTAB, _SHT_DYNAMIC, _SHT_NOBITS, _SHT_DYNSYM, _SHT_VERNEED = 2, 6, 8, 11, 0x6FFFFFFE
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR, SHF_COMPRESSED = 1, 2, 4, 0x800
_DT_NEEDED, _DT_STRTAB, _DT_SYMTAB, _DT_RPATH, _DT_TEXTREL, _DT_BIND_NOW = 1, 5, 6, 15, 22, 24
_DT_INIT_SIZE, _DT_FINI_SIZE, _DT_RUNPATH, _DT_FLAGS, _DT_FLAGS_1 = 27, 28, 29, 30, 0x6FFFFFFB
_DT_LOADS_OTHERS = (0x6FFFFEFB, 0x6FFFFEFC, 0x7FFFFFFD, 0x7FFFFFFF)  # DEPAUDIT, AUDIT, AUXILIARY, FILTER
_MAX_NAME = 4096
_MAX_SYMBOLS = 1 << 20


@dataclass(frozen=True)
class Section:
    """A section; ``offset`` counts from the start of the file, also when the ELF is a member of an archive."""

    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int


@dataclass(frozen=True)
class SymbolFacts:
    """A defined symbol: its value (an address, or in objects an offset), size in bytes, and ELF type number."""

    value: int
    size: int
    type: int


@dataclass(frozen=True)
class ElfImage:
    """What the file says of itself. In a relocatable object ``exports`` are all global definitions."""

    machine: str
    type: str
    file_size: int
    sections: Mapping[str, Section]
    needed: tuple[str, ...]
    other_libraries: tuple[str, ...]  # filters and auditors, which the dynamic linker would load too
    glibc: str | None
    glibc_private: tuple[str, ...]  # versions such as GLIBC_PRIVATE, which no other release of glibc has to keep
    exports: tuple[str, ...]
    symbols: Mapping[str, SymbolFacts]
    undefined: tuple[str, ...]
    has_textrel: bool
    relro: str  # "full", "partial" or "none"
    exec_stack: bool
    writable_code: bool
    rpath: str | None
    runpath: str | None
    init_entries: int
    fini_entries: int
    code_bytes: int


@dataclass(frozen=True)
class SectionTable:
    """The headers of a file: enough to find its sections, which is all that loading a bundle needs."""

    window: Window
    machine: str
    type: str
    headers: tuple[tuple[int, ...], ...]
    segments: tuple[tuple[int, ...], ...]
    sections: tuple[Section, ...]

    def by_name(self) -> dict[str, Section]:
        """Return the sections by name; of equal names the first. Raises BundleError for two of packager's."""
        result: dict[str, Section] = {}
        for section in self.sections:
            if section.name in result and section.name.startswith(".packager."):
                raise BundleError(f"the file has two sections {section.name}")
            result.setdefault(section.name, section)
        return result

    def content(self, section: Section) -> bytes:
        """Return the bytes of a section. Raises BundleError."""
        return self.window.read(section.offset - self.window.base, section.size, f"section {section.name}")


def read_elf(path: Path) -> ElfImage:
    """Read all facts. Raises BundleError if the file is not such an ELF file, UsageError if it cannot be opened."""
    with open_window(path) as window:
        return image(read_sections(window), window.size)


def read_sections(file: Window) -> SectionTable:
    """Read the ELF header, section headers and program headers of a file or archive. Raises BundleError."""
    start = file.read(0, min(file.size, 8), "file")
    window = archive.single_member(file) if start == archive.MAGIC else file
    if window.size < _HEADER.size or window.read(0, 4, "file") != b"\x7fELF":
        raise BundleError("not an ELF file", hint="a bundle is what `packager build` makes: NAME.so or libNAME.a")
    header = _HEADER.unpack(window.read(0, _HEADER.size, "ELF header"))
    identity, kind, machine, version = header[:4]
    segments_at, sections_at = header[5:7]
    header_size, segment_size, segment_count, section_size, section_count, names_index = header[8:]
    if identity[4:7] != b"\x02\x01\x01" or version != 1:
        raise BundleError("not a 64-bit little-endian ELF file")
    if kind not in _TYPES:
        raise BundleError(f"neither a library nor an object: ELF type {kind}")
    if header_size != _HEADER.size or (segment_count and segment_size != _SEGMENT.size):
        raise BundleError("damaged ELF header: wrong table entry size")
    if not sections_at or not section_count or section_size != _SECTION.size or names_index >= section_count:
        raise BundleError("the ELF file has no section headers", hint="was it stripped with sstrip, or damaged?")
    headers = tuple(_table(window, _SECTION, sections_at, section_count * _SECTION.size, "section headers"))
    segments = tuple(_table(window, _SEGMENT, segments_at, segment_count * _SEGMENT.size, "program headers"))
    for segment in segments:
        if segment[0] == _PT_LOAD:
            window.part(segment[2], segment[5], "segment")
    names = _strings(window, headers[names_index])
    sections = []
    for name, type_, flags, address, offset, size, *_ in headers:
        if type_ not in (0, _SHT_NOBITS):
            window.part(offset, size, "section")
        sections.append(Section(_string(names, name), type_, flags, address, window.base + offset, size))
    return SectionTable(
        window, _MACHINES.get(machine, f"unknown machine {machine}"), _TYPES[kind], headers, segments, tuple(sections)
    )


def image(table: SectionTable, file_size: int) -> ElfImage:
    """Return all facts of a file whose section table has been read. Raises BundleError."""
    window = table.window
    dynamic = _dynamic(table)
    strings = _linked_strings(table, _SHT_DYNAMIC) if dynamic else b""

    def texts(*tags: int) -> tuple[str, ...]:
        return tuple(_string(strings, value) for tag, value in dynamic if tag in tags)

    def number(wanted: int) -> int:
        return next((value for tag, value in dynamic if tag == wanted), 0)

    relocatable = table.type == "relocatable"
    static_symbols = list(_symbols(table, _SHT_SYMTAB))
    linked_symbols = static_symbols if relocatable else list(_symbols(table, _SHT_DYNSYM))
    flags, flags_1 = number(_DT_FLAGS), number(_DT_FLAGS_1)
    bind_now = any(tag == _DT_BIND_NOW for tag, _ in dynamic) or flags & 8 or flags_1 & 1
    has_relro = any(segment[0] == _PT_GNU_RELRO for segment in table.segments)
    loads = [segment for segment in table.segments if segment[0] == _PT_LOAD]
    sections = table.by_name()
    glibc, glibc_private = _glibc(table)
    return ElfImage(
        machine=table.machine,
        type=table.type,
        file_size=file_size,
        sections=sections,
        needed=texts(_DT_NEEDED),
        other_libraries=texts(*_DT_LOADS_OTHERS),
        glibc=glibc,
        glibc_private=glibc_private,
        exports=tuple(
            sorted(
                name
                for name, bind, visibility, index, _ in linked_symbols
                if index != 0 and bind != 0 and name and (relocatable or visibility in (0, 3))
            )
        ),
        symbols={name: facts for name, _, _, index, facts in reversed(static_symbols) if index != 0 and facts.type < 3},
        undefined=tuple(sorted({name for name, _, _, index, _ in linked_symbols if index == 0 and name})),
        has_textrel=any(tag == _DT_TEXTREL for tag, _ in dynamic) or bool(flags & 4),
        relro="none" if not has_relro else "full" if bind_now else "partial",
        exec_stack=_exec_stack(table),
        writable_code=any(segment[1] & _PF_X and segment[1] & _PF_W for segment in loads),
        rpath=next(iter(texts(_DT_RPATH)), None),
        runpath=next(iter(texts(_DT_RUNPATH)), None),
        init_entries=_entries(window, sections.get(".init_array"), number(_DT_INIT_SIZE)),
        fini_entries=_entries(window, sections.get(".fini_array"), number(_DT_FINI_SIZE)),
        code_bytes=sum(section.size for section in table.sections if section.flags & SHF_EXECINSTR),
    )


def _entries(window: Window, section: Section | None, declared: int) -> int:
    """Return the number of constructors or destructors: what the dynamic linker would run, or the object has."""
    size = max(declared, section.size if section else 0)
    if size > window.size:
        raise BundleError("damaged ELF file: more constructors than the file has room for")
    return size // 8


def _table(window: Window, entry: struct.Struct, offset: int, size: int, what: str) -> Iterator[tuple[int, ...]]:
    if size % entry.size:
        raise BundleError(f"damaged ELF file: {what} are not whole entries")
    return entry.iter_unpack(window.read(offset, size, what))


def _strings(window: Window, header: tuple[int, ...]) -> bytes:
    if header[1] != 3:
        raise BundleError("damaged ELF file: a string table is not one")
    return window.read(header[4], header[5], "string table")


def _string(strings: bytes, offset: int) -> str:
    end = strings.find(b"\0", offset, offset + _MAX_NAME)
    if end < 0:
        raise BundleError("damaged ELF file: a name lies outside its string table")
    try:
        return strings[offset:end].decode()
    except UnicodeDecodeError:
        raise BundleError("damaged ELF file: a name is not UTF-8") from None


def _only(table: SectionTable, type_: int) -> tuple[int, ...] | None:
    """Return the header of the only section of a type, or None. Raises BundleError if there are several."""
    found = [header for header in table.headers if header[1] == type_]
    if len(found) > 1:
        raise BundleError(f"damaged ELF file: {len(found)} sections of type {type_}")
    return found[0] if found else None


def _linked_strings(table: SectionTable, type_: int) -> bytes:
    header = _only(table, type_)
    if header is None or header[6] >= len(table.headers):
        raise BundleError("damaged ELF file: a table has no string table")
    return _strings(table.window, table.headers[header[6]])


def _dynamic(table: SectionTable) -> list[tuple[int, int]]:
    """Return the dynamic tags up to DT_NULL.

    The dynamic linker follows program headers and addresses, this reader section headers: they must agree, or
    what is verified here would not be what is executed there.
    """
    segments = [segment for segment in table.segments if segment[0] == _PT_DYNAMIC]
    header = _only(table, _SHT_DYNAMIC)
    if header is None and not segments:
        return []
    if header is None or len(segments) != 1 or (segments[0][2], segments[0][5]) != (header[4], header[5]):
        raise BundleError("damaged ELF file: program headers and section headers disagree on the dynamic section")
    tags = []
    for tag, value in _table(table.window, _DYNAMIC, header[4], header[5], "dynamic section"):
        if tag == 0:
            break
        tags.append((tag, value))
    symbols = _only(table, _SHT_DYNSYM)
    if header[6] >= len(table.headers) or symbols is None:
        raise BundleError("damaged ELF file: no dynamic symbols")
    for wanted, section in ((_DT_STRTAB, table.headers[header[6]]), (_DT_SYMTAB, symbols)):
        if [value for tag, value in tags if tag == wanted] != [section[3]] or not _mapped(table, section):
            raise BundleError("damaged ELF file: the dynamic section and the section headers disagree")
    return tags


def _mapped(table: SectionTable, section: tuple[int, ...]) -> bool:
    """Say whether the program headers map this section's file bytes to its address."""
    address, offset, size = section[3:6]
    return any(
        segment[0] == _PT_LOAD
        and segment[3] <= address
        and address + size <= segment[3] + segment[5]
        and address - segment[3] == offset - segment[2]
        for segment in table.segments
    )


def _symbols(table: SectionTable, type_: int) -> Iterator[tuple[str, int, int, int, SymbolFacts]]:
    """Yield (name, binding, visibility, section index, facts) of a symbol table, its null entry left out."""
    header = _only(table, type_)
    if header is None:
        return
    if header[5] > _MAX_SYMBOLS * _SYMBOL.size:
        raise BundleError("the ELF file has more than a million symbols")
    strings = _linked_strings(table, type_)
    entries = _table(table.window, _SYMBOL, header[4], header[5], "symbol table")
    next(entries, None)
    for name, info, other, index, value, size in entries:
        yield _string(strings, name), info >> 4, other & 3, index, SymbolFacts(value, size, info & 15)


def _glibc(table: SectionTable) -> tuple[str | None, tuple[str, ...]]:
    """Return the highest GLIBC_x.y among the symbol versions that the file needs, and the other GLIBC_ ones."""
    header = _only(table, _SHT_VERNEED)
    if header is None:
        return None, ()
    strings = _linked_strings(table, _SHT_VERNEED)
    data = table.window.read(header[4], header[5], "symbol versions")
    found: list[str] = []
    private: set[str] = set()
    for name in _version_names(data, strings):
        match = re.fullmatch(r"GLIBC_([0-9]{1,4}(?:\.[0-9]{1,4}){1,2})", name, re.ASCII)
        if match:
            found.append(match[1])
        elif name == "GLIBC_ABI_DT_RELR":  # glibc's way to refuse relative relocations before 2.36
            found.append("2.36")
        elif name.startswith("GLIBC_"):
            private.add(name)
    return max(found, key=version_key, default=None), tuple(sorted(private))


def _version_names(data: bytes, strings: bytes) -> Iterator[str]:
    try:
        need_at, steps = 0, 0
        while data:
            _, count, _, aux, following = _VERSION_NEED.unpack_from(data, need_at)
            aux_at = need_at + aux
            for _ in range(count):
                steps += 1
                if steps > len(data):
                    raise BundleError("damaged ELF file: symbol versions run in circles")
                name, aux_step = _VERSION_AUX.unpack_from(data, aux_at)[3:]
                yield _string(strings, name)
                aux_at += aux_step
            if not following:
                return
            need_at += following
    except struct.error:
        raise BundleError("damaged ELF file: symbol versions lie outside their section") from None


def version_key(version: str) -> tuple[int, ...]:
    """Return what versions such as ``2.28`` and ``2.2.5`` are compared by."""
    return tuple(int(part) for part in version.split("."))


def _exec_stack(table: SectionTable) -> bool:
    """Say whether the stack would be executable: marked so, or, as for old objects, not marked at all."""
    if table.type == "relocatable":
        notes = [section for section in table.sections if section.name == ".note.GNU-stack"]
        return not notes or any(section.flags & SHF_EXECINSTR for section in notes)
    marks = [segment[1] for segment in table.segments if segment[0] == _PT_GNU_STACK]
    return not marks or any(flags & _PF_X for flags in marks)
