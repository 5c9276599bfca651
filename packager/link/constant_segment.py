"""Appends the constants to the linked file, after everything that the linker wrote.

Assembler and linker would hold all constants in memory, so they see a placeholder section of a few bytes. It is the
last in the address space (``entrypoint/constants.ld.j2``) and can have any size: everything that code addresses
PC-relatively is before it, and constants are referenced through one 64-bit address. This module writes the bytes, and
fixes the sizes of section and segment.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from packager.bundle.elf.tables import HEADER, PT_LOAD, SECTION, SEGMENT, SHF_ALLOC, SectionTable, read_sections
from packager.bundle.elf.window import open_window
from packager.bundle.hashing import chunks
from packager.bundle.manifest import ALIGNMENT, CONSTANTS_SECTION
from packager.errors import BackendError
from packager.ir.constants import ConstantTable

_PF_R = 4


def append_constants(path: Path, table: ConstantTable) -> None:
    """Append constants at their offsets to a linked library or object, as the content of its constants section.

    Raises BackendError if a backend's section follows the constants in memory.
    """
    with open_window(path) as window:
        linked = read_sections(window)
        _, _, _, _, _, segments_at, sections_at, *_ = HEADER.unpack(window.read(0, HEADER.size, "ELF header"))
    (number,) = (index for index, section in enumerate(linked.sections) if section.name == CONSTANTS_SECTION)
    header = linked.headers[number]
    segment = _segment_of(linked, header[3])
    with path.open("r+b") as file:
        end = file.seek(0, 2)
        alignment = max(ALIGNMENT, linked.segments[segment][7] if segment is not None else 1)
        offset = end + (header[3] - end) % alignment  # the loader maps whole pages
        file.write(bytes(offset - end))
        write_constants(file, table)
        file.seek(sections_at + number * SECTION.size)
        file.write(SECTION.pack(*header[:4], offset, table.nbytes, *header[6:]))
        if segment is not None:
            kind, _, _, address, physical, _, _, align = linked.segments[segment]
            sizes = (table.nbytes, table.nbytes)
            file.seek(segments_at + segment * SEGMENT.size)
            file.write(SEGMENT.pack(kind, _PF_R, offset, address, physical, *sizes, align))


def _segment_of(linked: SectionTable, address: int) -> int | None:
    """Return the index of the segment with the constants at ``address``; None in an object, which has no segments."""
    if linked.type == "relocatable":
        return None
    behind = [s.name for s in linked.sections if s.flags & SHF_ALLOC and s.size and s.address > address]
    if behind:
        raise BackendError(
            f"the linker places {', '.join(behind)} after the constants",
            hint="backends must use the standard sections: .text, .rodata, .data, .bss",
        )
    (segment,) = (i for i, s in enumerate(linked.segments) if s[0] == PT_LOAD and s[3] == address)
    return segment


def write_constants(file: BinaryIO, table: ConstantTable) -> None:
    """Write all constants at the file's position, each at its offset; gaps are zero."""
    written = 0
    for record, array in zip(table.records, table.arrays, strict=True):
        file.write(bytes(record.offset - written))
        for part in chunks(array):
            file.write(part)
        written = record.offset + record.bytes
    file.write(bytes(table.nbytes - written))
