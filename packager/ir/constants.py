"""The constants of a bundle as planned: their layout, and the slots by which code reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packager.bundle.manifest import Constant, TensorSpec

if TYPE_CHECKING:
    from packager.bundle.arrays import Array


@dataclass(frozen=True)
class ConstantView:
    """A strided view of ``source``, a constant of the model; ``strides`` and ``offset`` are in elements of the
    original."""

    source: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class ConstantSlot:
    """A constant as seen by code: pointer i of a session, initially ``offset`` bytes into the constants.

    Slots of equal content share an offset. ``sources`` are the model's constants it derives from. ``view`` is set if it
    is a view of one of them.
    """

    name: str
    offset: int
    nbytes: int
    sources: tuple[str, ...]
    view: ConstantView | None


@dataclass(frozen=True)
class ConstantTable:
    """All constants of a bundle: records sorted by offset, their arrays, and the slots.

    ``named`` are the model's constants that slots derive from.
    """

    records: tuple[Constant, ...]
    arrays: tuple[Array, ...]
    nbytes: int
    slots: tuple[ConstantSlot, ...]
    named: tuple[TensorSpec, ...]


def fixed_reason(table: ConstantTable, name: str) -> str | None:
    """Return why a session cannot swap the model's constant ``name``, or None if it can."""
    for slot in table.slots:
        if name in slot.sources and (slot.view is None or slot.view.source != name):
            sources = slot.sources[:8] if len(slot.sources) <= 8 else (*slot.sources[:7], "others")
            *first, last = sources
            listed = f"{', '.join(first)} and {last}" if first else last
            what = "a form of it" if slot.name == name else slot.name
            return f"{what} is computed from {listed} at build time"
    return None
