"""Sorts rows of a few thousand indices by the places that they name, in one launch.

A thread block has a range of places. It reads all indices of a row, and takes those of its range in their order. Few
are sorted by how many come before each; others by the bits of their places, from the lowest (radix sort; Knuth, "The
Art of Computer Programming", 5.2.5): each pass keeps the order of equal bits, so that the sort is stable. Passes are
in shared memory unless most indices name a few places. How many indices name earlier places, which a block counts
likewise, is where its own begin. Merges of sorted runs wait for a launch each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.lower.cuda.algorithms.block_counts import LANES, BlockCounts
from packager.lower.cuda.algorithms.nests import (
    Nests,
    adjacent,
    cast,
    int32,
    int64,
    keep,
    local,
    locals_of,
    one_thread,
    shared,
    vector,
)

# Of more indices a row, a block's words and counts leave no shared memory, of the 48 KiB that a kernel may declare.
MOST_INDICES, SHARED_BYTES = 3 << 15, 47 << 10
# A block's threads. Each notes in a word which of its indices are the block's, of one in ``LANES`` that lie side by
# side, so that loads are coalesced; several are loaded at a time.
WORD, AT_ONCE, WIDTH = 32, 8, 4
# The threads of a block, and the blocks that a large GPU has at once. Small ones, whose barriers take less time, serve
# where a word each has all indices; all blocks of them load at most so many indices.
THREADS, BLOCKS = 1024, 128
SMALL_THREADS, SMALL_BLOCKS, MOST_LOADS = 256, 1024, 1 << 22
# Up to so many elements are compared with each other. What shared memory holds is a place above an index's bits.
RANKED, INDEX_BITS = 384, 17


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
    bits |= min(bits, 1)  # odd, so that the last of the passes writes ``order``
    other = nests.workspace([places.rows * places.number], "int32") if bits else order
    totals = nests.workspace([places.rows * groups], "int32")
    with nests.rows("sort_by_place", places.rows * groups) as block:
        row = tirx.truncdiv(block, int64(groups))
        first = cast(tirx.truncmod(block, int64(groups)), "int32") * span
        last, threads = tirx.min(first + span, int32(places.count)), SMALL_THREADS if small else THREADS
        sort = _Block(places, row, (first, last), bits, threads)
        sort.mark()
        written = _Written(sort, (other, order))
        if not bits or bits + INDEX_BITS > WORD - 1:
            sort.take(written)
            sort.split(written)
            sort.find_starts(written, starts)
            return
        held = _Held(sort)
        with one_thread():
            totals[block] = sort.own.total()
        with T.If(totals[block] <= held.most):
            with T.Then():
                sort.take(held)
                with T.If(totals[block] <= min(RANKED, threads)):
                    with T.Then():
                        sort.rank(held)
                    with T.Else():
                        sort.split(held)
                held.write(order)
                sort.find_starts(held, starts)
            with T.Else():
                sort.take(written)
                sort.split(written)
                sort.find_starts(written, starts)


class _Block:
    """Writes what a block does: it sorts the indices of a row whose places are from ``first`` and before ``last``."""

    def __init__(self, places: Places, row: Any, between: tuple[Any, Any], bits: int, threads: int) -> None:
        self.places, self.row, self.bits, self.threads, (self.first, self.last) = places, row, bits, threads, between
        self.words = -(-places.number // (threads * WORD))
        self.noted = -(-places.number // (threads * self.words * AT_ONCE)) * AT_ONCE  # bits of a word
        self.parts = threads * self.words * self.noted // LANES
        self.marks = shared([threads * self.words], "int32")
        self.before, self.own, self.zeros = BlockCounts(threads), BlockCounts(self.parts), BlockCounts(threads)

    @property
    def bytes_left(self) -> int:
        """The shared memory that is left."""
        counts = self.before.bytes + self.own.bytes + self.zeros.bytes
        return SHARED_BYTES - 4 * self.threads * self.words - counts

    def each(self, number: Any) -> Any:
        """Return how many elements a thread takes."""
        return tirx.truncdiv(number + (self.threads - 1), int32(self.threads))

    def place(self, index: Any) -> Any:
        """Return the place that an index of the row names."""
        return keep(self.places.at(self.row, cast(index, "int64")))

    def base(self) -> Any:
        """Return where the elements of this block begin in a flat buffer."""
        return keep(self.row * self.places.number + cast(self.before.total(), "int64"))

    def mark(self) -> None:
        """Note which indices name places of this block, and count them and those that name earlier places."""
        number = int32(self.places.number)
        with T.parallel(int32(0), int32(self.threads)) as thread:
            before = local(int32(0))
            with T.serial(int32(0), int32(self.words)) as word:
                found = local(int32(0))
                first = keep((word * self.threads + thread - thread % LANES) * self.noted + thread % LANES)
                with T.serial(int32(0), int32(self.noted // AT_ONCE)) as step:
                    elements = [keep(first + (step * AT_ONCE + at) * LANES) for at in range(AT_ONCE)]
                    named = [self.place(tirx.min(element, number - 1)) for element in elements]
                    for at, (element, place) in enumerate(zip(elements, named, strict=True)):
                        # A slot without an element is behind all places.
                        ahead = keep(tirx.Select(element < number, place, int32(self.places.count)) - self.first)
                        before[0] = before[0] - (ahead >> 31)
                        is_own = tirx.all(ahead >= 0, ahead < self.last - self.first)
                        bit = int32(1) << (step * AT_ONCE + at)
                        found[0] = found[0] | tirx.Select(is_own, bit, int32(0))
                self.marks[word * self.threads + thread] = found[0]
            self.before.note(thread, before[0])
        self.before.add_up()
        with T.parallel(int32(0), int32(self.parts)) as part:
            count = local(int32(0))
            with T.serial(int32(0), int32(LANES)) as lane:
                count[0] = count[0] + self._mark(part, lane)
            self.own.note(part, count[0])
        self.own.add_up()

    def _mark(self, part: Any, lane: Any) -> Any:
        """Return whether one of the elements of a part, which lie side by side, is the block's."""
        warp, bit = tirx.truncdiv(part, int32(self.noted)), tirx.truncmod(part, int32(self.noted))
        return keep((self.marks[warp * LANES + lane] >> bit) & 1)

    def take(self, store: _Written | _Held) -> None:
        """Write the indices that name places of this block, in their order."""
        with T.parallel(int32(0), int32(self.parts)) as part:
            slot = local(self.own.ahead(part))
            with T.serial(int32(0), int32(LANES)) as lane, T.If(self._mark(part, lane) == 1), T.Then():
                store.put(0, slot[0], part * LANES + lane)
                slot[0] = slot[0] + 1
        store.name()

    def rank(self, store: _Held) -> None:
        """Write elements, at most one for each thread, by how many come before them."""
        with T.parallel(int32(0), int32(self.threads)) as part, T.If(part < self.own.total()), T.Then():
            own, rank, number = local(store.at(0, part)), local(int32(0)), self.own.total()
            with T.serial(int32(0), tirx.truncdiv(number + (AT_ONCE - 1), int32(AT_ONCE))) as step:
                others = locals_of(AT_ONCE, "int32")
                for first in range(0, AT_ONCE, WIDTH):
                    with vector(WIDTH) as lane:  # beyond the last, too
                        others[first + lane] = store.buffers[0][step * AT_ONCE + first + lane]
                for at in range(AT_ONCE):
                    is_before = tirx.all(step * AT_ONCE + at < number, others[at] < own[0])
                    rank[0] = rank[0] + cast(is_before, "int32")
            store.put(1, rank[0], own[0])

    def split(self, store: _Written | _Held) -> None:
        """Write all passes, of which the last one writes the second buffer."""
        for bit in range(self.bits):
            self._split(store, bit)

    def _split(self, store: _Written | _Held, bit: int) -> None:
        """Write first the elements without a bit of the place, then those with it."""

        def is_one(element: Any) -> Any:
            return keep((store.place(element) >> bit) & 1)

        source, target = bit % 2, 1 - bit % 2
        with T.parallel(int32(0), int32(self.threads)) as part:
            number, found = self.own.total(), local(int32(0))
            with adjacent(part, keep(self.each(number)), number) as slot:
                found[0] = found[0] + (1 - is_one(store.at(source, slot)))
            self.zeros.note(part, found[0])
        self.zeros.add_up()
        with T.parallel(int32(0), int32(self.threads)) as part:
            number = self.own.total()
            steps = keep(self.each(number))
            with T.If(part * steps < number), T.Then():
                zero = local(self.zeros.ahead(part))
                one = local(self.zeros.total() + part * steps - zero[0])
                with adjacent(part, steps, number) as slot:
                    element = store.at(source, slot)
                    bit_of = is_one(element)
                    store.put(target, keep(tirx.Select(bit_of == 1, one[0], zero[0])), element)
                    one[0] = one[0] + bit_of
                    zero[0] = zero[0] + (1 - bit_of)

    def find_starts(self, store: _Written | _Held, starts: Any) -> None:
        """Write for each place how many indices name earlier ones: an element begins all places behind the last's."""
        ends, sorted_ = self.places.count + 1, min(self.bits, 1)
        with T.parallel(int32(0), int32(self.threads)) as part:
            number = self.own.total()
            with adjacent(part, keep(self.each(number + 1)), number + 1) as slot:
                previous, this = local(int32(-1)), local(self.last - self.first - 1)
                with T.If(slot > 0), T.Then():
                    previous[0] = store.place(store.at(sorted_, slot - 1))
                with T.If(slot < number), T.Then():
                    this[0] = store.place(store.at(sorted_, slot))
                start = keep(self.before.total() + slot)
                with T.serial(int32(0), this[0] - previous[0]) as place:
                    starts[self.row * ends + cast(self.first + previous[0] + 1 + place, "int64")] = start
            with T.If(tirx.all(part == 0, self.first == 0)), T.Then():
                starts[self.row * ends + self.places.count] = int32(self.places.number)


