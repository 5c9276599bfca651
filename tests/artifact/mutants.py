"""Structured mutants of a bundle, with its hashes made anew, as an attacker would who has no key.

Each changes a field of a header or table, a byte of a section, or a value of the manifest's JSON. Bundles are shared
libraries or archives; where an archive's object starts, its ELF header is.
"""

from __future__ import annotations

import json
import random
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packager.bundle.elf.tables import Section, read_sections
from packager.bundle.elf.window import open_window
from packager.bundle.manifest import SECTION_NAME
from packager.bundle.section import SECTION_HEADER, content_sha256, encode_section

# Offset and size of each field.
HEADER = ((4, 1), (5, 1), (6, 1), (7, 1), (8, 1), (16, 2), (18, 2), (20, 4), (24, 8), (32, 8), (40, 8), (48, 4),
          (52, 2), (54, 2), (56, 2), (58, 2), (60, 2), (62, 2))  # fmt: skip
SEGMENT = ((0, 4), (4, 4), (8, 8), (16, 8), (24, 8), (32, 8), (40, 8), (48, 8))
SECTION = ((0, 4), (4, 4), (8, 8), (16, 8), (24, 8), (32, 8), (40, 4), (44, 4), (48, 8), (56, 8))
SYMBOL = ((0, 4), (4, 1), (5, 1), (6, 2), (8, 8), (16, 8))
# Section, size of an entry, its fields.
TABLES = (
    (".dynamic", 16, ((0, 8), (8, 8))),
    (".rela.dyn", 24, ((8, 4), (12, 4))),  # not where pointers are and point to: only a signature can protect that
    (".rela.plt", 24, ((0, 8), (8, 4), (12, 4), (16, 8))),
    (".dynsym", 24, SYMBOL),
    (".symtab", 24, SYMBOL),
    (".gnu.version", 2, ((0, 2),)),
    (".gnu.version_r", 4, ((0, 4),)),
    (".gnu.hash", 4, ((0, 4),)),
    (".dynstr", 1, ((0, 1),)),
    (".shstrtab", 1, ((0, 1),)),
    (".comment", 1, ((0, 1),)),
)
RELOCATION = ((0, 8), (8, 4), (12, 4), (16, 8))
MEMBER = ((0, 16), (16, 12), (28, 6), (34, 6), (40, 8), (48, 10), (58, 2))
TAGS = (1, 4, 12, 13, 14, 15, 22, 24, 25, 26, 27, 28, 29, 30, 32, 33, 35, 36, 37, 0x6FFFFEF9, 0x6FFFFEFA, 0x6FFFFEFB,
        0x6FFFFEFC, 0x6FFFFDF8, 0x7FFFFFFD, 0x7FFFFFFF, 0x6FFFFFFB, 0x6FFFFFF0, 21)  # fmt: skip
NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    8,
    0xFF,
    0x100,
    0x1000,
    0x10000,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
TEXTS = ("", "\ud800", "\0", "a" * 5000, "../../x", "é", None, 3)


@dataclass(frozen=True)
class Mutant:
    """A changed file, and what was changed."""

    content: bytes
    change: str


def resealed(
    data: bytes | bytearray, section: Section, change: Callable[[dict[str, Any]], object] | None = None
) -> bytes:
    """Return a bundle with its hashes made anew, and with another manifest. One that is no JSON is sealed as it is."""
    at, size = section.offset, section.size
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        digest = content_sha256(Path(file.name), at, size)
    content = bytearray(data)
    try:
        manifest = json.loads(bytes(data[at + SECTION_HEADER.size : at + size]))
        if change:
            change(manifest)
        text = json.dumps(manifest | {"content_sha256": digest}, separators=(",", ":")).encode()
        content[at : at + size] = encode_section(text, size)
    except (ValueError, TypeError):
        pass
    return bytes(content)


