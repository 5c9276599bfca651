"""Sorts rows of a few thousand indices by the places that they name, in one launch.

A thread block has a range of places. It reads all indices of a row, and takes those of its range in their order. Few
are sorted by how many come before each; others by the bits of their places, from the lowest (radix sort; Knuth, "The
Art of Computer Programming", 5.2.5): each pass keeps the order of equal bits, so that the sort is stable. How many
indices name earlier places, which it counts likewise, is where its own begin. Merges of sorted runs wait for a launch
each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.lower.cuda.algorithms.nests import Nests, cast, int32, int64, keep, local, one_thread, shared

# Of more indices a row, a block's words and counts exceed the 48 KiB of shared memory that a kernel may declare.
MOST_INDICES = 3 << 15
# A block's threads. Each notes in a word which of its indices are the block's, of one in ``LANES`` that lie side by
# side, so that loads are coalesced; several are loaded at a time.
LANES, WORD, AT_ONCE = 32, 32, 8
# The threads of a block, and the blocks that a large GPU has at once. Small ones, whose barriers take less time, serve
# where a word each has all indices; all blocks of them load at most so many indices.
THREADS, BLOCKS = 1024, 128
SMALL_THREADS, SMALL_BLOCKS, MOST_LOADS = 256, 1024, 1 << 22


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
    small = places.number <= SMALL_THREADS * WORD
    blocks = min(SMALL_BLOCKS, MOST_LOADS // places.number) if small else BLOCKS
    groups = max(min(blocks // places.rows, places.count), 1)
    span = -(-places.count // groups)
    bits = (span - 1).bit_length()
    if bits:
        bits |= 1  # so that the last of the passes writes ``order``
    other = nests.workspace([places.rows * places.number], "int32") if bits else order
    totals = nests.workspace([places.rows * groups], "int32")
    with nests.rows("sort_by_place", places.rows * groups) as block:
        row = tirx.truncdiv(block, int64(groups))
        first = cast(tirx.truncmod(block, int64(groups)), "int32") * span
        last, threads = tirx.min(first + span, int32(places.count)), SMALL_THREADS if small else THREADS
        sort = _Block(places, row, (first, last), bits, threads)
        sort.take(other)
        if bits:
            with one_thread():
                totals[block] = sort.own.total()
            is_small = totals[block] <= threads
            with T.If(is_small):
                with T.Then():
                    sort.rank(other, order)
                with T.Else():
                    sort.split(other, order)
        sort.find_starts(order, starts)


class _Block:
    """Writes what a block does: it sorts the indices of a row whose places are from ``first`` and before ``last``."""

    def __init__(self, places: Places, row: Any, between: tuple[Any, Any], bits: int, threads: int) -> None:
        self.places, self.row, self.bits, self.threads = places, row, bits, threads
        self.first, self.last = between
        self.words = -(-places.number // (threads * WORD))
        self.noted = -(-places.number // (threads * self.words * AT_ONCE)) * AT_ONCE  # bits of a word
        self.parts = threads * self.words * self.noted // LANES
        self.before, self.own, self.zeros = _Counts(threads), _Counts(self.parts), _Counts(threads)

    def _each(self, number: Any) -> Any:
        """Return how many elements a thread takes."""
        return tirx.truncdiv(number + (self.threads - 1), int32(self.threads))

    def _place(self, index: Any) -> Any:
        return keep(self.places.at(self.row, cast(index, "int64")))

    def _base(self) -> Any:
        """Return where the elements of this block begin in a flat buffer."""
        return keep(self.row * self.places.number + cast(self.before.total(), "int64"))

    def take(self, target: Any) -> None:
        """Write the indices that name places of this block, in their order."""
        number, marks = int32(self.places.number), shared([self.threads * self.words], "int32")
        with T.parallel(int32(0), int32(self.threads)) as thread:
            before = local(int32(0))
            with T.serial(int32(0), int32(self.words)) as word:
                found = local(int32(0))
                first = keep((word * self.threads + thread - thread % LANES) * self.noted + thread % LANES)
                with T.serial(int32(0), int32(self.noted // AT_ONCE)) as step:
                    elements = [keep(first + (step * AT_ONCE + at) * LANES) for at in range(AT_ONCE)]
                    named = [self._place(tirx.min(element, number - 1)) for element in elements]
                    for at, (element, place) in enumerate(zip(elements, named, strict=True)):
                        # A slot without an element is behind all places.
                        ahead = keep(tirx.Select(element < number, place, int32(self.places.count)) - self.first)
                        before[0] = before[0] - (ahead >> 31)
                        is_own = tirx.all(ahead >= 0, ahead < self.last - self.first)
                        bit = int32(1) << (step * AT_ONCE + at)
                        found[0] = found[0] | tirx.Select(is_own, bit, int32(0))
                marks[word * self.threads + thread] = found[0]
            self.before.note(thread, before[0])
        self.before.add_up()
        rows = shared([self.parts], "int32")  # likewise, a bit for each of elements that lie side by side
        with T.parallel(int32(0), int32(self.parts)) as part:
            warp, bit = tirx.truncdiv(part, int32(self.noted)), tirx.truncmod(part, int32(self.noted))
            own, count = local(int32(0)), local(int32(0))
            with T.serial(int32(0), int32(LANES)) as lane:
                marked = keep((marks[warp * LANES + lane] >> bit) & 1)
                own[0] = own[0] | (marked << lane)
                count[0] = count[0] + marked
            rows[part] = own[0]
            self.own.note(part, count[0])
        self.own.add_up()
        with T.parallel(int32(0), int32(self.parts)) as part:
            own = keep(rows[part])
            with T.If(own != 0), T.Then():
                slot = local(self._base() + cast(self.own.ahead(part), "int64"))
                with T.serial(int32(0), int32(LANES)) as lane, T.If(((own >> lane) & 1) == 1), T.Then():
                    target[slot[0]] = part * LANES + lane
                    slot[0] = slot[0] + 1

    def rank(self, source: Any, order: Any) -> None:
        """Write elements, at most one for each thread, by how many come before them."""
        named = self.zeros.counts  # which passes need
        with T.parallel(int32(0), int32(self.threads)) as part, T.If(part < self.own.total()), T.Then():
            named[part] = self._place(keep(source[self._base() + cast(part, "int64")]))
        with T.parallel(int32(0), int32(self.threads)) as part:
            number, base = self.own.total(), self._base()
            own, rank = local(named[part]), local(int32(0))
            with T.serial(int32(0), number) as other:
                place = keep(named[other])
                is_before = tirx.any(place < own[0], tirx.all(place == own[0], other < part))
                rank[0] = rank[0] + tirx.Select(is_before, int32(1), int32(0))
            with T.If(part < number), T.Then():
                order[base + cast(rank[0], "int64")] = source[base + cast(part, "int64")]

    def split(self, source: Any, order: Any) -> None:
        """Write all passes, of which the last one writes ``order``."""
        buffers = (source, order)
        for bit in range(self.bits):
            self._split(bit, buffers[bit % 2], buffers[1 - bit % 2])

    def _split(self, bit: int, source: Any, target: Any) -> None:
        """Write first the elements without a bit of the place, then those with it."""

        def is_one(index: Any) -> Any:
            return keep(((self._place(index) - self.first) >> bit) & 1)

        with T.parallel(int32(0), int32(self.threads)) as part:
            number, base = self.own.total(), self._base()
            found = local(int32(0))
            with _adjacent(part, keep(self._each(number)), number) as element:
                index = keep(source[base + cast(element, "int64")])
                found[0] = found[0] + (1 - is_one(index))
            self.zeros.note(part, found[0])
        self.zeros.add_up()
        with T.parallel(int32(0), int32(self.threads)) as part:
            number, base = self.own.total(), self._base()
            steps = keep(self._each(number))
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

    def find_starts(self, order: Any, starts: Any) -> None:
        """Write for each place how many indices name earlier ones: an element begins all places behind the last's."""
        ends = self.places.count + 1
        with T.parallel(int32(0), int32(self.threads)) as part:
            number, base = self.own.total(), self._base()
            with _adjacent(part, keep(self._each(number + 1)), number + 1) as element:
                previous, this = local(self.first - 1), local(self.last - 1)
                with T.If(element > 0), T.Then():
                    previous[0] = self._place(keep(order[base + cast(element - 1, "int64")]))
                with T.If(element < number), T.Then():
                    this[0] = self._place(keep(order[base + cast(element, "int64")]))
                start = keep(self.before.total() + element)
                with T.serial(int32(0), this[0] - previous[0]) as place:
                    starts[self.row * ends + cast(previous[0] + 1 + place, "int64")] = start
            with T.If(tirx.all(part == 0, self.first == 0)), T.Then():
                starts[self.row * ends + self.places.count] = int32(self.places.number)


