"""Results that are written where a permutation puts them: parts of a row apart, as phases of transposed convolutions.

The rows of a product are pixels, its columns phases and channels: depth to space is then where the columns are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packager.backends.ccompiler.core.copies import Copy, Loop
from packager.backends.ccompiler.core.shapes import Extent, c_text, equal, product

if TYPE_CHECKING:
    from packager.backends.ccompiler.core.operations import Operation, Tensor

# Elements that stay together: fewer are moved by a copy.
FEWEST_TOGETHER = 8


@dataclass(frozen=True)
class Placed:
    """A ``source`` that is never stored, but its elements in other places of ``target``.

    The source has axes of ``extents``, whose distances in the target are ``pitches``; the first ``outer`` ones are its
    rows, and the last one stays as it is.
    """

    source: Tensor
    target: Tensor
    extents: tuple[Extent, ...]
    pitches: tuple[Extent, ...]
    outer: int

    @property
    def piece(self) -> Extent:
        """The elements of a row that stay together."""
        return self.extents[-1]

    def offset(self, row: str, start: str) -> str:
        """Return C for where the part of a row lies that begins at ``start``."""
        rows = _terms(row, self.extents[: self.outer], self.pitches[: self.outer])
        return " + ".join([*rows, *_terms(start, self.extents[self.outer :], self.pitches[self.outer :])])


def _terms(index: str, extents: Sequence[Extent], pitches: Sequence[Extent]) -> list[str]:
    """Return C for the distances along axes whose index, counted over all of them, is ``index``."""
    terms = []
    for axis, (extent, pitch) in enumerate(zip(extents, pitches, strict=True)):
        inner = product(extents[axis + 1 :])
        text = f"({index})" if equal(inner, 1) else f"({index}) / {c_text(inner)}"
        text = text if axis == 0 else f"{text} % {c_text(extent)}"
        terms.append(text if equal(pitch, 1) else f"{text} * {c_text(pitch)}")
    return terms


def find_placed(operation: Operation, rows: Extent) -> Placed | None:
    """Return how a copy moves parts of so many rows; None if it does something else, or moves single elements."""
    if not isinstance(operation.attributes, Copy) or len(operation.attributes.pieces) != 1:
        return None
    (piece,) = operation.attributes.pieces
    source = operation.uses[0].tensor
    loops = _in_source_order(piece.loops)
    extents = tuple(loop.extent for loop in loops)
    whole = equal(piece.offset, 0) and equal(piece.start, 0) and equal(product(extents), product(source.shape))
    if piece.source is None or not whole or len(loops) < 2 or not equal(loops[-1].target, 1):
        return None
    outer = next((axis for axis in range(1, len(loops)) if equal(product(extents[:axis]), rows)), None)
    if outer is None:
        return None
    return Placed(source, operation.result, extents, tuple(loop.target for loop in loops), outer)


def _in_source_order(loops: Sequence[Loop]) -> list[Loop]:
    """Return loops that read a source from its first to its last element, the innermost last; fewer if they do not."""
    found: list[Loop] = []
    stride: Extent = 1
    while (
        loop := next((loop for loop in loops if equal(loop.source, stride)), None)
    ) is not None and loop not in found:
        found.insert(0, loop)
        stride = product((stride, loop.extent))
    return found
