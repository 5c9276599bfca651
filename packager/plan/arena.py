"""Packs buffers with known lifetimes into one arena.

Greedy by size, first fit: the largest buffer first, each at the lowest offset that overlaps no buffer live at the same
time. Source: Pisarchyk and Lee 2020, "Efficient Memory Management for Deep Neural Net Inference", sec. 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64  # bytes; PK_ALIGNMENT of the runtime


@dataclass(frozen=True)
class Buffer:
    """A buffer of ``nbytes``, live from step ``first`` to step ``last`` inclusive."""

    nbytes: int
    first: int
    last: int


def align(nbytes: int) -> int:
    """Round up to the alignment of the arena."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def allocate(buffers: Sequence[Buffer]) -> tuple[list[int], int]:
    """Return the offset of each buffer, in order, and the size of the arena; all are multiples of ALIGNMENT bytes."""
    offsets = [0] * len(buffers)
    placed: list[tuple[int, int, Buffer]] = []  # offset, end, buffer; sorted by offset
    total = 0
    for index in sorted(range(len(buffers)), key=lambda i: (-buffers[i].nbytes, buffers[i].first, i)):
        buffer = buffers[index]
        size = align(buffer.nbytes)
        offset = 0
        for start, end, other in placed:
            if other.last < buffer.first or buffer.last < other.first:
                continue
            if start - offset >= size:
                break
            offset = max(offset, end)
        offsets[index] = offset
        placed.append((offset, offset + size, buffer))
        placed.sort(key=lambda entry: entry[0])
        total = max(total, offset + size)
    return offsets, total