class _Counts:
    """Counts of parts in shared memory, and their sums.

    Few threads add up: shared memory serves a warp at a time. Their parts are a bank apart.
    """

    def __init__(self, parts: int) -> None:
        self.several = -(-parts // LANES)
        self.counts, self.sums = shared([self.several * (LANES + 1)], "int32"), shared([self.several], "int32")
        self.sums_ahead = shared([self.several + 1], "int32")

    def note(self, part: Any, count: Any) -> None:
        """Store what a part has counted."""
        self.counts[part + tirx.truncdiv(part, int32(LANES))] = count

    def add_up(self) -> None:
        """Make the counts of ``LANES`` parts the sums of those ahead of them, and add up what is ahead of these."""
        with T.parallel(int32(0), int32(self.several)) as several:
            total = local(int32(0))
            with T.serial(int32(0), int32(LANES)) as part:
                count = keep(self.counts[several * (LANES + 1) + part])
                self.counts[several * (LANES + 1) + part] = total[0]
                total[0] = total[0] + count
            self.sums[several] = total[0]
        with T.parallel(int32(0), int32(self.several + 1)) as several:
            total = local(int32(0))
            with T.serial(int32(0), int32(self.several)) as other:
                total[0] = total[0] + tirx.Select(other < several, self.sums[other], int32(0))
            self.sums_ahead[several] = total[0]

    def ahead(self, part: Any) -> Any:
        """Return the sum of what parts ahead of one have counted."""
        several = keep(tirx.truncdiv(part, int32(LANES)))
        return keep(self.sums_ahead[several] + self.counts[part + several])

    def total(self) -> Any:
        """Return the sum of all parts."""
        return keep(self.sums_ahead[self.several])


@contextmanager
def _adjacent(part: Any, steps: Any, number: Any) -> Iterator[Any]:
    """Begin a loop over the elements of a part, ``steps`` of ``number`` that lie side by side."""
    with T.serial(int32(0), steps) as step:
        element = keep(part * steps + step)
        with T.If(element < number), T.Then():
            yield element
