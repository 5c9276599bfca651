"""Results that are written where a permutation puts them: parts of a row apart, as phases of transposed convolutions.

The rows of a product are pixels, its columns phases and channels: depth to space is then where the columns are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packager.backends.ccompiler.core.permutations import permutation_of
from packager.backends.ccompiler.core.shapes import Extent, c_text, equal, product

if TYPE_CHECKING:
    from packager.backends.ccompiler.core.operations import Operation, Tensor


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
    """Return how a permutation moves parts of so many rows; None if it moves single elements, or no rows."""
    if operation.name != "permute_dims":
        return None
    use = operation.uses[0]
    moved = permutation_of(use.shape, [int(axis) for axis in operation.attributes.axes])
    last = len(moved.extents) - 1
    if last < 1 or moved.axes[-1] != last:
        return None
    outer = next((axis for axis in range(1, last + 1) if equal(product(moved.extents[:axis]), rows)), None)
    return None if outer is None else Placed(use.tensor, operation.result, moved.extents, moved.pitches, outer)
