"""Lower suppression of overlapping boxes for GPUs: sort by score, then select chunk by chunk, a class in each block.

The candidates of a chunk are compared with the boxes selected so far, and with each other: a word for each has the
bits of those before it that overlap it, so that one thread decides a chunk by a pass over words. Many candidates are
taken in phases: before each, all threads of the GPU compare its candidates with what earlier phases have selected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.lower.cuda.algorithms.merge_sort import ByKey, Sorted, merge_sort
from packager.lower.cuda.algorithms.nests import Nests, cast, ceil_div, emit, int64, keep, local, one_thread
from packager.lower.cuda.algorithms.prefix_sum import prefix_sums
from packager.lower.keys import key_of, key_type, least_key
from packager.lower.legalize.selection.non_max_suppression import Corners, corners, overlaps

CHUNK = 64  # bits of a word
# Threads for a candidate: within its chunk, and before a phase.
SPLIT = 16
WIDE_SPLIT = 32
# Candidates of a phase, and the most phases.
PHASE = 2048
MAX_PHASES = 16


def suppress_boxes(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.non_max_suppression``."""
    operands, most = call.args[:4], int(call.attrs["most"])
    nests = Nests([operand.ty for operand in operands], call.ty.fields)
    (boxes, scores, limit, floor), (chosen, count) = nests.inputs, nests.outputs
    (_, number, _), (batch, classes, _), *_, (_, kept, _), _ = nests.extents
    rows, dtype = batch * classes, str(boxes.dtype)
    kind = key_type(dtype)

    def key(row: Any, index: Any) -> Any:
        score = scores[tirx.truncdiv(row, classes), tirx.truncmod(row, classes), index]
        return tirx.Select(score > floor[0], key_of(score, dtype), least_key(dtype))

    order = merge_sort(nests, rows, number, number, most, ByKey(kind, key, largest_first=True))
    selection = _Selection(
        order=order,
        boxes=boxes,
        limit=limit,
        number=number,
        classes=classes,
        kept=kept,
        nothing=least_key(dtype),
        centered=bool(int(call.attrs["centered"])),
        count=nests.workspace([rows], "int32"),
        begin=nests.workspace([rows], "int32"),
        indices=nests.workspace([rows * kept], "int32"),
        corners=nests.workspace([rows * kept * 4], dtype),
        dropped=nests.workspace([rows * number], "uint8"),
        chunk=nests.workspace([rows * CHUNK * 4], dtype),
        dead=nests.workspace([rows * CHUNK], "uint8"),
        before=nests.workspace([rows * CHUNK * SPLIT], "uint64"),
        overlapped=nests.workspace([rows * CHUNK], "uint64"),
        winners=nests.workspace([rows], "uint64"),
    )
    phases = max(1, min(MAX_PHASES, -(-most // PHASE)))
    with nests.grid("begin", rows, number) as (row, place):
        selection.dropped[row * number + place] = tirx.const(0, "uint8")
        with T.If(place == int64(0)), T.Then():
            selection.count[row] = tirx.const(0, "int32")
            selection.begin[row] = tirx.const(0, "int32")
    length = ceil_div(number, phases)
    for phase in range(phases):
        first = length * phase
        if phase:
            _drop(nests, rows, selection, first, tirx.max(tirx.min(length, number - first), int64(0)))
        _select(nests, rows, selection, first, tirx.min(first + length, number))
    sums = prefix_sums(nests, rows, _bound(rows), lambda row: cast(selection.count[row], "int64"))
    with nests.grid("gather", rows, kept) as (row, place):
        own = cast(selection.count[row], "int64")
        with T.If(place < own), T.Then():
            target = local(sums.before(row)[0] + place)
            parts = tirx.truncdiv(row, classes), tirx.truncmod(row, classes), selection.indices[row * kept + place]
            for column, part in enumerate(parts):
                at = tirx.truncdiv(target[0], kept), tirx.truncmod(target[0], kept), int64(column)
                chosen[at] = cast(part, "int64")
    with nests.grid("count", 1) as (only,):
        count[only] = sums.total()[0]
    results = emit(builder, "non_max_suppression", nests.primfunc(), operands, call.ty.fields)
    return relax.Tuple(results)


def _bound(rows: Any) -> int:
    return int(rows) if isinstance(rows, tirx.IntImm) else 2**31 - 1


@dataclass(frozen=True)
class _Selection:
    """What is selected of each row so far: ``count`` boxes, their ``indices`` and ``corners``.

    ``order`` is that of the candidates; the first key that is ``nothing`` ends them. ``begin`` is the count before the
    phase, ``dropped`` tells which candidates overlap a box of an earlier phase. The rest is of a row's current chunk:
    see _Chunk; ``winners`` has a bit for each candidate that is selected. All buffers are flat.
    """

    order: Sorted
    boxes: Any
    limit: Any
    number: Any
    classes: Any
    kept: Any
    nothing: Any
    centered: bool
    count: Any
    begin: Any
    indices: Any
    corners: Any
    dropped: Any
    chunk: Any
    dead: Any
    before: Any
    overlapped: Any
    winners: Any

    def is_candidate(self, row: Any, place: Any) -> Any:
        return self.order.keys[row * self.number + place] != self.nothing

    def box_of(self, row: Any, place: Any) -> Any:
        """Return the index of the box at a place of the order."""
        return self.order.indices[row * self.number + place]

    def corners_of(self, row: Any, place: Any) -> Corners:
        """Return the corners of the candidate at a place of the order."""
        image, index = tirx.truncdiv(row, self.classes), cast(self.box_of(row, place), "int64")
        return corners(lambda k: self.boxes[image, index, k], self.centered)

    def put(self, row: Any, place: Any, index: Any, own: Corners) -> None:
        """Write a selected box."""
        at = row * self.kept + place
        self.indices[at] = index
        for k, value in enumerate(own):
            self.corners[at * 4 + k] = value

    def selected(self, row: Any, place: Any) -> Corners:
        """Return the corners of a selected box."""
        at = (row * self.kept + place) * 4
        return self.corners[at], self.corners[at + 1], self.corners[at + 2], self.corners[at + 3]


@dataclass(frozen=True)
class _Chunk:
    """The candidates of a row that are decided on together: views of buffers of all rows, from ``first`` on."""

    selection: _Selection
    first: Any

    @property
    def dead(self) -> _View:
        """Whether a candidate is none, or was dropped."""
        return _View(self.selection.dead, lambda i: self.first + i)

    @property
    def overlapped(self) -> _View:
        """By which earlier candidates of the chunk one is overlapped; its last bit: by a box selected earlier, or it is
        dead."""
        return _View(self.selection.overlapped, lambda i: self.first + i)

    @property
    def before(self) -> _View:
        """The parts of ``overlapped`` that each thread finds."""
        return _View(self.selection.before, lambda at: (self.first * SPLIT) + at[0] * CHUNK + at[1])

    def is_alive(self, i: Any) -> Any:
        return self.dead[i] == tirx.const(0, "uint8")

    def corners(self, i: Any) -> Corners:
        a, b, c, d = (self.selection.chunk[(self.first + i) * 4 + k] for k in range(4))
        return a, b, c, d

    def put(self, i: Any, own: Corners) -> None:
        for k, value in enumerate(own):
            self.selection.chunk[(self.first + i) * 4 + k] = value


@dataclass(frozen=True)
class _View:
    """A part of a flat buffer."""

    buffer: Any
    index: Callable[[Any], Any]

    def __getitem__(self, at: Any) -> Any:
        return self.buffer[self.index(at)]

    def __setitem__(self, at: Any, value: Any) -> None:
        self.buffer[self.index(at)] = value


def _kept(box: Corners) -> Corners:
    a, b, c, d = map(keep, box)
    return a, b, c, d


def _drop(nests: Nests, rows: Any, selection: _Selection, first: Any, number: Any) -> None:
    """Drop candidates that overlap a box of an earlier phase. Threads that find one write the same."""
    split = int64(WIDE_SPLIT)
    with nests.grid("drop", rows, split, number) as (row, part, step):
        place = first + step
        with T.If(selection.is_candidate(row, place)), T.Then():
            own = _kept(selection.corners_of(row, place))
            found, at = local(tirx.const(0, "int32")), local(cast(part, "int32"))
            with T.While(tirx.all(found[0] == 0, at[0] < selection.count[row])):
                other = selection.selected(row, cast(at[0], "int64"))
                with T.If(overlaps(other, own, selection.limit[0])), T.Then():
                    found[0] = tirx.const(1, "int32")
                at[0] = at[0] + WIDE_SPLIT
            with T.If(found[0] != 0), T.Then():
                selection.dropped[row * selection.number + place] = tirx.const(1, "uint8")
    with nests.grid("begin_phase", rows) as (row,):
        selection.begin[row] = selection.count[row]


def _select(nests: Nests, rows: Any, selection: _Selection, first: Any, end: Any) -> None:
    """Select among candidates ``first`` to ``end`` of each row, whose overlaps with earlier phases are known."""
    zero, one, size = tirx.const(0, "uint64"), tirx.const(1, "uint64"), int64(CHUNK)
    last = tirx.const(CHUNK - 1, "uint64")
    with nests.rows("select", rows) as row, T.serial(int64(0), ceil_div(end - first, CHUNK)) as number:
        base = first + number * CHUNK
        chunk = _Chunk(selection, row * CHUNK)
        count = selection.count[row]
        goes_on = tirx.all(cast(count, "int64") < selection.kept, selection.is_candidate(row, base))
        with T.If(goes_on), T.Then():
            with T.parallel(int64(0), size) as i:
                chunk.dead[i] = tirx.const(1, "uint8")
                with T.If(base + i < end), T.Then(), T.If(selection.is_candidate(row, base + i)), T.Then():
                    chunk.dead[i] = selection.dropped[row * selection.number + base + i]
                    chunk.put(i, selection.corners_of(row, base + i))
            with T.parallel(int64(0), size * SPLIT) as thread:
                # Threads of a warp read the same selected box, and candidates side by side.
                i, part = keep(tirx.truncmod(thread, size)), keep(tirx.truncdiv(thread, size))
                word, at = local(zero), local(selection.begin[row] + cast(part, "int32"))
                with T.If(chunk.is_alive(i)), T.Then():
                    own = _kept(chunk.corners(i))
                    with T.serial(int64(0), int64(CHUNK // SPLIT)) as step:
                        j = part * (CHUNK // SPLIT) + step
                        with T.If(tirx.all(j < i, chunk.is_alive(j))), T.Then():
                            both = overlaps(chunk.corners(j), own, selection.limit[0])
                            with T.If(both), T.Then():
                                word[0] = word[0] | (one << cast(j, "uint64"))
                    # No candidate is before itself: the last bit says that a box selected earlier overlaps.
                    with T.While(tirx.all(at[0] < count, (word[0] >> last) == zero)):
                        other = selection.selected(row, cast(at[0], "int64"))
                        with T.If(overlaps(other, own, selection.limit[0])), T.Then():
                            word[0] = word[0] | (one << last)
                        at[0] = at[0] + SPLIT
                chunk.before[part, i] = word[0]
            _decide(chunk, row, base, count)


def _decide(chunk: _Chunk, row: Any, base: Any, count: Any) -> None:
    """Select candidates of a chunk, of which it is known what overlaps them before it and within it."""
    zero, one, size = tirx.const(0, "uint64"), tirx.const(1, "uint64"), int64(CHUNK)
    last, selection = tirx.const(CHUNK - 1, "uint64"), chunk.selection
    with T.parallel(int64(0), size) as i:
        word = local(tirx.Select(chunk.is_alive(i), zero, one << last))
        with T.serial(int64(0), int64(SPLIT)) as part:
            word[0] = word[0] | chunk.before[part, i]
        chunk.overlapped[i] = word[0]
    with one_thread():
        word, left = local(zero), local(selection.kept - cast(count, "int64"))
        with T.serial(int64(0), size) as i:
            free = (chunk.overlapped[i] & (word[0] | (one << last))) == zero
            with T.If(tirx.all(free, left[0] > int64(0))), T.Then():
                word[0] = word[0] | (one << cast(i, "uint64"))
                left[0] = left[0] - 1
        selection.winners[row] = word[0]
    with T.parallel(int64(0), size) as i:
        bit, word = local(one << cast(i, "uint64")), local(selection.winners[row])
        with T.If((word[0] & bit[0]) != zero), T.Then():
            earlier = cast(tirx.popcount(word[0] & (bit[0] - one)), "int64")
            selection.put(row, cast(count, "int64") + earlier, selection.box_of(row, base + i), chunk.corners(i))
    with one_thread():
        selection.count[row] = count + cast(tirx.popcount(selection.winners[row]), "int32")
