"""Collects named constants: ``const_name_to_ndarray`` of the whole bundle.

Equal contents are stored once; every name has its own slot, so that a session can swap one name without affecting
others with the same content.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from packager.bundle.arrays import Array
from packager.bundle.hashing import sha256_of_array
from packager.bundle.manifest import Constant, TensorSpec
from packager.ir.constants import ConstantSlot, ConstantTable, ConstantView
from packager.plan.arena import ALIGNMENTS, align
from packager.plan.constant_views import find_view

DENSE = max(ALIGNMENTS.values())
"""Bytes of which contents are multiples that keep what follows them aligned on any device."""


@dataclass
class _Entry:
    """A content and its names."""

    array: Array
    sha256: str
    names: list[str] = field(default_factory=list)
    sources: dict[str, None] = field(default_factory=dict)  # an ordered set


@dataclass(frozen=True)
class _Slot:
    name: str
    entry: int
    array: Array  # not copied: its strides reveal the view of its source
    sources: tuple[str, ...]


class ConstantBuilder:
    """Collects constants into slots; equal contents share storage.

    ``reserved`` are the names of the model's constants: derived constants get other names.
    """

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._reserved = frozenset(reserved)
        self._entries: list[_Entry] = []
        self._by_content: dict[tuple[str, str, tuple[int, ...]], int] = {}
        self._slots: list[_Slot] = []
        self._by_name: dict[str, int] = {}

    def add(self, name: str, array: Array, sources: Sequence[str] = ()) -> int:
        """Add a constant and return its slot; equal name and content give the same slot.

        ``sources`` are the model's constants it derives from. Raises ValueError if ``name`` already has other content.
        """
        array = np.asarray(array)
        sha256 = sha256_of_array(array)
        index = self._by_content.setdefault((sha256, array.dtype.name, array.shape), len(self._entries))
        if index == len(self._entries):
            self._entries.append(_Entry(array, sha256))
        slot = self._by_name.setdefault(name, len(self._slots))
        if slot == len(self._slots):
            self._slots.append(_Slot(name, index, array, tuple(sources)))
            entry = self._entries[index]
            entry.names.append(name)
            entry.sources.update(dict.fromkeys(sources))
        if self._slots[slot].entry != index:
            raise ValueError(f"constant {name!r} has two different contents")
        return slot

    def add_derived(self, name: str, array: Array, sources: Sequence[str] = ()) -> int:
        """Add a constant that is not the model's, like ``add``, under a name that does not collide."""
        while name in self._reserved:
            name += "_"
        return self.add(name, array, sources)

    def add_anonymous(self, array: Array) -> int:
        """Add a constant without a name in the model; it is named by its hash."""
        array = np.asarray(array)
        digest = sha256_of_array(array)
        shape = "x".join(map(str, array.shape)) or "scalar"
        return self.add_derived(f"constant.{array.dtype.name}.{shape}.{digest[:12]}", array)

    def name_of(self, slot: int) -> str:
        """Return the manifest's name of a slot's content: its first name."""
        return self._entries[self._slots[slot].entry].names[0]

    def build(self, alignment: int | None, *, originals: Mapping[str, Array]) -> ConstantTable:
        """Return the table: records in offset order, and the slots by number.

        ``originals`` are the model's constants. Contents lie at multiples of ``alignment`` bytes. With None there are
        no gaps: first come contents of multiples of DENSE bytes, which large ones are, then the others by their element
        size, largest first, to keep each aligned to that.
        """
        order = list(range(len(self._entries)))
        if alignment is None:
            order.sort(key=lambda index: _place_without_gaps(self._entries[index].array))
        offsets = [0] * len(order)
        records = []
        end = 0
        for index in order:
            entry = self._entries[index]
            offsets[index] = end
            array = entry.array
            records.append(
                Constant(
                    name=entry.names[0],
                    aliases=tuple(entry.names[1:]),
                    sources=tuple(entry.sources),
                    dtype=array.dtype.name,  # type: ignore[arg-type]
                    shape=array.shape,
                    offset=end,
                    bytes=array.nbytes,
                    sha256=entry.sha256,
                )
            )
            end += array.nbytes if alignment is None else align(array.nbytes, alignment)
        slots = tuple(
            ConstantSlot(slot.name, offsets[slot.entry], slot.array.nbytes, slot.sources, _slot_view(slot, originals))
            for slot in self._slots
        )
        used = {source for slot in slots for source in slot.sources}
        named = tuple(
            TensorSpec(name, array.dtype.name, array.shape)  # type: ignore[arg-type]
            for name, array in originals.items()
            if name in used
        )
        arrays = tuple(self._entries[index].array for index in order)
        return ConstantTable(tuple(records), arrays, end, slots, named)


def _slot_view(slot: _Slot, originals: Mapping[str, Array]) -> ConstantView | None:
    """Return the view through which a slot reads one of its sources, or None."""
    views = (find_view(slot.array, name, originals[name]) for name in slot.sources if name in originals)
    return next(filter(None, views), None)


def _place_without_gaps(array: Array) -> tuple[bool, int]:
    return (array.nbytes % DENSE > 0, -array.itemsize)
