"""Packs buffers with known lifetimes into one arena.

Greedy by size, first fit: the largest buffer first, each at the lowest offset that overlaps no buffer live at the same
time in the same session. Source: Pisarchyk and Lee 2020, "Efficient Memory Management for Deep Neural Net Inference",
sec. 4. Buffers of first alternatives come before all others: the memory of these is packed as if there were no others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

ALIGNMENTS = {"cpu": 64, "cuda": 256}
"""Bytes at multiples of which memory of a device begins: constants, and tensors in the arena.

On a GPU what TensorRT wants, and no less than a line of the cache: a product of half precision takes 1.1 of the time if
the rows of its weights' tiles, 128 bytes, lie across two.
"""


@dataclass(frozen=True)
class Buffer:
    """A buffer of ``nbytes``, live from step ``first`` to step ``last`` inclusive, if the session runs the alternatives
    ``digits``, by choice."""

    nbytes: int
    first: int
    last: int
    digits: Mapping[int, int] = field(default_factory=dict)

    @property
    def alternative(self) -> int:
        """The greatest number of an alternative that it is for."""
        return max(self.digits.values(), default=0)

    def meets(self, other: Buffer) -> bool:
        """Whether both are live at a step of some session."""
        if other.last < self.first or self.last < other.first:
            return False
        return all(other.digits.get(choice, digit) == digit for choice, digit in self.digits.items())


def align(nbytes: int, alignment: int) -> int:
    """Round up to a multiple of an alignment."""
    return -(-nbytes // alignment) * alignment


def allocate(buffers: Sequence[Buffer], alignment: int) -> tuple[list[int], int]:
    """Return the offset of each buffer, in order, and the size of the arena: multiples of ``alignment`` bytes."""
    offsets = [0] * len(buffers)
    placed: list[tuple[int, int, Buffer]] = []  # offset, end, buffer; sorted by offset
    total = 0

    def priority(index: int) -> tuple[int, int, int, int]:
        buffer = buffers[index]
        return buffer.alternative, -buffer.nbytes, buffer.first, index

    for index in sorted(range(len(buffers)), key=priority):
        buffer = buffers[index]
        size = align(buffer.nbytes, alignment)
        offset = 0
        for start, end, other in placed:
            if not buffer.meets(other):
                continue
            if start - offset >= size:
                break
            offset = max(offset, end)
        offsets[index] = offset
        placed.append((offset, offset + size, buffer))
        placed.sort(key=lambda entry: entry[0])
        total = max(total, offset + size)
    return offsets, total
