"""The smallest part of the ar format that a static bundle needs: an archive with one object in it."""

from __future__ import annotations

from packager.deploy.window import Window
from packager.errors import BundleError

MAGIC = b"!<arch>\n"
_HEADER_SIZE = 60
_INDEXES = (b"/", b"//", b"/SYM64/")


def single_member(archive: Window) -> Window:
    """Return the one object of an archive, past its symbol index and name table. Raises BundleError."""
    members = []
    offset = len(MAGIC)
    while offset < archive.size:
        header = archive.read(offset, _HEADER_SIZE, "archive member header")
        size_field = header[48:58].rstrip(b" ")
        if header[58:60] != b"`\n" or not size_field.isdigit():
            raise BundleError(f"damaged archive: no member header at byte {offset}")
        size = int(size_field)
        body = archive.part(offset + _HEADER_SIZE, size, "archive member")
        if header[:16].rstrip(b" ") not in _INDEXES:
            members.append(body)
        if len(members) > 1:
            raise BundleError("the archive has several members; a static bundle has one")
        offset += _HEADER_SIZE + size + size % 2
    if not members:
        raise BundleError("the archive has no member")
    return members[0]
