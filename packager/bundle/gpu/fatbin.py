"""Reads the architectures of a file's GPU code from the fatbin headers in section ``.nv_fatbin``.

NVIDIA does not document the format; this is what nvcc has written since CUDA 11. A section is a sequence of fatbins
with zero padding between them. A fatbin is a header and entries; an entry is a header with an architecture, and machine
code (an ELF file) or PTX, possibly compressed. The code itself is not parsed. Every size is checked against the section
before use; malformed input raises BundleError.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from packager.bundle.elf.tables import SHF_COMPRESSED, Section
from packager.bundle.elf.window import Window, open_window
from packager.bundle.gpu.arch import arch_key
from packager.errors import BundleError

FATBIN_SECTION = ".nv_fatbin"

_MAGIC, _VERSION = 0xBA55ED50, 1
_HEADER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of all entries
# Kind, version, header size, padded code size, compressed size, -, code version (2), architecture, name (2), flags, -,
# uncompressed size.
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_ENTRY_VERSION = 0x101
_PTX, _ELF = 1, 2
_IS_64_BIT, _COMPRESSED, _ARCH_SPECIFIC, _FAMILY_SPECIFIC = 0x1, 0xA000, 1 << 20, 1 << 21
_SUFFIXES = {0: "", _ARCH_SPECIFIC: "a", _FAMILY_SPECIFIC: "f"}
_SHT_PROGBITS = 1
_MAX_ENTRIES = 1 << 16
_MAX_PADDING = 1 << 12


@dataclass(frozen=True)
class Fatbin:
    """The architectures of one fatbin's machine code (``sm_90a``) and PTX (``compute_80``), sorted."""

    archs: tuple[str, ...]
    ptx: tuple[str, ...]


def fatbins_of(path: Path, section: Section | None) -> tuple[Fatbin, ...]:
    """Return the fatbins in a file's section ``.nv_fatbin``; an empty tuple if ``section`` is None.

    Raises BundleError, and UsageError if the file cannot be opened.
    """
    if section is None:
        return ()
    if section.type != _SHT_PROGBITS or section.flags & SHF_COMPRESSED:
        raise BundleError(f"the section {section.name} is compressed or has no bytes in the file")
    with open_window(path) as window:
        return read_fatbins(window.part(section.offset, section.size, f"section {section.name}"))


def read_fatbins(window: Window) -> tuple[Fatbin, ...]:
    """Read the sequence of fatbins in a window. Raises BundleError."""
    found: list[Fatbin] = []
    budget = _MAX_ENTRIES
    offset = _skip_zeros(window, 0)
    while offset < window.size:
        body = _body(window, offset)
        entries = _entries(body, budget)
        budget -= len(entries) + 1
        if budget < 0:
            raise BundleError(f"damaged fatbin: more than {_MAX_ENTRIES} entries")
        found.append(
            Fatbin(
                tuple(sorted({name for name in entries if name.startswith("sm_")}, key=arch_key)),
                tuple(sorted({name for name in entries if name.startswith("compute_")}, key=arch_key)),
            )
        )
        offset = _skip_zeros(window, body.base - window.base + body.size)
    return tuple(found)


def _skip_zeros(window: Window, offset: int) -> int:
    """Return the offset of the next fatbin: the linker aligns them and pads with zeros."""
    padding = window.read(offset, min(_MAX_PADDING, window.size - offset), "padding between fatbins")
    zeros = len(padding) - len(padding.lstrip(b"\0"))
    if zeros == _MAX_PADDING:
        raise BundleError(f"damaged fatbin: more than {_MAX_PADDING} zeros after byte {offset}")
    return offset + zeros


def _body(window: Window, offset: int) -> Window:
    """Return the entries of the fatbin at an offset."""
    magic, version, header_size, size = _HEADER.unpack(window.read(offset, _HEADER.size, "fatbin header"))
    if magic != _MAGIC:
        raise BundleError(f"damaged fatbin: none at byte {offset} of {FATBIN_SECTION}")
    if version != _VERSION or header_size < _HEADER.size:
        raise BundleError(f"damaged fatbin: version {version}, header of {header_size} bytes")
    return window.part(offset + header_size, size, "fatbin")


def _entries(body: Window, budget: int) -> list[str]:
    """Return the architectures of a fatbin's entries."""
    names: list[str] = []
    offset = 0
    while offset < body.size:
        if len(names) > budget:
            raise BundleError(f"damaged fatbin: more than {_MAX_ENTRIES} entries")
        fields = _ENTRY.unpack(body.read(offset, _ENTRY.size, "fatbin entry"))
        kind, version, header_size, size, compressed_size = fields[:5]
        number, flags = fields[8], fields[11]
        if version != _ENTRY_VERSION or header_size < _ENTRY.size:
            raise BundleError(f"damaged fatbin: entry of version {version:#x}, header of {header_size} bytes")
        code = body.part(offset + header_size, size, "code in a fatbin")
        if compressed_size > size:
            raise BundleError(f"damaged fatbin: {compressed_size} bytes of compressed code in {size} bytes")
        names.append(_name(kind, number, flags))
        if kind == _ELF and not flags & _COMPRESSED and code.read(0, 4, "machine code") != b"\x7fELF":
            raise BundleError(f"damaged fatbin: its code for {names[-1]} is not an ELF file")
        offset += header_size + size
    return names


def _name(kind: int, number: int, flags: int) -> str:
    prefix = {_PTX: "compute_", _ELF: "sm_"}.get(kind)
    if prefix is None:
        raise BundleError(f"damaged fatbin: entry of unknown kind {kind}")
    suffix = _SUFFIXES.get(flags & (_ARCH_SPECIFIC | _FAMILY_SPECIFIC))
    if suffix is None or not flags & _IS_64_BIT or not 10 <= number <= 999:
        raise BundleError(f"damaged fatbin: architecture {number} with flags {flags:#x}")
    return f"{prefix}{number}{suffix}"
