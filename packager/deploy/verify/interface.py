"""Compares the tables of the entrypoint, which callers and the runtime read, with the manifest, without loading it.

A pointer of the linked file is the addend of the relocation at its place; nothing of the file is executed.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import TypeVar

from packager.bundle import shape_expr
from packager.bundle.elf.loader import LoaderView
from packager.bundle.elf.relocations import ObjectView
from packager.bundle.manifest import SECTION_NAME, Entry, Manifest
from packager.bundle.section import SECTION_HEADER
from packager.deploy.load.abi import BundleTable, TensorInfoStruct, dtype_name
from packager.errors import BundleError

S = TypeVar("S", bound=ctypes.Structure)

_MOST_ENTRIES, _MOST_TENSORS, _MOST_AXES, _LONGEST_NAME = 4096, 65536, 64, 1 << 16
_CHUNK = 256

# Name, element type, extents as `packager inspect` shows them, and their bounds.
Tensor = tuple[str, str, tuple[str, ...], tuple[tuple[int, int], ...]]


def interface_problems(view: LoaderView | ObjectView, manifest: Manifest) -> Iterator[str]:
    """Yield how the tables differ from the manifest. Raises BundleError for pointers that lead nowhere."""
    tables = _Tables(view)
    first = tables.find()
    if first is None:
        yield "no table of the entrypoint points to the manifest"
        return
    table = tables.read(BundleTable, first)
    if table.arena_bytes != manifest.arena_bytes:
        yield f"the arena has {table.arena_bytes} bytes, {manifest.arena_bytes} in the manifest"
    try:
        declared = [[*_declared(entry)] for entry in manifest.every_entry()]
    except shape_expr.ShapeExpressionError as error:
        yield f"extents have no bounds: {error}"
        return
    actual = [tables.tensors(at, "inputs") + tables.tensors(at, "outputs") for at in tables.entries(first, table)]
    if actual != declared:
        yield "names, element types, extents or their bounds of inputs and outputs differ"
    if [state[:2] for state in tables.tensors(first, "states")] != [(s.name, s.dtype) for s in manifest.states]:
        yield "names or element types of states differ"


def _declared(entry: Entry) -> Iterator[Tensor]:
    """Yield the inputs and outputs of an entry. Raises ShapeExpressionError."""
    bounds = {dim.name: (dim.min, dim.max) for dim in entry.dims}

    def interval(extent: int | str) -> tuple[int, int]:
        return shape_expr.interval(str(extent), bounds.__getitem__)

    for extent in entry.extents:
        bounds[extent.name] = (0, interval(extent.bound)[1])
    for item in (*entry.inputs, *entry.outputs):
        yield item.name, item.dtype, tuple(map(str, item.shape)), tuple(map(interval, item.shape))


class _Tables:
    """The relocated memory of the file, read by address."""

    def __init__(self, view: LoaderView | ObjectView) -> None:
        self.view = view
        self.pointers = {entry.offset: entry.addend for entry in view.relocations() if not entry.symbol}

    def find(self) -> int | None:
        """Return the address of the first entry's table: it points to the manifest's text."""
        section = self.view.table.by_name()[SECTION_NAME]
        text = section.address + SECTION_HEADER.size
        room = section.size - SECTION_HEADER.size
        for place, target in self.pointers.items():
            at = place - BundleTable.manifest.offset
            if target != text or at < 0:
                continue
            table = self.read(BundleTable, at)
            if (table.manifest_size, table.struct_size) == (room, ctypes.sizeof(BundleTable)):
                return at
        return None

    def read(self, kind: type[S], address: int) -> S:
        """Return a structure; its pointers are not relocated. Raises BundleError."""
        return kind.from_buffer_copy(self.view.read(address, ctypes.sizeof(kind), "the entrypoint's table"))

    def pointer(self, address: int) -> int:
        """Return where the pointer at an address points to. Raises BundleError for one that is not relocated."""
        if address not in self.pointers:
            raise BundleError("damaged bundle: a pointer of the entrypoint's tables is not relocated")
        return self.pointers[address]

    def entries(self, first: int, table: BundleTable) -> list[int]:
        """Return the addresses of the tables of all entries."""
        if table.num_entries <= 1:
            return [first]
        if table.num_entries > _MOST_ENTRIES:
            raise BundleError(f"damaged bundle: {table.num_entries} entries")
        array = self.pointer(first + BundleTable.entries.offset)
        return [self.pointer(array + 8 * index) for index in range(table.num_entries)]

    def tensors(self, at: int, field: str) -> list[Tensor]:
        """Return the tensors of a field of the table at an address: ``inputs``, ``outputs`` or ``states``."""
        count = getattr(self.read(BundleTable, at), f"num_{field}")
        if not 0 <= count <= _MOST_TENSORS:
            raise BundleError(f"damaged bundle: {count} {field}")
        if not count:
            return []
        array = self.pointer(at + getattr(BundleTable, field).offset)
        return [self._tensor(array + ctypes.sizeof(TensorInfoStruct) * index) for index in range(count)]

    def _tensor(self, at: int) -> Tensor:
        info = self.read(TensorInfoStruct, at)
        if not 0 <= info.ndim <= _MOST_AXES:
            raise BundleError(f"damaged bundle: a tensor of {info.ndim} axes")
        shape, least, most = (self._extents(at, field, info.ndim) for field in ("shape", "min_shape", "max_shape"))
        dims = self.pointer(at + TensorInfoStruct.dims.offset)
        extents = tuple(
            self._text(self.pointers[dims + 8 * axis]) if dims + 8 * axis in self.pointers else str(shape[axis])
            for axis in range(info.ndim)
        )
        name = self._text(self.pointer(at + TensorInfoStruct.name.offset))
        return name, dtype_name(info.dtype), extents, tuple(zip(least, most, strict=True))

    def _extents(self, at: int, field: str, ndim: int) -> tuple[int, ...]:
        """Return the array that a field of the tensor at an address points to."""
        place = self.pointer(at + getattr(TensorInfoStruct, field).offset)
        return struct.unpack(f"<{ndim}q", self.view.read(place, 8 * ndim, "a shape"))

    def _text(self, address: int) -> str:
        """Return the string at an address. Raises BundleError for one that does not end, or is not UTF-8."""
        found = b""
        while len(found) < _LONGEST_NAME:
            size = _CHUNK
            while size:
                try:
                    chunk = self.view.read(address + len(found), size, "a name")
                    break
                except BundleError:
                    size //= 2  # near the end of the segment
            else:
                break
            found += chunk
            if b"\0" in chunk:
                return found.partition(b"\0")[0].decode("utf-8", "replace")
        raise BundleError("damaged bundle: a name of the entrypoint's tables does not end")
