"""How the rows of a product are shared out in blocks, and where the rows of a block are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packager.backends.ccompiler.core.shapes import Extent, c_text, ceil_div, equal, product

if TYPE_CHECKING:
    from packager.backends.ccompiler.core.tile import Kind

# Rows of a block at most: with their sums, as many as leave room for weights in the second-level cache.
BLOCK = 56
# Steps of a sum that are taken before the next columns: sums go to memory and back after them, so they are many; their
# weights, two panels wide, and the rows of a tile stay in the second-level cache.
CHUNK = 1024
# Steps of rows that are copied, where sums have a buffer, too: both are on the stack.
COPIED = 256
# Rows of a buffer are so much further apart, so that they do not meet in one set of the first-level cache.
GAP = 16
# Rows that are so many steps apart meet in few sets of the first-level cache.
ALIASED = 512


@dataclass(frozen=True)
class Blocks:
    """Blocks of ``size`` rows each in ``runs`` runs of ``run`` rows, the last block of a run being smaller.

    ``size`` is None where the number of rows is not known: blocks have then sizes that are as even as can be.
    """

    runs: Extent
    run: Extent
    size: int | None

    def halved(self) -> Blocks:
        """Return blocks of at most half as many rows."""
        assert isinstance(self.run, int)
        return replace(self, size=even_size(self.run, BLOCK // 2))

    @property
    def per_run(self) -> Extent:
        """Return how many blocks a run has."""
        return ceil_div(self.run, self.size or BLOCK)

    @property
    def count(self) -> Extent:
        """Return how many blocks there are."""
        return product((self.runs, self.per_run))

    @property
    def counts(self) -> tuple[int, ...] | None:
        """Return how many rows a block may have, None for any number."""
        if self.size is None or not isinstance(self.run, int):
            return None
        return (self.size, self.run - (-(-self.run // self.size) - 1) * self.size)

    @property
    def place(self) -> str:
        """C that declares the ``first`` row of block ``block``, and their ``count``."""
        run, per = c_text(self.run), c_text(self.per_run)
        size = str(self.size) if self.size else f"pk_ceil_div({run}, {per})"
        if equal(self.runs, 1):
            return f"const int64_t first = block * {size}, count = pk_min_i64({size}, {run} - first);"
        return (
            f"const int64_t within = block % {per} * {size}, first = block / {per} * {run} + within;\n"
            f"        const int64_t count = pk_min_i64({size}, {run} - within);"
        )


def even_blocks(rows: Extent) -> Blocks:
    """Return blocks of equal sizes, as far as that is possible."""
    return Blocks(1, rows, even_size(rows, BLOCK) if isinstance(rows, int) else None)


def even_size(rows: int, most: int) -> int:
    """Return how many rows blocks of equal sizes have."""
    return -(-rows // -(-rows // most))


@dataclass(frozen=True)
class Data:
    """Where the rows of a block are; texts are C.

    ``source`` is a pointer to what a chunk of a block begins with: steps ``done`` to ``done + taken`` of its rows from
    ``first`` on, ``chunk`` of them at most. ``layout`` are the fields of a ``pk_rows_t``. A row is in one piece, or in
    stretches of ``stretch`` steps. ``prepare`` is done before the first chunk of a block, ``gather`` before each; they
    have a buffer ``a`` of ``buffer`` elements, where gathered rows are ``apart``. ``groups`` are numbers of rows that
    follow one another at one distance: of a whole block, if there are none. ``following`` is where the rows of the next
    block begin, if they are worth fetching meanwhile.
    """

    source: str
    layout: str
    chunk: int = CHUNK
    buffer: int = 0
    apart: int = 0
    gather: str = ""
    prepare: str = ""
    stretch: int = 0
    groups: tuple[int, ...] = ()
    following: str = ""


def gathered(gather: str, blocks: Blocks, unit: int, chunk: int = COPIED, following: str = "") -> Data:
    """Return rows that are copied to the buffer, chunk by chunk, by a text that names their distance ``apart``.

    A step takes ``unit`` elements.
    """
    apart = (chunk + GAP) * unit
    buffer = (blocks.size or BLOCK) * apart
    return Data("a", "count, 1, apart, 0, 1, 0", chunk, buffer=buffer, apart=apart, gather=gather, following=following)


def rows_of(x: str, first: str, pitch: Extent, depth: Extent, kind: Kind, blocks: Blocks) -> Data:
    """Return rows of ``depth`` elements that are ``pitch`` apart: read where they are, or copied if that is faster."""
    following = f"{x} + ({first} + count) * {c_text(pitch)}" if equal(pitch, depth) else ""
    start = f"{x} + ({first}) * {c_text(pitch)} + done" + (f" * {kind.pair}" if kind.pair > 1 else "")
    stored = isinstance(depth, int) and depth % kind.unit == 0 and not kind.converts
    if stored and isinstance(pitch, int) and (pitch % (ALIASED * kind.unit) != 0 or blocks.counts == (1, 1)):
        return Data(start, f"count, 1, {pitch}, 0, 1, 0", following=following)
    taken = f"pk_min_i64(taken * {kind.pair}, {c_text(depth)} - done * {kind.pair})"
    gather = f"pk_gather_{kind.name}(a, {start}, {c_text(pitch)}, apart, count, {taken});"
    return gathered(gather, blocks, kind.unit, following=following)
