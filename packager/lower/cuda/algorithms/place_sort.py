"""Sorts rows of a few thousand indices by the places that they name, in one launch.

A thread block has a range of places. It reads all indices of a row, takes those of its range in their order, and sorts
them by the bits of their places, from the lowest (radix sort; Knuth, "The Art of Computer Programming", 5.2.5): each
pass keeps the order of equal bits, so that the sort is stable. How many indices name earlier places, which it counts
likewise, is where its own begin. Merges of sorted runs wait for a launch each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.lower.cuda.algorithms.nests import Nests, cast, int32, int64, keep, local, shared

# Of more indices a row, each block reads too many that are not its own.
MOST_INDICES = 1 << 17
# Thread blocks, one for each multiprocessor of a large GPU.
BLOCKS = 128
# A block's threads, each of which takes adjacent elements, and those whose counts are added up first.
PARTS, TOGETHER = 1024, 32


@dataclass(frozen=True)
class Places:
    """Rows of ``number`` indices, of ``count`` places: ``at(row, index)`` is the place (int32) that an index names."""

    rows: int
    number: int
    count: int
    at: Callable[[Any, Any], Any]


def sort_by_place(nests: Nests, places: Places, order: Any, starts: Any) -> None:
    """Write the nest that sorts indices by their places, stably.

    ``order`` gets the indices of each row, flat, ``starts`` where each place begins in them, and where the last ends.
    """
    groups = max(min(BLOCKS // places.rows, places.count), 1)
    span = -(-places.count // groups)
    bits = (span - 1).bit_length()
    other = nests.workspace([places.rows * places.number], "int32") if bits else order
    with nests.rows("sort_by_place", places.rows * groups) as block:
        row = tirx.truncdiv(block, int64(groups))
        first = cast(tirx.truncmod(block, int64(groups)), "int32") * span
        _Block(places, row, first, tirx.min(first + span, int32(places.count)), bits).write(order, other, starts)


class _Block:
    """Writes what a block does: it sorts the indices of a row whose places are from ``first`` and before ``last``."""

    def __init__(self, places: Places, row: Any, first: Any, last: Any, bits: int) -> None:
        self.places, self.row, self.first, self.last, self.bits = places, row, first, last, bits
        self.before, self.own, self.zeros = _Counts(), _Counts(), _Counts()

    def write(self, order: Any, other: Any, starts: Any) -> None:
        """Write all passes; the last one writes ``order``."""
        buffers = [order, other] if self.bits % 2 == 0 else [other, order]
        self._take(buffers[0])
        for bit in range(self.bits):
            source, target = buffers[bit % 2], buffers[1 - bit % 2]
            self._split(bit, source, target)
        self._find_starts(order, starts)

    def _place(self, index: Any) -> Any:
        return keep(self.places.at(self.row, cast(index, "int64")))

    def _is_own(self, place: Any) -> Any:
        return tirx.all(self.first <= place, place < self.last)

    def _slot(self, position: Any) -> Any:
        """Return where an element of this block is in a flat buffer."""
        return self.row * self.places.number + cast(self.before.total() + position, "int64")

    def _take(self, target: Any) -> None:
        """Write the indices that name places of this block, in their order."""
        steps, number = int32(-(-self.places.number // PARTS)), int32(self.places.number)
        with T.parallel(int32(0), int32(PARTS)) as part:
            before, own = local(int32(0)), local(int32(0))
            with _adjacent(part, steps, number) as index:
                place = self._place(index)
                before[0] = before[0] + tirx.Select(place < self.first, int32(1), int32(0))
                own[0] = own[0] + tirx.Select(self._is_own(place), int32(1), int32(0))
            self.before.of_parts[part], self.own.of_parts[part] = before[0], own[0]
        self.before.add_up()
        self.own.add_up()
        with T.parallel(int32(0), int32(PARTS)) as part:
            count = keep(self.own.of_parts[part])
            with T.If(count > 0), T.Then():
                slot = local(self._slot(self.own.ahead(part)))
                with _adjacent(part, steps, number) as index, T.If(self._is_own(self._place(index))), T.Then():
                    target[slot[0]] = index
                    slot[0] = slot[0] + 1

    def _split(self, bit: int, source: Any, target: Any) -> None:
        """Write first the elements without a bit of the place, then those with it."""

        def is_one(index: Any) -> Any:
            return keep(((self._place(index) - self.first) >> bit) & 1)

        with T.parallel(int32(0), int32(PARTS)) as part:
            number, base = keep(self.own.total()), keep(self._slot(int32(0)))
            found = local(int32(0))
            with _adjacent(part, keep(_ceil_div(number, PARTS)), number) as element:
                index = keep(source[base + cast(element, "int64")])
                found[0] = found[0] + (1 - is_one(index))
            self.zeros.of_parts[part] = found[0]
        self.zeros.add_up()
        with T.parallel(int32(0), int32(PARTS)) as part:
            number, base = keep(self.own.total()), keep(self._slot(int32(0)))
            steps = keep(_ceil_div(number, PARTS))
            with T.If(part * steps < number), T.Then():
                zero = local(self.zeros.ahead(part))
                one = local(self.zeros.total() + part * steps - zero[0])
                with _adjacent(part, steps, number) as element:
                    index = keep(source[base + cast(element, "int64")])
                    bit_of = is_one(index)
                    slot = keep(tirx.Select(bit_of == 1, one[0], zero[0]))
                    target[base + cast(slot, "int64")] = index
                    one[0] = one[0] + bit_of
                    zero[0] = zero[0] + (1 - bit_of)

    def _find_starts(self, order: Any, starts: Any) -> None:
        """Write for each place how many indices name earlier ones: an element begins all places behind the last's."""
        ends = self.places.count + 1
        with T.parallel(int32(0), int32(PARTS)) as part:
            number, base = keep(self.own.total()), keep(self._slot(int32(0)))
            with _adjacent(part, keep(_ceil_div(number + 1, PARTS)), number + 1) as element:
                previous, this = local(self.first - 1), local(self.last - 1)
                with T.If(element > 0), T.Then():
                    previous[0] = self._place(keep(order[base + cast(element - 1, "int64")]))
                with T.If(element < number), T.Then():
                    this[0] = self._place(keep(order[base + cast(element, "int64")]))
                start = keep(self.before.total() + element)
                with T.serial(int32(0), this[0] - previous[0]) as place:
                    at = keep(previous[0] + 1 + place)
                    with T.If(at < self.last), T.Then():
                        starts[self.row * ends + cast(at, "int64")] = start
            with T.If(tirx.all(part == 0, self.first == 0)), T.Then():
                starts[self.row * ends + self.places.count] = int32(self.places.number)


