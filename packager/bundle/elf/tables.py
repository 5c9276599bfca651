"""Reads the header tables of an ELF file; every offset, count and size is checked against the file before use.

Accepts only what packager makes and links: 64-bit little-endian libraries and objects. Anything else, and every
inconsistency, raises BundleError; loops and allocations are bounded by the file's size. Format: System V ABI,
chapters 4 and 5.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from packager.bundle.elf import archive
from packager.bundle.elf.window import Window
from packager.errors import BundleError

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SEGMENT = struct.Struct("<IIQQQQQQ")

_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}
_TYPES = {1: "relocatable", 2: "executable", 3: "shared"}
PT_LOAD = 1
SHT_STRTAB, SHT_NOBITS = 3, 8
SHT_PROGBITS = 1
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR, SHF_MERGE, SHF_TLS, SHF_COMPRESSED = 1, 2, 4, 0x10, 0x400, 0x800
_MAX_NAME = 4096


@dataclass(frozen=True)
class Section:
    """A section; ``offset`` is relative to the start of the file, even if the ELF is a member of an archive."""

    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int


@dataclass(frozen=True)
class SectionTable:
    """The headers of a file: enough to find its sections, which is all that loading a bundle requires."""

    window: Window
    machine: str
    type: str
    headers: tuple[tuple[int, ...], ...]
    segments: tuple[tuple[int, ...], ...]
    sections: tuple[Section, ...]

    def by_name(self) -> dict[str, Section]:
        """Return the sections by name, the first of equal names. Raises BundleError for duplicate ``.packager.``
        names."""
        result: dict[str, Section] = {}
        for section in self.sections:
            if section.name in result and section.name.startswith(".packager."):
                raise BundleError(f"the file has two sections {section.name}")
            result.setdefault(section.name, section)
        return result

    def executable(self, index: int) -> bool:
        """Whether the section with this index holds code."""
        return index < len(self.sections) and bool(self.sections[index].flags & SHF_EXECINSTR)

    def content(self, section: Section) -> bytes:
        """Return the bytes of a section. Raises BundleError."""
        return self.window.read(section.offset - self.window.base, section.size, f"section {section.name}")


def read_sections(file: Window) -> SectionTable:
    """Read the ELF header, section headers and program headers of a file or archive. Raises BundleError."""
    start = file.read(0, min(file.size, 8), "file")
    window = archive.single_member(file) if start == archive.MAGIC else file
    if window.size < HEADER.size or window.read(0, 4, "file") != b"\x7fELF":
        raise BundleError("not an ELF file", hint="a bundle is what `packager build` makes: NAME.so or libNAME.a")
    header = HEADER.unpack(window.read(0, HEADER.size, "ELF header"))
    identity, kind, machine, version = header[:4]
    segments_at, sections_at = header[5:7]
    header_size, segment_size, segment_count, section_size, section_count, names_index = header[8:]
    if identity[4:7] != b"\x02\x01\x01" or version != 1:
        raise BundleError("not a 64-bit little-endian ELF file")
    if kind not in _TYPES:
        raise BundleError(f"neither a library nor an object: ELF type {kind}")
    if header_size != HEADER.size or (segment_count and segment_size != SEGMENT.size):
        raise BundleError("damaged ELF header: wrong table entry size")
    if not sections_at or not section_count or section_size != SECTION.size or names_index >= section_count:
        raise BundleError("the ELF file has no section headers", hint="was it stripped with sstrip, or damaged?")
    headers = tuple(entries(window, SECTION, sections_at, section_count * SECTION.size, "section headers"))
    segments = tuple(entries(window, SEGMENT, segments_at, segment_count * SEGMENT.size, "program headers"))
    for segment in segments:
        if segment[0] == PT_LOAD:
            window.part(segment[2], segment[5], "segment")
    names = strings(window, headers[names_index])
    sections = []
    for name, type_, flags, address, offset, size, *_ in headers:
        if type_ not in (0, SHT_NOBITS):
            window.part(offset, size, "section")
        sections.append(Section(string(names, name), type_, flags, address, window.base + offset, size))
    return SectionTable(
        window, _MACHINES.get(machine, f"unknown machine {machine}"), _TYPES[kind], headers, segments, tuple(sections)
    )


def entries(window: Window, entry: struct.Struct, offset: int, size: int, what: str) -> Iterator[tuple[int, ...]]:
    """Return the entries of a table. Raises BundleError."""
    if size % entry.size:
        raise BundleError(f"damaged ELF file: {what} are not whole entries")
    return entry.iter_unpack(window.read(offset, size, what))


def strings(window: Window, header: tuple[int, ...]) -> bytes:
    """Return the content of the string table with this section header. Raises BundleError."""
    if header[1] != SHT_STRTAB:
        raise BundleError("damaged ELF file: not a string table")
    return window.read(header[4], header[5], "string table")


def string(pool: bytes, offset: int) -> str:
    """Return the string at an offset of a string table's content. Raises BundleError."""
    end = pool.find(b"\0", offset, offset + _MAX_NAME)
    if end < 0:
        raise BundleError("damaged ELF file: a name is outside its string table")
    try:
        return pool[offset:end].decode()
    except UnicodeDecodeError:
        raise BundleError("damaged ELF file: a name is not UTF-8") from None


def only(table: SectionTable, type_: int) -> tuple[int, ...] | None:
    """Return the header of the only section of a type, or None if there is none. Raises BundleError for several."""
    found = [header for header in table.headers if header[1] == type_]
    if len(found) > 1:
        raise BundleError(f"damaged ELF file: {len(found)} sections of type {type_}")
    return found[0] if found else None


def linked_strings(table: SectionTable, type_: int) -> bytes:
    """Return the content of the string table linked from the only section of a type. Raises BundleError."""
    header = only(table, type_)
    if header is None or header[6] >= len(table.headers):
        raise BundleError("damaged ELF file: a table has no string table")
    return strings(table.window, table.headers[header[6]])
