"""Cache blocking of GEMM: blocks of rows, and where the rows of a block are in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packager.backends.ccompiler.core.shapes import Extent, c_text, ceil_div, equal, product

if TYPE_CHECKING:
    from packager.backends.ccompiler.core.machine import Kind

# The maximum rows of a block: with their accumulators they leave room for weights in the L2 cache.
BLOCK = 56
# K steps per pass over the columns: many, since accumulators are stored and reloaded between passes, while their
# weights, two panels wide, and the rows of a tile stay in the L2 cache.
CHUNK = 1024
# K steps per pass of rows that are copied; the buffers of rows and accumulators are on the stack.
COPIED = 256
# K steps of a sum, before it is added to others: its rounding errors grow with its length, those of adding sums with
# their number. Longer sums saved at most a hundredth of the time, with AVX-512.
SUM = 128
# Short stretches share a sum of so many steps: a transposed convolution's of few channels, elsewhere a sum per tap.
SHARED_SUM = 64
# Weights that stay in the shared cache.
HELD = 1 << 22
# Padding between the rows of a buffer, so that they do not alias in the L1 cache.
GAP = 16
# Rows with a pitch of a multiple of this alias in the L1 cache.
ALIASED = 512


def sum_of(kind: Kind) -> tuple[int, int]:
    """Return the maximum steps of a sum, and of one that short stretches share; sums of integers are exact."""
    return (SUM, SHARED_SUM) if kind.total == "float" else (CHUNK, CHUNK)


@dataclass(frozen=True)
class Blocks:
    """Blocks of ``size`` rows in ``runs`` runs of ``run`` rows; the last block of a run may be smaller.

    ``size`` is None for a symbolic number of rows, which is divided as evenly as possible: at most ``most`` each.
    """

    runs: Extent
    run: Extent
    size: int | None
    most: int = BLOCK

    def halved(self) -> Blocks:
        """Return blocks of at most half the rows."""
        most = self.most // 2
        return replace(self, size=even_size(self.run, most) if isinstance(self.run, int) else None, most=most)

    @property
    def room(self) -> int:
        """Return the rows that a buffer for a block has."""
        return self.size or self.most

    @property
    def rows(self) -> Extent:
        """The rows of all blocks."""
        return product((self.runs, self.run))

    @property
    def per_run(self) -> Extent:
        """Return the blocks per run."""
        return ceil_div(self.run, self.room)

    @property
    def count(self) -> Extent:
        """Return the number of blocks."""
        return product((self.runs, self.per_run))

    @property
    def counts(self) -> tuple[int, ...] | None:
        """Return the possible numbers of rows of a block, or None for any number."""
        if self.size is None or not isinstance(self.run, int):
            return None
        return (self.size, self.run - (-(-self.run // self.size) - 1) * self.size)

    @property
    def row(self) -> str:
        """C for the row of the result of row ``r`` of a block."""
        return "first + r"

    @property
    def following(self) -> str:
        """C for the rows of a block from row ``r`` on that follow each other in the result."""
        return "count - r"

    @property
    def place(self) -> str:
        """C that declares the ``first`` row of block ``block``, and the ``count`` of its rows."""
        run, per = c_text(self.run), c_text(self.per_run)
        size = str(self.size) if self.size else f"pk_ceil_div({run}, {per})"
        if equal(self.runs, 1):
            return f"const int64_t first = block * {size}, count = pk_min_i64({size}, {run} - first);"
        return (
            f"const int64_t within = block % {per} * {size}, first = block / {per} * {run} + within;\n"
            f"        const int64_t count = pk_min_i64({size}, {run} - within);"
        )


def even_blocks(rows: Extent, most: int = BLOCK) -> Blocks:
    """Return blocks that are as even as possible."""
    return Blocks(1, rows, even_size(rows, most) if isinstance(rows, int) else None, most)


def even_size(rows: int, most: int) -> int:
    """Return the rows of even blocks."""
    return -(-rows // -(-rows // most))


@dataclass(frozen=True)
class Data:
    """Where the rows of a block are in memory; texts are C.

    ``source`` points to the start of a chunk: steps ``done`` to ``done + taken`` of the rows from ``first`` on, at most
    ``chunk`` steps. ``layout`` are the first fields of a ``pk_rows_t``. ``prepare`` runs before the first chunk of a
    block, ``gather`` before each; they fill a buffer ``a`` of ``buffer`` elements with a row pitch of ``apart``.
    ``groups`` are the lengths of runs of rows with a constant pitch, by default whole blocks; ``grouped`` says that
    there may be several in a block. ``following`` points to the rows of the next block, to prefetch them.

    With ``passes``, C for their number, ``gather`` declares the ``rows`` of a pass, whose weights have
    ``stretch`` steps.
    """

    source: str
    layout: str
    chunk: int = CHUNK
    buffer: int = 0
    apart: int = 0
    gather: str = ""
    prepare: str = ""
    stretch: int = 0
    passes: str = ""
    groups: tuple[int, ...] | None = None
    grouped: bool = False
    following: str = ""


def gathered(gather: str, blocks: Blocks, unit: int, chunk: int = COPIED, following: str = "") -> Data:
    """Return rows that C in ``gather`` copies to the buffer, chunk by chunk, with pitch ``apart``.

    A step has ``unit`` elements.
    """
    apart = (chunk + GAP) * unit
    buffer = blocks.room * apart
    return Data("a", "count, 1, apart, 0", chunk, buffer=buffer, apart=apart, gather=gather, following=following)


def rows_of(x: str, first: str, pitch: Extent, depth: Extent, kind: Kind, blocks: Blocks) -> Data:
    """Return rows of ``depth`` elements with a pitch: read in place, or copied if that is faster."""
    following = f"{x} + ({first} + count) * {c_text(pitch)}" if equal(pitch, depth) else ""
    start = f"{x} + ({first}) * {c_text(pitch)} + done" + (f" * {kind.pair}" if kind.pair > 1 else "")
    stored = isinstance(depth, int) and depth % kind.unit == 0 and not kind.converts
    if stored and isinstance(pitch, int) and (pitch % (ALIASED * kind.unit) != 0 or blocks.counts == (1, 1)):
        return Data(start, f"count, 1, {pitch}, 0", following=following)
    taken = f"pk_min_i64(taken * {kind.pair}, {c_text(depth)} - done * {kind.pair})"
    gather = f"pk_gather_{kind.name}(a, {start}, {c_text(pitch)}, apart, count, {taken});"
    return gathered(gather, blocks, kind.unit, following=following)
