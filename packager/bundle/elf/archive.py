"""Reads the members of ar archives. A static bundle is an archive with a single member."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from packager.bundle.elf.window import Window
from packager.errors import BundleError

MAGIC = b"!<arch>\n"
THIN_MAGIC = b"!<thin>\n"
_HEADER_SIZE = 60
_INDEXES = ("/", "/SYM64/", "__.SYMDEF", "__.SYMDEF SORTED")
_LONG_NAMES = "//"


class Member(NamedTuple):
    """A file in an archive; names need not be unique."""

    name: str
    body: Window


def members(archive: Window) -> Iterator[Member]:
    """Yield the members in order, without symbol index and name table. Raises BundleError."""
    long_names = b""
    offset = len(MAGIC)
    while offset < archive.size:
        header = archive.read(offset, _HEADER_SIZE, "archive member header")
        size_field = header[48:58].rstrip(b" ")
        if header[58:60] != b"`\n" or not size_field.isdigit():
            raise BundleError(f"damaged archive: no member header at byte {offset}")
        size = int(size_field)
        body = archive.part(offset + _HEADER_SIZE, size, "archive member")
        name = _text(header[:16].rstrip(b" "))
        if name == _LONG_NAMES:
            long_names = body.read(0, body.size, "archive name table")
        elif name.startswith("#1/"):  # BSD: the name precedes the content
            length = _number(name[3:])
            name = _text(body.read(0, length, "archive member name").rstrip(b"\0"))
            body = body.part(length, size - length, "archive member")
        elif name.startswith("/") and name not in _INDEXES:
            name = _long_name(long_names, _number(name[1:]))
        if name not in (*_INDEXES, _LONG_NAMES):
            yield Member(name.removesuffix("/"), body)
        offset += _HEADER_SIZE + size + size % 2


def _long_name(table: bytes, offset: int) -> str:
    end = table.find(b"\n", offset)
    if end < 0:
        raise BundleError("damaged archive: a name is outside the name table")
    return _text(table[offset:end])


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise BundleError(f"damaged archive: {text!r} is not a number")
    return int(text)


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


def single_member(archive: Window) -> Window:
    """Return the only member of an archive. Raises BundleError unless there is exactly one."""
    found: list[Window] = []
    for member in members(archive):
        found.append(member.body)
        if len(found) > 1:
            raise BundleError("the archive has several members; a static bundle has one")
    if not found:
        raise BundleError("the archive has no member")
    return found[0]


def symbol_index(archive: Window) -> frozenset[str]:
    """Return the names in the symbol index: all definitions of its members. Raises BundleError."""
    header = archive.read(len(MAGIC), _HEADER_SIZE, "archive member header") if archive.size > len(MAGIC) else b""
    name, size_field = header[:16].rstrip(b" "), header[48:58].rstrip(b" ")
    if name not in (b"/", b"/SYM64/"):
        return frozenset()
    index = archive.read(len(MAGIC) + _HEADER_SIZE, _number(_text(size_field)), "archive symbol index")
    width = 8 if name == b"/SYM64/" else 4
    count = int.from_bytes(index[:width], "big")
    names = index[width * (count + 1) :].split(b"\0")[:count]
    if len(names) < count:
        raise BundleError("damaged archive: the symbol index has fewer names than its count")
    return frozenset(map(_text, names))