class _Counts:
    """Counts of parts, and of ``TOGETHER`` parts each, in shared memory."""

    def __init__(self) -> None:
        self.of_parts, self.of_several = shared([PARTS], "int32"), shared([PARTS // TOGETHER], "int32")

    def add_up(self) -> None:
        """Add up the counts of parts."""
        with T.parallel(int32(0), int32(PARTS // TOGETHER)) as several:
            self.of_several[several] = _sum(self.of_parts, several * TOGETHER, int32(TOGETHER))

    def ahead(self, part: Any) -> Any:
        """Return the sum of what parts ahead of one have counted."""
        several = keep(tirx.truncdiv(part, int32(TOGETHER)))
        inner = _sum(self.of_parts, several * TOGETHER, part - several * TOGETHER)
        return keep(_sum(self.of_several, int32(0), several) + inner)

    def total(self) -> Any:
        """Return the sum of all parts."""
        return _sum(self.of_several, int32(0), int32(PARTS // TOGETHER))


def _sum(counts: Any, begin: Any, number: Any) -> Any:
    total = local(int32(0))
    with T.serial(int32(0), number) as step:
        total[0] = total[0] + counts[begin + step]
    return total[0]


def _ceil_div(number: Any, parts: int) -> Any:
    return tirx.truncdiv(number + (parts - 1), int32(parts))


@contextmanager
def _adjacent(part: Any, steps: Any, number: Any) -> Iterator[Any]:
    """Begin a loop over the elements of a part, ``steps`` of ``number`` that lie side by side."""
    with T.serial(int32(0), steps) as step:
        element = keep(part * steps + step)
        with T.If(element < number), T.Then():
            yield element
