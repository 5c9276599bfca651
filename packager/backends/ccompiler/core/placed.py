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

    def pointer(self, memory: str) -> str:
        """Return C for where the part of row ``row`` is stored that begins at ``start``."""
        rows = _terms("row", self.extents[: self.outer], self.pitches[: self.outer])
        return " + ".join([memory, *rows, *_terms("start", self.extents[self.outer :], self.pitches[self.outer :])])


@dataclass(frozen=True)
class Turned:
    """A ``source`` that is never stored, but its transpose in ``target``: rows that follow each other along ``pixels``.

    Rows are ``pixels`` of images, which are ``image`` elements apart in the target, columns ``column`` elements. A row
    is computed in ``buffer``, C that points to its part, from where a block of rows is transposed.
    """

    source: Tensor
    target: Tensor
    pixels: Extent
    image: Extent
    column: Extent
    buffer: str = ""

    def pointer(self, memory: str) -> str:  # noqa: ARG002  # as Placed has it
        """Return C for where the part of row ``row`` is computed."""
        return self.buffer


def _terms(index: str, extents: Sequence[Extent], pitches: Sequence[Extent]) -> list[str]:
    """Return C for the distances along axes whose index, counted over all of them, is ``index``."""
    terms = []
    for axis, (extent, pitch) in enumerate(zip(extents, pitches, strict=True)):
        inner = product(extents[axis + 1 :])
        text = f"({index})" if equal(inner, 1) else f"({index}) / {c_text(inner)}"
        text = text if axis == 0 else f"{text} % {c_text(extent)}"
        terms.append(text if equal(pitch, 1) else f"{text} * {c_text(pitch)}")
    return terms


def find_placed(operation: Operation, rows: Extent) -> Placed | Turned | None:
    """Return how a copy moves parts of so many rows, or transposes them; None if it does something else."""
    if not isinstance(operation.attributes, Copy) or len(operation.attributes.pieces) != 1:
        return None
    (piece,) = operation.attributes.pieces
    source = operation.uses[0].tensor
    loops = _in_source_order(piece.loops)
    extents = tuple(loop.extent for loop in loops)
    whole = equal(piece.offset, 0) and equal(piece.start, 0) and equal(product(extents), product(source.shape))
    repeats = len(loops) < len(piece.loops)  # an element has several places
    if piece.source is None or not whole or repeats or len(loops) < 2:
        return None
    if not equal(loops[-1].target, 1):
        return _find_turned(operation, loops, rows)
    outer = next((axis for axis in range(1, len(loops)) if equal(product(extents[:axis]), rows)), None)
    if outer is None:
        return None
    return Placed(source, operation.result, extents, tuple(loop.target for loop in loops), outer)


def _find_turned(operation: Operation, loops: Sequence[Loop], rows: Extent) -> Turned | None:
    """Return how loops in the order of the source transpose float32 rows; None if they do something else."""
    *images, pixel, column = loops
    is_transpose = equal(product(loop.extent for loop in (*images, pixel)), rows) and equal(pixel.target, 1)
    if not is_transpose or len(images) > 1 or operation.result.dtype != "float32":
        return None
    source, image = operation.uses[0].tensor, images[0].target if images else product(operation.result.shape)
    return Turned(source, operation.result, pixel.extent, image, column.target)


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
