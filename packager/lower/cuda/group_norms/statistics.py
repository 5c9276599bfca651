"""Computes means and deviations of groups of channels for GPUs: many thread blocks have parts of images, then few all.

A block has a part of an image's places, and reads whole rows of channels. It adds up the distances of elements to one
of them, and their squares, which have as many digits as deviations have (Chan, Golub and LeVeque 1983, "Algorithms for
computing the sample variance", on shifted data). That one is the median of three, so that no single outlier is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.graph.dataflow import extents_of
from packager.lower.blocks import UNKNOWN, VECTOR_BYTES
from packager.lower.cuda.algorithms.nests import Nests, cast, emit, int64, keep, local, locals_of, shared, vector
from packager.lower.legalize.accumulate import FULL

# Threads of a block, how many add up what those have of a group, and how many more of long groups.
THREADS, SHARERS, MORE_SHARERS, LONG = 256, 8, 32, 128
# The most parts of an image, blocks that are enough, and vectors that a thread loads at once.
MOST_PARTS, BLOCKS, MOST_VECTORS = 32, 264, 8


@dataclass(frozen=True)
class Parts:
    """How blocks read images of ``places`` x ``channels``: ``rows`` of ``lanes`` threads, each of ``width`` channels.

    ``slabs`` of channels have a block each, and ``number`` parts of ``length`` places; ``each`` are those of a group.
    """

    places: int
    channels: int
    each: int
    width: int
    lanes: int
    rows: int
    length: int

    @property
    def number(self) -> int:
        """The parts of an image."""
        return -(-self.places // self.length)

    @property
    def slabs(self) -> int:
        """The parts of the channels."""
        return self.channels // (self.lanes * self.width)

    @property
    def groups(self) -> int:
        """The groups of a slab."""
        return self.lanes * self.width // self.each

    @property
    def sums(self) -> int:
        """How many sums a thread has: one if its channels are of one group, else one of each."""
        return 1 if not self.each % self.width else self.width

    @property
    def together(self) -> int:
        """How many vectors a thread loads at once."""
        steps = self.length // self.rows
        return next(n for n in range(min(steps, MOST_VECTORS), 0, -1) if not steps % n)


def parts_of(batch: Any, places: int, channels: int, each: int, dtype: str) -> Parts | None:
    """Return how blocks read images whose groups have ``each`` channels; None if a block cannot have a whole group."""
    size = int(tvm.runtime.DataType(dtype).itemsize)
    width = next(w for w in (VECTOR_BYTES // size, 4, 2, 1) if not channels % w)
    vectors = channels // width
    fits = (n for n in range(min(vectors, THREADS), 0, -1) if not vectors % n and not n * width % each)
    lanes = next(fits, 0)
    if not lanes:
        return None
    rows = THREADS // lanes
    images = int(batch) if isinstance(batch, tirx.IntImm) else UNKNOWN
    wanted = max(1, min(MOST_PARTS, BLOCKS // (images * (vectors // lanes))))
    length = -(-places // (wanted * rows)) * rows
    return Parts(places, channels, each, width, lanes, rows, length)


def group_statistics(builder: relax.BlockBuilder, data: Any, parts: Parts, epsilon: float, *, centered: bool) -> Any:
    """Bind the means and 1 / deviations, [N, groups, 2] of float32, of groups of images [N, places, channels].

    The mean counts as zero unless ``centered``.
    """
    batch, groups = (extents_of(data) or ())[0], parts.channels // parts.each
    result = relax.TensorType([batch, groups, 2], FULL)
    nests = Nests([data.ty], [result])
    (x,), (out,), count = nests.inputs, nests.outputs, nests.extents[0][0]
    sums = nests.workspace([count, parts.number, groups, 2], FULL)

    def shift(image: Any, group: Any) -> Any:
        places = (parts.places // 4, parts.places // 2, parts.places * 3 // 4)
        a, b, c = (local(cast(x[image, int64(place), group * parts.each], FULL))[0] for place in places)
        return tirx.max(tirx.min(a, b), tirx.min(tirx.max(a, b), c))

    with nests.rows("group_parts", int64(count) * (parts.number * parts.slabs)) as block:
        slab, rest = (of(block, int64(parts.slabs)) for of in (tirx.truncmod, tirx.truncdiv))
        part, image = (of(rest, int64(parts.number)) for of in (tirx.truncmod, tirx.truncdiv))
        _write_part(x, sums, parts, (image, part, slab), shift)
    with nests.rows("group_statistics", int64(count)) as image:
        shares = [shared([SHARERS * groups], FULL) for _ in range(2)]
        with T.parallel(int64(0), int64(SHARERS * groups)) as thread:
            share, group = tirx.truncdiv(thread, int64(groups)), tirx.truncmod(thread, int64(groups))
            every = _every(share, SHARERS, parts.number)
            for number, target in enumerate(shares):
                target[thread] = _sum([(sums[image, part, group, number], exists) for part, exists in every])
        with T.parallel(int64(0), int64(groups)) as group:
            total, squares = (_added([each[n * groups + group] for n in range(SHARERS)]) for each in shares)
            length = tirx.const(float(parts.places * parts.each), FULL)
            mean = local(total / length)
            center = local(mean[0] + shift(image, group))
            variance = tirx.max(squares / length - mean[0] * mean[0], tirx.const(0.0, FULL))
            variance = variance if centered else variance + center[0] * center[0]
            out[image, group, 0] = center[0] if centered else tirx.const(0.0, FULL)
            out[image, group, 1] = tirx.rsqrt(variance + tirx.const(epsilon, FULL))
    return emit(builder, "group_statistics", nests.primfunc(), [data], [result])[0]


def _write_part(x: Any, out: Any, parts: Parts, at: tuple[Any, Any, Any], shift: Callable[[Any, Any], Any]) -> None:
    """Write the sums of a part for each group of a slab: of the distances to its shift, and of their squares."""
    image, part, slab = at
    width, lanes, rows, groups = parts.width, parts.lanes, parts.rows, parts.groups
    own = parts.each * parts.sums // width  # sums of a group in a row of threads
    values, zero = rows * own, tirx.const(0.0, FULL)
    sharers = SHARERS if values <= LONG else MORE_SHARERS
    held = [shared([values * groups], FULL) for _ in range(2)]
    with T.parallel(int64(0), int64(rows * lanes)) as thread:
        row, lane = keep(tirx.truncdiv(thread, int64(lanes))), keep(tirx.truncmod(thread, int64(lanes)))
        shifts, total, square = (locals_of(width, FULL) for _ in range(3))
        for element in range(width):
            total[element] = square[element] = zero
        for number in range(parts.sums):
            shifts[number] = shift(image, slab * groups + (lane * parts.sums + number) // own)
        loaded = [locals_of(width, str(x[image, part, lane].ty)) for _ in range(parts.together)]
        with T.serial(int64(0), int64(parts.length // rows // parts.together)) as step:
            first = keep(part * parts.length + step * (parts.together * rows) + row)
            for number, vectors in enumerate(loaded):
                place = keep(tirx.min(first + number * rows, int64(parts.places - 1)))
                with vector(width) as element:
                    vectors[element] = x[image, place, slab * (lanes * width) + lane * width + element]
            for number, vectors in enumerate(loaded):
                inside = first + number * rows < parts.places
                for element in range(width):
                    distance = keep(
                        tirx.Select(inside, cast(vectors[element], FULL) - shifts[element % parts.sums], zero)
                    )
                    total[element] = total[element] + distance
                    square[element] = square[element] + distance * distance
        for number in range(parts.sums):
            elements = range(number, number + 1) if parts.sums > 1 else range(width)
            place = lane * parts.sums + number
            index = (tirx.truncmod(place, int64(own)) * rows + row) * groups + place // own
            for target, source in zip(held, (total, square), strict=True):
                target[index] = _added([source[element] for element in elements])
    shares = [shared([sharers * groups], FULL) for _ in range(2)]
    with T.parallel(int64(0), int64(sharers * groups)) as thread:
        share, group = tirx.truncdiv(thread, int64(groups)), tirx.truncmod(thread, int64(groups))
        every = _every(share, sharers, values)
        for source, target in zip(held, shares, strict=True):
            target[thread] = _sum([(source[place * groups + group], exists) for place, exists in every])
    with T.parallel(int64(0), int64(groups)) as group:
        for number, source in enumerate(shares):
            total = _added([source[share * groups + group] for share in range(sharers)])
            out[image, part, slab * groups + group, number] = total


def _every(share: Any, step: int, number: int) -> list[tuple[Any, Any]]:
    """Return the indices ``share``, ``share + step``, ... below a number, and conditions of those that exist."""
    starts = range(0, number, step)
    return [(tirx.min(share + start, int64(number - 1)), share + start < number) for start in starts]


def _sum(terms: list[tuple[Any, Any]]) -> Any:
    """Return the sum of terms whose condition holds, all of which are loaded at once."""
    return _added([tirx.Select(condition, term, tirx.const(0.0, FULL)) for term, condition in terms])


def _added(terms: list[Any]) -> Any:
    return reduce(lambda left, right: left + right, terms)
