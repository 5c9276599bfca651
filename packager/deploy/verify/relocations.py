"""Checks the relocations of an archive's object: what a program's linker writes into code and data.

Written anywhere, addresses can make any code of any bytes. Each has a place that the compiler leaves for it: an operand
of an instruction, or a pointer in data, never the data that the manifest has hashes of.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from itertools import pairwise

from packager.bundle.elf.relocations import ABSOLUTE, Relocation
from packager.bundle.elf.symbols import SECTION, UNDEFINED
from packager.bundle.elf.tables import SHF_ALLOC, SHF_EXECINSTR, SHF_MERGE, SHF_TLS, SHF_WRITE, SectionTable
from packager.bundle.gpu.fatbin import FATBIN_SECTION
from packager.bundle.manifest import (
    CONSTANTS_SECTION,
    GOLDEN_SECTION,
    GRAPH_SECTION,
    LIBRARIES_SECTION,
    SECTION_NAME,
    SELECTION_SECTION,
)

_HASHED = {
    *(SECTION_NAME, CONSTANTS_SECTION, SELECTION_SECTION, LIBRARIES_SECTION, FATBIN_SECTION),
    *(GOLDEN_SECTION, GRAPH_SECTION),
}
_FARTHEST = 1 << 28
_PREL64, _PREL32 = 24, 2  # R_X86_64_PC64, _PC32
_TLSGD, _TLSLD, _DTPOFF32, _GOTTPOFF, _PLT32 = 19, 20, 21, 22, 4
_GOT = {9, 41, 42}  # GOTPCREL, GOTPCRELX, REX_GOTPCRELX
_X86_CODE = {_PREL32, _PLT32, _TLSGD, _TLSLD, _DTPOFF32, _GOTTPOFF, *_GOT}
# By machine, the relocations of data with their sizes, and those of thread-local variables.
_DATA = {"x86_64": {1: 8, _PREL32: 4, _PREL64: 8}, "aarch64": {257: 8, 260: 8, 261: 4, 314: 4}}
_THREAD_LOCAL = {"x86_64": {_TLSGD, _TLSLD, _DTPOFF32, _GOTTPOFF}, "aarch64": {541, 542, 562, 563, 564, 569}}
# What may reach another file's symbol: by the GOT or PLT, or a pointer.
_FAR = {"x86_64": {1, _PLT32, *_GOT}, "aarch64": {257, 282, 283, 311, 312}}
# By relocation of aarch64, the bits of the instructions that it is for.
_ADRP, _LOAD_STORE = (0x9F000000, 0x90000000), 0xFB000000
_ARM_CODE = {
    274: (0x9F000000, 0x10000000),  # ADR
    275: _ADRP,
    311: _ADRP,
    541: _ADRP,
    562: _ADRP,
    277: (0x7F800000, 0x11000000),  # ADD of an immediate
    564: (0x7F800000, 0x11000000),
    278: (_LOAD_STORE, 0x39000000),
    284: (_LOAD_STORE, 0x79000000),
    285: (_LOAD_STORE, 0xB9000000),
    286: (_LOAD_STORE, 0xF9000000),
    299: (0xFF800000, 0x3D800000),  # of 16 bytes
    312: (0xFFC00000, 0xF9400000),
    542: (0xFFC00000, 0xF9400000),
    563: (0xFFC00000, 0xF9400000),
    279: (0x7E000000, 0x36000000),  # TBZ
    280: (0x7E000000, 0x34000000),  # CBZ; B.cond differs
    282: (0xFC000000, 0x14000000),
    283: (0xFC000000, 0x94000000),
    569: (0xFFFFFC1F, 0xD63F0000),  # BLR
}

# Loads and stores by scaled offsets of aarch64: bytes.
_ALIGNED = {284: 2, 285: 4, 286: 8, 299: 16}


def relocation_problems(table: SectionTable, relocations: Sequence[Relocation]) -> Iterator[str]:
    """Yield what is wrong with the relocations of an object. Raises BundleError."""
    if table.machine not in _DATA:
        yield f"of a machine without a list of relocations: {table.machine}"
        return
    of_sections: dict[int, list[Relocation]] = {}
    for entry in relocations:
        of_sections.setdefault(entry.number, []).append(entry)
    for index, own in of_sections.items():
        section = table.sections[index]
        own.sort(key=lambda entry: entry.offset)
        if section.name in _HASHED:
            yield f"{len(own)} change {section.name!r}, which the manifest has hashes of"
            continue
        for entry in own:
            if what := _target_fault(table, entry):
                yield f"one at {entry.offset:#x} of {section.name!r} {what}"
        if section.flags & SHF_EXECINSTR:
            code = table.content(section)
            yield from _arm_code(code, own) if table.machine == "aarch64" else _x86_code(code, own)
        else:
            yield from _data(table, own)
        if section.name == ".eh_frame":
            yield from _unwinding(table, table.content(section), own)


def _target_fault(table: SectionTable, entry: Relocation) -> str | None:
    """Return what is wrong with the address that a relocation writes."""
    symbol, machine = entry.symbol, table.machine
    if symbol.section == UNDEFINED:
        allowed = {-4} if machine == "x86_64" and entry.type != ABSOLUTE[machine] else {0}
        if entry.type not in _FAR[machine] or not symbol.name or entry.addend not in allowed:
            return f"of type {entry.type} reaches for {symbol.name!r} of another file, plus {entry.addend}"
        return None
    if symbol.section >= len(table.sections):
        return f"reaches for the section {symbol.section:#x}"
    section = table.sections[symbol.section]
    if not section.flags & SHF_ALLOC:
        return f"reaches into {section.name!r}, which is not loaded"
    if bool(section.flags & SHF_TLS) != (entry.type in _THREAD_LOCAL[machine]):
        return f"of type {entry.type} reaches into {section.name!r}"
    target = symbol.value + entry.addend
    if not -_FARTHEST <= target <= section.size + _FARTHEST:
        return f"reaches {target:#x} bytes into {section.name!r}"
    aligned = _ALIGNED.get(entry.type, 1) if machine == "aarch64" else 1
    if target % aligned or table.headers[symbol.section][8] < aligned:
        return f"reaches {target:#x} of {section.name!r}, which is not aligned to {aligned}"
    if symbol.type == SECTION and section.flags & SHF_MERGE and not 0 <= target < section.size:
        return f"reaches {target:#x} bytes into {section.name!r}, which is merged"
    branch = {"x86_64": (_PLT32,), "aarch64": (282, 283)}[machine]
    start = target + 4 if machine == "x86_64" else target
    if entry.type in branch and not (section.flags & SHF_EXECINSTR and 0 <= start < section.size):
        return f"branches to {start:#x} of {section.name!r}"
    return None


def _data(table: SectionTable, own: Sequence[Relocation]) -> Iterator[str]:
    section, sizes = own[0].section, _DATA[table.machine]
    end = 0
    for entry in own:
        size = sizes.get(entry.type)
        if size is None or not (entry.type != ABSOLUTE[table.machine] or section.flags & SHF_WRITE):
            yield f"one of type {entry.type} at {entry.offset:#x} of {section.name!r}"
            return
        if entry.offset < end or entry.offset + size > section.size:
            yield f"one at {entry.offset:#x} of {section.name!r} overlaps another, or the end"
        end = entry.offset + size


def _unwinding(table: SectionTable, data: bytes, own: Sequence[Relocation]) -> Iterator[str]:
    """Check that each record that tells how to unwind a function is of a function of its own: linkers sort them."""
    begins = {entry.offset: entry for entry in own}
    ranges: list[tuple[int, int, int]] = []
    at = 0
    while at + 4 <= len(data) and (size := int.from_bytes(data[at : at + 4], "little")):
        end = at + 4 + size
        if size < 12 or end > len(data):
            yield f"the record at {at:#x} of '.eh_frame' has {size} bytes"
            return
        if any(data[at + 4 : at + 8]):  # of a function; zero is what several have in common
            entry = begins.pop(at + 8, None)
            if entry is None or entry.symbol.section >= len(table.sections):
                yield f"the record at {at:#x} of '.eh_frame' is of no function"
                return
            start = entry.symbol.value + entry.addend
            ranges.append((entry.symbol.section, start, start + int.from_bytes(data[at + 12 : at + 16], "little")))
        at = end
    for number, start, following in ranges:
        section = table.sections[number]
        if not section.flags & SHF_EXECINSTR or not 0 <= start <= following <= section.size:
            yield f"a record of '.eh_frame' is of {start:#x} to {following:#x} of {section.name!r}"
    for (number, _, end), (other, start, _) in pairwise(sorted(ranges)):
        if number == other and start < end:
            yield f"two records of '.eh_frame' are of {start:#x} of {table.sections[number].name!r}"


def _arm_code(code: bytes, own: Sequence[Relocation]) -> Iterator[str]:
    end = 0
    for entry in own:
        mask, bits = _ARM_CODE.get(entry.type, (0, 1))
        word = int.from_bytes(code[entry.offset : entry.offset + 4], "little")
        conditional = entry.type == 280 and word & 0xFF000010 == 0x54000000
        if entry.offset % 4 or entry.offset + 4 > len(code) or not (word & mask == bits or conditional):
            yield f"one of type {entry.type} at {entry.offset:#x} of {entry.section.name!r}, for another instruction"
        elif entry.offset < end and entry.type != 569:
            yield f"two at {entry.offset:#x} of {entry.section.name!r}"
        end = entry.offset + 4


def _x86_code(code: bytes, own: Sequence[Relocation]) -> Iterator[str]:
    for entry in own:
        if entry.type not in _X86_CODE or entry.offset + 4 > len(code):
            yield f"one of type {entry.type} at {entry.offset:#x} of {entry.section.name!r}"
            return
    for one, other in pairwise(own):
        if other.offset < one.offset + 4:
            yield f"two at {other.offset:#x} of {one.section.name!r}"
    calls = {entry.offset for entry in own if entry.symbol.name == "__tls_get_addr"}
    for entry in own:
        at = entry.offset
        if not _fits_tls_sequence(code, at, entry.type, calls):
            yield f"one of type {entry.type} at {at:#x} of {entry.section.name!r}, for other instructions"
    if importlib.util.find_spec("iced_x86"):  # as the check of the code itself, left out without it
        from packager.bundle.isa.x86 import operand_places

        relative, others = operand_places(code)
        for entry in own:
            if entry.offset not in (others if entry.type == _DTPOFF32 else relative):
                yield f"one at {entry.offset:#x} of {entry.section.name!r}, which is not the operand of an instruction"


def _fits_tls_sequence(code: bytes, at: int, type_: int, calls: set[int]) -> bool:
    """Whether the instructions are those that a linker expects around a relocation, and may replace."""
    if type_ == _TLSGD:
        return at >= 4 and code[at - 4 : at] == b"\x66\x48\x8d\x3d" and at + 8 in calls
    if type_ == _TLSLD:
        return at >= 3 and code[at - 3 : at] == b"\x48\x8d\x3d" and bool({at + 5, at + 6} & calls)
    if type_ == _GOTTPOFF:
        return at >= 3 and code[at - 3] in (0x48, 0x4C) and code[at - 2] in (0x8B, 0x03)
    return True
