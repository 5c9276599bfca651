"""Pack buffers with known life times into one arena.

Greedy by size, first fit: the largest buffer first, each at the lowest offset where it meets no buffer that is alive
at the same time. Source: Pisarchyk and Lee 2020, "Efficient Memory Management for Deep Neural Net Inference", sec. 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64  # bytes; PK_ALIGNMENT of the runtime


@dataclass(frozen=True)
class Request:
    """A buffer of ``nbytes`` that is alive from step ``first`` to step ``last``, both included."""

    nbytes: int
    first: int
    last: int


def align(nbytes: int) -> int:
    """Round up to the alignment of the arena."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def place(requests: Sequence[Request]) -> tuple[list[int], int]:
    """Return the offset of each buffer, in order, and the size of the arena, all multiples of ALIGNMENT bytes."""
    offsets = [0] * len(requests)
    placed: list[tuple[int, int, Request]] = []  # offset, end, request; sorted by offset
    total = 0
    for index in sorted(range(len(requests)), key=lambda i: (-requests[i].nbytes, requests[i].first, i)):
        request = requests[index]
        size = align(request.nbytes)
        offset = 0
        for start, end, other in placed:
            if other.last < request.first or request.last < other.first:
                continue
            if start - offset >= size:
                break
            offset = max(offset, end)
        offsets[index] = offset
        placed.append((offset, offset + size, request))
        placed.sort(key=lambda entry: entry[0])
        total = max(total, offset + size)
    return offsets, total
