"""Checks that headers, tables and sections are all that an ELF file holds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from packager.bundle.elf.tables import HEADER, SECTION, SEGMENT, SHT_NOBITS, SectionTable

# A page of the machines with the largest ones, twice: the linker aligns the constants to one behind another.
_LARGEST_GAP = 2 * 0x10000


def overlaps(table: SectionTable) -> Iterator[str]:
    """Yield the sections that share bytes of the file."""
    stored = sorted((start, end, name) for start, end, name in _stored(table))
    for (_, end, name), (start, _, following) in itertools.pairwise(stored):
        if start < end:
            yield f"{following!r} overlaps {name!r}"


def gaps(table: SectionTable) -> Iterator[str]:
    """Yield bytes that no header, table or section holds, and that are not zero."""
    window = table.window
    headers_at = int.from_bytes(window.read(40, 8, "ELF header"), "little")
    parts = [(0, HEADER.size + SEGMENT.size * len(table.segments))]
    parts += [(headers_at, headers_at + SECTION.size * len(table.headers))]
    parts += [(start, end) for start, end, _ in _stored(table)]
    at = 0
    for start, end in [*sorted(parts), (window.size, window.size)]:
        if start < at:
            yield f"headers or sections overlap at offset {start:#x}"
            return
        if start - at > _LARGEST_GAP:
            yield f"{start - at} bytes at offset {at:#x} belong to no section"
        elif any(window.read(at, start - at, "padding")):
            yield f"the padding at offset {at:#x} is not zero"
        at = end


def _stored(table: SectionTable) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and name of the sections with bytes; offsets count from the start of the ELF file."""
    for section in table.sections:
        if section.type not in (0, SHT_NOBITS) and section.size:
            start = section.offset - table.window.base
            yield start, start + section.size, section.name
