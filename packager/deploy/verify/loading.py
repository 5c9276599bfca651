"""Checks a shared library as the dynamic linker sees it, by allow lists of what packager's linker makes.

``structure`` reads section headers; code, constants and requirements are found through them. Here they are compared
with the program headers, the mapped dynamic table and the mapped relocations, which decide what a process executes.
Whatever the linker does not make is refused: what verifies is what is loaded, and can be loaded.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from packager.bundle.elf import loader
from packager.bundle.elf.loader import LoaderView, Segment, read_loader_view
from packager.bundle.elf.tables import SHF_ALLOC, SHF_EXECINSTR, SHF_TLS, SHF_WRITE, SHT_NOBITS, read_sections
from packager.bundle.elf.window import open_window
from packager.bundle.reader import BundleFile
from packager.deploy.verify.binding import binding_problems
from packager.deploy.verify.findings import Finding, error
from packager.deploy.verify.interface import interface_problems
from packager.deploy.verify.padding import gaps, overlaps

_PAGE = 0x1000
_LARGEST_ALIGN = 0x10000
_LARGEST_IMAGE = 1 << 46
_MOST_SEGMENTS, _MOST_SECTIONS = 16, 256
_HEADER_BYTES = 64

_SHT_NOTE = 7
# NULL, PROGBITS, SYMTAB, STRTAB, RELA, DYNAMIC, NOTE, NOBITS, DYNSYM, GNU_HASH, GNU_verneed, GNU_versym,
# X86_64_UNWIND. Arrays of constructors are refused by another check, with a hint of its own.
_SECTION_TYPES = {0, 1, 2, 3, 4, 6, 7, 8, 11, 14, 15, 16, 0x6FFFFFF6, 0x6FFFFFFE, 0x6FFFFFFF, 0x70000001}
_SECTION_FLAGS = 0x1 | 0x2 | 0x4 | 0x10 | 0x20 | 0x40 | SHF_TLS | 0x200000  # W A X M S I T, and retain
_ENTRY_BYTES = {2: 24, 4: 24, 6: 16, 11: 24, 0x6FFFFFFF: 2}  # SYMTAB, RELA, DYNAMIC, DYNSYM, GNU_versym
_SEGMENT_TYPES = {
    loader.PT_LOAD: "LOAD",
    loader.PT_DYNAMIC: "DYNAMIC",
    loader.PT_NOTE: "NOTE",
    loader.PT_TLS: "TLS",
    loader.PT_GNU_EH_FRAME: "GNU_EH_FRAME",
    loader.PT_GNU_STACK: "GNU_STACK",
    loader.PT_GNU_RELRO: "GNU_RELRO",
    loader.PT_GNU_PROPERTY: "GNU_PROPERTY",
}
# Tags with the section whose address they give, and those with its size.
_ADDRESS_TAGS = {
    loader.DT_GNU_HASH: ".gnu.hash",
    loader.DT_STRTAB: ".dynstr",
    loader.DT_SYMTAB: ".dynsym",
    loader.DT_RELA: ".rela.dyn",
    loader.DT_JMPREL: ".rela.plt",
    loader.DT_VERSYM: ".gnu.version",
    loader.DT_VERNEED: ".gnu.version_r",
}
_SIZE_TAGS = {loader.DT_STRSZ: ".dynstr", loader.DT_RELASZ: ".rela.dyn", loader.DT_PLTRELSZ: ".rela.plt"}
_FIXED_TAGS = {
    loader.DT_SYMENT: {24},
    loader.DT_RELAENT: {24},
    loader.DT_PLTREL: {loader.DT_RELA},
    loader.DT_SYMBOLIC: {0},
    loader.DT_BIND_NOW: {0},
    loader.DT_FLAGS: {8, 8 | 2},  # BIND_NOW, SYMBOLIC
    loader.DT_FLAGS_1: {1},  # NOW
}
_OTHER_TAGS = {loader.DT_NEEDED, loader.DT_PLTGOT, loader.DT_RELACOUNT, loader.DT_VERNEEDNUM}
# DT_RPATH, DT_RUNPATH, DT_TEXTREL, filters and auditors are refused by checks of ``structure`` with hints of their own.
_ELSEWHERE = {15, 22, 29, 0x6FFFFEFB, 0x6FFFFEFC, 0x7FFFFFFD, 0x7FFFFFFF}


def loading_findings(bundle: BundleFile) -> Iterator[Finding]:
    """Compare what the dynamic linker sees with what the other checks read. Raises BundleError for damage."""
    if bundle.manifest.form != "shared":
        return
    with open_window(bundle.path) as window:
        for where, what in _problems(bundle, read_loader_view(read_sections(window))):
            yield error(
                "elf.loading",
                what,
                where=where,
                why="the dynamic linker would load something else than what is verified, or refuse it",
            )


def _problems(bundle: BundleFile, view: LoaderView) -> Iterator[tuple[str, str]]:
    """Yield (where, what); no check follows one that found something, for it presumes what that checks."""
    for where, problems in (
        ("ELF header", _header(view)),
        ("program headers", _segments(view)),
        ("section headers", _sections(view)),
        ("bytes between sections", gaps(view.table)),
        ("dynamic table", _tags(view)),
    ):
        found = list(problems)
        yield from ((where, what) for what in found)
        if found:
            return
    bound = list(binding_problems(view, bundle.manifest.requirements.exports))
    yield from bound
    if not bound:
        yield from (("entrypoint", what) for what in interface_problems(view, bundle.manifest))


def _header(view: LoaderView) -> Iterator[str]:
    data = view.table.window.read(0, _HEADER_BYTES, "ELF header")
    if data[7] not in (0, 3) or any(data[8:16]):
        yield f"the ABI is {data[7]} version {data[8]}, not System V's or GNU's"
    if entry := int.from_bytes(data[24:32], "little"):
        yield f"there is an entry address, {entry:#x}"
    if int.from_bytes(data[32:40], "little") != _HEADER_BYTES:
        yield "the program headers do not follow the ELF header"
    if flags := int.from_bytes(data[48:52], "little"):
        yield f"processor flags are {flags:#x}, not 0"


def _segments(view: LoaderView) -> Iterator[str]:
    """Check types, sizes, order and permissions."""
    size = view.table.window.size
    if len(view.segments) > _MOST_SEGMENTS:
        yield f"{len(view.segments)} program headers, more than {_MOST_SEGMENTS}"
        return
    for segment in view.segments:
        name = _SEGMENT_TYPES.get(segment.type)
        if name is None:
            yield f"a program header of type {segment.type:#x}"
        elif segment.file_size > segment.memory_size or segment.offset + segment.file_size > size:
            yield f"{name} is larger than its memory or its file"
        elif segment.align > _LARGEST_ALIGN or segment.align & (segment.align - 1):
            yield f"{name} is aligned to {segment.align:#x}"
        elif segment.type != loader.PT_LOAD and len(view.of_type(segment.type)) > 1 and name != "NOTE":
            yield f"more than one {name}"
    loads = view.of_type(loader.PT_LOAD)
    if not loads or loads[0].offset or loads[0].address:
        yield "the first LOAD does not map the ELF header at address 0"
    for segment in loads:
        if segment.align < _PAGE or (segment.address - segment.offset) % segment.align:
            yield f"LOAD at {segment.address:#x}: offset and address differ by no multiple of its alignment"
        if segment.flags not in (loader.PF_R, loader.PF_R | loader.PF_X, loader.PF_R | loader.PF_W):
            yield f"LOAD at {segment.address:#x} has permissions {segment.flags:#x}"
        if segment.flags & loader.PF_W == 0 and segment.file_size != segment.memory_size:
            yield f"LOAD at {segment.address:#x} has zeroed memory that cannot be written to"
        if segment.end > _LARGEST_IMAGE:
            yield f"LOAD at {segment.address:#x} ends at {segment.end:#x}"
    for one, other in itertools.pairwise(loads):
        if -(-one.end // _PAGE) * _PAGE > other.address // _PAGE * _PAGE:
            yield f"LOAD at {other.address:#x} overlaps the one before, or is out of order"
    for segment in view.segments:
        inside = any(
            load.address <= segment.address
            and segment.end <= load.end
            and segment.offset - load.offset == segment.address - load.address
            for load in loads
        )
        if segment.type not in (loader.PT_LOAD, loader.PT_GNU_STACK, loader.PT_TLS) and not inside:
            yield f"{_SEGMENT_TYPES.get(segment.type)} at {segment.address:#x} is not inside a LOAD"


def _sections(view: LoaderView) -> Iterator[str]:
    """Check that every section is of a known kind, and mapped as it says, and special segments are sections."""
    table, loads = view.table, view.of_type(loader.PT_LOAD)
    if len(table.sections) > _MOST_SECTIONS:
        yield f"{len(table.sections)} sections, more than {_MOST_SECTIONS}"
        return
    if any(header[6] >= len(table.headers) for header in table.headers):
        yield "one refers to a section that does not exist"
    if any(header[9] != _ENTRY_BYTES.get(header[1], header[9]) for header in table.headers):
        yield "one has entries of an unknown size"
    for section in table.sections:
        if section.type not in _SECTION_TYPES or section.flags & ~_SECTION_FLAGS:
            yield f"{section.name!r} has type {section.type:#x} and flags {section.flags:#x}"
        elif not section.flags & SHF_ALLOC:
            if section.address or section.flags & (SHF_WRITE | SHF_EXECINSTR):
                yield f"{section.name!r} has an address or permissions, and is not mapped"
        elif section.flags & SHF_TLS and section.type == SHT_NOBITS:
            continue  # takes no memory of the image
        elif section.size and not any(
            _maps(load, section.address, section.offset, section.size, section.type == SHT_NOBITS)
            and bool(load.flags & loader.PF_X) == bool(section.flags & SHF_EXECINSTR)
            and bool(load.flags & loader.PF_W) == bool(section.flags & SHF_WRITE)
            for load in loads
        ):
            yield f"{section.name!r} is not mapped where and as its header says"
    yield from overlaps(table)
    yield from _special(view)


def _maps(load: Segment, address: int, offset: int, size: int, zeroed: bool) -> bool:
    if zeroed:
        return load.address + load.file_size <= address and address + size <= load.end
    return (
        load.address <= address
        and address + size <= load.address + load.file_size
        and address - load.address == offset - load.offset
    )


def _special(view: LoaderView) -> Iterator[str]:
    """Check that the segments that are no LOAD cover exactly the sections that they are made for."""
    sections = view.table.sections
    for type_, chosen in (
        (loader.PT_DYNAMIC, [s for s in sections if s.name == ".dynamic"]),
        (loader.PT_TLS, [s for s in sections if s.flags & SHF_TLS]),
        (loader.PT_GNU_EH_FRAME, [s for s in sections if s.name == ".eh_frame_hdr"]),
        (loader.PT_GNU_PROPERTY, [s for s in sections if s.name == ".note.gnu.property"]),
    ):
        for segment in view.of_type(type_):
            first = min((section.address for section in chosen), default=-1)
            end = max((section.address + section.size for section in chosen), default=-1)
            if segment.address != first or abs(segment.end - end) >= max(segment.align, 1):
                yield f"{_SEGMENT_TYPES[type_]} is not the sections that it stands for"
        if chosen and not view.of_type(type_) and type_ != loader.PT_GNU_PROPERTY:
            yield f"no {_SEGMENT_TYPES[type_]} for {chosen[0].name!r}"
    for segment in view.of_type(loader.PT_NOTE):
        notes = [s for s in sections if s.type == _SHT_NOTE and s.flags & SHF_ALLOC]
        if not any(s.address == segment.address for s in notes) or segment.file_size > sum(s.size + 8 for s in notes):
            yield "NOTE is not the notes' sections"


def _tags(view: LoaderView) -> Iterator[str]:
    sections = view.table.by_name()
    known = [tag for tag, _ in view.tags]
    for tag, value in view.tags:
        if tag in _ADDRESS_TAGS or tag in _SIZE_TAGS:
            section = sections.get(_ADDRESS_TAGS.get(tag) or _SIZE_TAGS[tag])
            if section is None or value != (section.address if tag in _ADDRESS_TAGS else section.size):
                yield f"tag {tag:#x} is {value:#x}, which is not that of its section"
        elif value not in _FIXED_TAGS.get(tag, {value}):
            yield f"tag {tag:#x} is {value:#x}"
        elif tag not in _FIXED_TAGS and tag not in _OTHER_TAGS and tag not in _ELSEWHERE:
            yield f"a tag {tag:#x}"
        if tag != loader.DT_NEEDED and known.count(tag) > 1:
            yield f"more than one tag {tag:#x}"
    required = {loader.DT_GNU_HASH, loader.DT_STRTAB, loader.DT_SYMTAB, loader.DT_STRSZ, loader.DT_SYMENT}
    for tag, name in (*_ADDRESS_TAGS.items(), *_SIZE_TAGS.items()):
        if tag not in known and (tag in required or name in sections):
            yield f"no tag {tag:#x} for {name}"
    if loader.DT_RELA in known and loader.DT_RELAENT not in known:
        yield "no size of a relocation"
    if loader.DT_JMPREL in known and loader.DT_PLTREL not in known:
        yield "no type of the relocations of functions"