class Mutator:
    """Makes mutants of a bundle."""

    def __init__(self, bundle: Path, seed: int) -> None:
        self.original = bundle.read_bytes()
        self.rng = random.Random(seed)
        with open_window(bundle) as window:
            table = read_sections(window)
        self.base = table.window.base
        self.sections: dict[str, Section] = table.by_name()
        self.counts = (len(table.segments), len(table.headers))
        self.headers_at = self.base + struct.unpack_from("<Q", self.original, self.base + 40)[0]
        self.manifest = self.sections[SECTION_NAME]
        self.tables = [row for row in TABLES if row[0] in self.sections]
        if self.base:
            relocated = [name for name in self.sections if name.startswith(".rela.")]
            self.tables = [row for row in self.tables if row[0] != ".symtab"] + [(".symtab", 24, SYMBOL)] * 3
            self.relocated = [(name, 24, RELOCATION) for name in relocated]

    def mutants(self, count: int) -> Iterator[Mutant]:
        """Yield mutants that differ from the original."""
        changes: list[Callable[[bytearray], str]] = [
            *[self._header, self._section, self._section],
            *[self._manifest] * 3,
            *([self._section] * 4 + [self._entry, self._relocation] * 5 + [self._member] * 3 if self.base else
              [self._segment, self._segment, self._swap, self._tag, *[self._entry] * 12]),
        ]  # fmt: skip
        while count:
            data = bytearray(self.original)
            what = [self.rng.choice(changes)(data) for _ in range(1 + (self.rng.random() < 0.15))]
            if bytes(data) != self.original:
                count -= 1
                yield Mutant(resealed(data, self.manifest), " and ".join(what))

    def _put(self, data: bytearray, at: int, size: int) -> str:
        old = int.from_bytes(data[at : at + size], "little")
        section = self.rng.choice(list(self.sections.values()))
        near = old + self.rng.choice((-0x1000, -64, -24, -16, -8, -1, 1, 8, 16, 24, 64, 0x1000))
        place = self.rng.choice((section.address, section.offset, section.size, section.address + section.size))
        new = self.rng.choice((old ^ 1 << self.rng.randrange(size * 8), self.rng.choice(NUMBERS), near, place))
        new &= (1 << size * 8) - 1
        data[at : at + size] = new.to_bytes(size, "little")
        return f"{old:#x} to {new:#x} at {at:#x}"

    def _header(self, data: bytearray) -> str:
        at, size = self.rng.choice(HEADER)
        return "ELF header: " + self._put(data, self.base + at, size)

    def _segment(self, data: bytearray) -> str:
        at, size = self.rng.choice(SEGMENT)
        return "program header: " + self._put(data, 64 + 56 * self.rng.randrange(self.counts[0]) + at, size)

    def _section(self, data: bytearray) -> str:
        at, size = self.rng.choice(SECTION)
        return "section header: " + self._put(
            data, self.headers_at + 64 * self.rng.randrange(self.counts[1]) + at, size
        )

    def _swap(self, data: bytearray) -> str:
        one, other = (64 + 56 * self.rng.randrange(self.counts[0]) for _ in range(2))
        data[one : one + 56], data[other : other + 56] = data[other : other + 56], data[one : one + 56]
        return f"program headers at {one} and {other} swapped"

    def _tag(self, data: bytearray) -> str:
        dynamic = self.sections[".dynamic"]
        at = dynamic.offset + 16 * self.rng.randrange(dynamic.size // 16)
        value = self.rng.choice((0, 1, 8, 0x1000, self.rng.choice(list(self.sections.values())).address))
        tag = self.rng.choice(TAGS)
        struct.pack_into("<QQ", data, at, tag, value)
        return f"dynamic tag {tag:#x} with {value:#x} at {at:#x}"

    def _entry(self, data: bytearray) -> str:
        return self._change(data, *self.rng.choice(self.tables))

    def _relocation(self, data: bytearray) -> str:
        return self._change(data, *self.rng.choice(self.relocated))

    def _change(self, data: bytearray, name: str, entry: int, fields: tuple[tuple[int, int], ...]) -> str:
        section = self.sections[name]
        at, size = self.rng.choice(fields)
        place = section.offset + entry * self.rng.randrange(section.size // entry) + at
        return f"{name}+{at}: " + self._put(data, place, size)

    def _member(self, data: bytearray) -> str:
        """Change a byte before the archive's object, or of its member's header."""
        at, size = self.rng.choice(MEMBER)
        place = self.rng.choice((self.rng.randrange(self.base), self.base - 60 + at + self.rng.randrange(size)))
        data[place] = self.rng.choice((data[place] ^ 1 << self.rng.randrange(8), 0, 32, 48, 57))
        return f"archive: {data[place]:#x} at {place:#x}"

    def _manifest(self, data: bytearray) -> str:
        at, size = self.manifest.offset + SECTION_HEADER.size, self.manifest.size - SECTION_HEADER.size
        root = json.loads(bytes(data[at : at + size]))
        parent, key, path = root, "", ""
        value: Any = root
        while isinstance(value, (dict, list)) and value and (not path or self.rng.random() < 0.85):
            parent, key = value, self.rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
            value, path = parent[key], f"{path}.{key}"
        if isinstance(parent, dict) and self.rng.random() < 0.2:
            del parent[key]
        elif isinstance(value, int):
            parent[key] = self.rng.choice((value + 1, value - 1, 0, -1, 2**31, 2**63, 2**200, 1.5, str(value)))
        elif isinstance(value, str):
            parent[key] = self.rng.choice((f"{value}x", value[:-1], value.upper(), *TEXTS))
        else:
            parent[key] = self.rng.choice((None, [], {}, 0, "x", [value], {"a": value}))
        text = json.dumps(root, separators=(",", ":")).encode()
        data[at : at + size] = text.ljust(size)[:size]
        return f"manifest: {path}"