class _Written:
    """The indices of a block in two flat buffers of all blocks."""

    def __init__(self, block: _Block, buffers: Sequence[Any]) -> None:
        self.block, self.buffers = block, buffers

    def at(self, buffer: int, slot: Any) -> Any:
        """Return the element in a slot of one of the buffers: its index."""
        return keep(self.buffers[buffer][self.block.base() + cast(slot, "int64")])

    def put(self, buffer: int, slot: Any, element: Any) -> None:
        """Write an element."""
        self.buffers[buffer][self.block.base() + cast(slot, "int64")] = element

    def name(self) -> None:
        """Leave indices as they are: places are read wherever they are needed."""

    def place(self, element: Any) -> Any:
        """Return the place of an element, from the block's first."""
        return keep(self.block.place(element) - self.block.first) if self.block.bits else int32(0)


class _Held:
    """Elements of a block in shared memory: their places from the block's first, above the bits of their indices."""

    def __init__(self, block: _Block) -> None:
        self.block = block
        self.most = max(min(block.bytes_left // 8, block.places.number), RANKED + AT_ONCE)
        self.buffers = [shared([self.most], "int32") for _ in range(2)]

    def at(self, buffer: int, slot: Any) -> Any:
        """Return the element in a slot of one of the buffers."""
        return keep(self.buffers[buffer][slot])

    def put(self, buffer: int, slot: Any, element: Any) -> None:
        """Write an element."""
        self.buffers[buffer][slot] = element

    def name(self) -> None:
        """Give indices their places."""
        with self._each() as slot:
            index = self.at(0, slot)
            place = keep(self.block.place(index) - self.block.first)
            self.put(0, slot, (place << INDEX_BITS) | index)

    def place(self, element: Any) -> Any:
        """Return the place of an element, from the block's first."""
        return keep(element >> INDEX_BITS)

    def write(self, order: Any) -> None:
        """Write the sorted indices."""
        with self._each() as slot:
            element = self.at(1, slot)
            order[self.block.base() + cast(slot, "int64")] = element & ((1 << INDEX_BITS) - 1)

    @contextmanager
    def _each(self) -> Iterator[Any]:
        """Begin a loop over all slots, of which threads have those that lie side by side."""
        threads = self.block.threads
        with T.parallel(int32(0), int32(threads)) as part:
            number = self.block.own.total()
            with T.serial(int32(0), keep(self.block.each(number))) as step:
                slot = keep(step * threads + part)
                with T.If(slot < number), T.Then():
                    yield slot
