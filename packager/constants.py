"""Named constants: ``const_name_to_ndarray`` of the whole bundle, deduplicated by content, with their offsets."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packager.arena import align
from packager.ir import ConstantTable
from packager.manifest import Constant

Array = NDArray[Any]


@dataclass
class _Entry:
    array: Array
    sha256: str
    names: list[str] = field(default_factory=list)


class ConstantBuilder:
    """Collects constants; equal contents share one place, whatever their names."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._by_content: dict[tuple[str, str, tuple[int, ...]], int] = {}
        self._by_name: dict[str, int] = {}

    def add(self, name: str, array: Array) -> int:
        """Add a constant and return the index of its entry.

        Raises ValueError if ``name`` already stands for another content.
        """
        array = np.asarray(array, order="C")
        sha256 = _sha256(array)
        index = self._by_content.setdefault((sha256, array.dtype.name, array.shape), len(self._entries))
        if index == len(self._entries):
            self._entries.append(_Entry(array, sha256))
        if self._by_name.setdefault(name, index) != index:
            raise ValueError(f"constant {name!r} stands for two different contents")
        if name not in self._entries[index].names:
            self._entries[index].names.append(name)
        return index

    def add_anonymous(self, array: Array) -> int:
        """Add a constant that has no name in the model; it is named after its content."""
        array = np.asarray(array, order="C")
        digest = _sha256(array)
        shape = "x".join(map(str, array.shape)) or "scalar"
        return self.add(f"constant.{array.dtype.name}.{shape}.{digest[:12]}", array)

    def build(self, *, packed: bool) -> tuple[ConstantTable, list[int]]:
        """Return the table in offset order, and the byte offset of each entry by its index.

        Entries are aligned to 64 bytes; ``packed`` leaves no gaps instead, which keeps every entry aligned to its
        element size by putting larger elements first.
        """
        order = list(range(len(self._entries)))
        if packed:
            order.sort(key=lambda index: -self._entries[index].array.itemsize)
        offsets = [0] * len(order)
        records = []
        end = 0
        for index in order:
            entry = self._entries[index]
            offsets[index] = end
            name, *aliases = entry.names
            array = entry.array
            records.append(
                Constant(name, tuple(aliases), array.dtype.name, array.shape, end, array.nbytes, entry.sha256)  # type: ignore[arg-type]
            )
            end += array.nbytes if packed else align(array.nbytes)
        arrays = tuple(self._entries[index].array for index in order)
        return ConstantTable(tuple(records), arrays, end), offsets


def _sha256(array: Array) -> str:
    return hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()
