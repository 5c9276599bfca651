"""Named constants: ``const_name_to_ndarray`` of the whole bundle, deduplicated by content, with their offsets."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packager.arena import align
from packager.ir import ConstantRecord, ConstantTable

Array = NDArray[Any]


class ConstantBuilder:
    """Collects constants; equal contents share one place, whatever their names."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[str, str, tuple[int, ...]]] = {}
        self._entries: dict[tuple[str, str, tuple[int, ...]], tuple[list[str], int, Array]] = {}
        self._end = 0

    def add(self, name: str, array: Array) -> int:
        """Add a constant and return its offset in bytes, a multiple of the alignment.

        Raises ValueError if ``name`` already stands for another content.
        """
        array = np.ascontiguousarray(array)
        key = (hashlib.sha256(array).hexdigest(), array.dtype.name, array.shape)
        if self._names.setdefault(name, key) != key:
            raise ValueError(f"constant {name!r} stands for two different contents")
        if key not in self._entries:
            self._entries[key] = ([name], self._end, array)
            self._end += align(array.nbytes)
        names, offset, _ = self._entries[key]
        if name not in names:
            names.append(name)
        return offset

    def add_anonymous(self, array: Array) -> int:
        """Add a constant that has no name in the model; it is named after its content."""
        digest = hashlib.sha256(np.ascontiguousarray(array)).hexdigest()
        shape = "x".join(map(str, array.shape)) or "scalar"
        return self.add(f"constant.{array.dtype.name}.{shape}.{digest[:12]}", array)

    def build(self) -> ConstantTable:
        """Return the table, in offset order."""
        records = []
        for (sha256, dtype, shape), (names, offset, array) in self._entries.items():
            records.append(ConstantRecord(names[0], tuple(names[1:]), dtype, shape, offset, array.nbytes, sha256))
        arrays = tuple(array for _, _, array in self._entries.values())
        return ConstantTable(tuple(records), arrays, self._end)
