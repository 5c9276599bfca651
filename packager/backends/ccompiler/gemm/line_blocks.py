"""Blocks of the rows of a convolution: pixels of whole lines of its result, or of a part of one line."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from tvm import tirx

from packager.backends.ccompiler.core.shapes import Extent, c_text, ceil_div, equal, plain, product
from packager.backends.ccompiler.gemm.blocks import BLOCK, even_size


@dataclass(frozen=True)
class LineBlocks:
    """Blocks of a result of ``lines`` lines of ``places`` pixels in each of ``planes`` planes; each may be symbolic.

    A block of at most ``most`` rows has ``together`` lines, or fewer at the end of a plane, or a part of one line, of
    which there are ``parts``.
    With cuts, which include both ends, it has what is between two of ``tops`` and two of ``lefts``.
    """

    planes: Extent
    lines: Extent
    places: Extent
    tops: tuple[int, ...] = ()
    lefts: tuple[int, ...] = ()
    most: int = BLOCK

    @property
    def together(self) -> Extent:
        """Lines of a block, at most."""
        if self.tops:
            return max(lengths(self.tops))
        if not isinstance(self.places, int):
            return plain(tirx.max(1, tirx.floordiv(self.most, tirx.max(1, self.places))))
        most = max(1, self.most // max(1, self.places))
        return even_size(self.lines, most) if isinstance(self.lines, int) and self.lines > 0 else most

    @property
    def parts(self) -> Extent:
        """Blocks of a line."""
        if self.lefts:
            return len(self.lefts) - 1
        return ceil_div(self.places, self.most)

    @property
    def counts(self) -> tuple[int, ...] | None:
        """Pixels of a line that a block may have, the most first, or None for any number."""
        if self.lefts:
            return tuple(sorted(set(lengths(self.lefts)), reverse=True))
        if not isinstance(self.places, int):
            return None
        part = even_size(self.places, self.most)
        return (part, self.places - (-(-self.places // part) - 1) * part)

    @property
    def size(self) -> int | None:
        """The maximum rows of a block; None for ``most``."""
        counts, together = self.counts, self.together
        return counts[0] * together if counts is not None and isinstance(together, int) else None

    @property
    def room(self) -> int:
        """Rows that a buffer for a block has."""
        return self.size or self.most

    @property
    def rows(self) -> Extent:
        """The rows of all blocks."""
        return product((self.planes, self.lines, self.places))

    @property
    def per_plane(self) -> Extent:
        """Blocks of a plane."""
        if self.tops:
            return product((len(self.tops) - 1, self.parts))
        if isinstance(self.together, int):
            return product((ceil_div(self.lines, self.together), self.parts))
        return product((tirx.floordiv(self.lines + self.together - 1, self.together), self.parts))

    @property
    def count(self) -> Extent:
        """The number of blocks."""
        return product((self.planes, self.per_plane))

    @property
    def is_grouped(self) -> bool:
        """Whether a block may have several lines."""
        return bool(self.tops) or self.counts is None or equal(self.parts, 1)

    @property
    def row(self) -> str:
        """C for the row of the result of row ``r`` of a block."""
        return f"first + r / places * {c_text(self.places)} + r % places" if self.tops else "first + r"

    @property
    def following(self) -> str:
        """C for the rows of a block from row ``r`` on that follow each other in the result."""
        return "places - r % places" if self.tops else "count - r"

    @property
    def place(self) -> str:
        """C that declares where block ``block`` is, the ``first`` of its rows, and the ``count`` of its rows."""
        places, parts, together = c_text(self.places), c_text(self.parts), c_text(self.together)
        lines = c_text(self.lines)
        if self.tops:
            tops, lefts = (", ".join(map(str, cuts)) for cuts in (self.tops, self.lefts))
            return (
                f"static const int32_t tops[] = {{{tops}}}, lefts[] = {{{lefts}}};\n"
                f"        const int64_t plane = block / {self.per_plane}, inner = block % {self.per_plane};\n"
                f"        const int64_t top = inner / {parts}, line = tops[top], lines = tops[top + 1] - line;\n"
                f"        const int64_t left = inner % {parts}, place = lefts[left];\n"
                f"        const int64_t places = lefts[left + 1] - place;\n"
                f"        const int64_t first = (plane * {lines} + line) * {places} + place, count = lines * places;"
            )
        part = str(self.counts[0]) if self.counts else f"pk_ceil_div({places}, {parts})"
        return (
            f"const int64_t plane = block / {c_text(self.per_plane)}, inner = block % {c_text(self.per_plane)};\n"
            f"        const int64_t line = inner / {parts} * {together}, place = inner % {parts} * {part};\n"
            f"        const int64_t lines = pk_min_i64({together}, {lines} - line);\n"
            f"        const int64_t places = pk_min_i64({part}, {places} - place);\n"
            f"        const int64_t first = (plane * {lines} + line) * {places} + place, count = lines * places;"
        )


def lengths(cuts: tuple[int, ...]) -> list[int]:
    """Return the distances between cuts."""
    return [end - first for first, end in pairwise(cuts)]
