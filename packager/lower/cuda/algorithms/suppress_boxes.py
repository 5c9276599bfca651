"""Lower suppression of overlapping boxes for GPUs: sort by score, then select chunk by chunk, a class in each block.

The candidates of a chunk are compared with the boxes selected so far, and with each other: a word for each has the
bits of those before it that overlap it, so that one thread decides a chunk by a pass over words. Many candidates are
taken in phases: before each, all threads of the GPU compare its candidates with what earlier phases have selected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.lower.cuda.algorithms.merge_sort import ByKey, Sorted, merge_sort
from packager.lower.cuda.algorithms.nests import (
    Nests,
    cast,
    ceil_div,
    emit,
    int64,
    keep,
    local,
    one_thread,
    shared,
)
from packager.lower.cuda.algorithms.prefix_sum import prefix_sums
from packager.lower.keys import key_of, key_type, least_key
from packager.lower.legalize.selection.non_max_suppression import Corners, corners, overlaps

CHUNK = 64  # bits of a word
# Threads for a candidate within its chunk.
SPLIT = 16


@dataclass(frozen=True)
class _Phases:
    """Candidates of a phase, the most phases, and the threads for a candidate before one."""

    length: int
    most: int
    split: int


# Blocks of few rows leave most of a GPU idle: they have short phases, before which all of it compares.
FEW_ROWS = 8
OF_FEW, OF_MANY = _Phases(256, 32, 256), _Phases(2048, 16, 32)


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
        winners=nests.workspace([rows], "uint64"),
    )
    form = OF_FEW if _bound(rows) <= FEW_ROWS else OF_MANY
    phases = max(1, min(form.most, -(-most // form.length)))
    with nests.grid("begin", rows, number) as (row, place):
        selection.dropped[row * number + place] = tirx.const(0, "uint8")
        with T.If(place == int64(0)), T.Then():
            selection.count[row] = tirx.const(0, "int32")
            selection.begin[row] = tirx.const(0, "int32")
    length = ceil_div(number, phases)
    for phase in range(phases):
        first = length * phase
        if phase:
            _drop(nests, rows, selection, form.split, first, tirx.max(tirx.min(length, number - first), int64(0)))
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
    phase, ``dropped`` tells which candidates overlap a box of an earlier phase; ``winners`` has a bit for each
    candidate of the row's current chunk that is selected. All buffers are flat.
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
    """The candidates that a block decides on together, in shared memory.

    ``dead`` tells whether one is none, or was dropped; ``overlapped`` by which earlier candidates of the chunk it is
    overlapped, and by its last bit that it is dead, or overlapped by a box selected earlier; ``before`` has the parts
    of that which each thread finds, [part, candidate].
    """

    boxes: Any
    dead: Any
    before: Any
    overlapped: Any

    @classmethod
    def of(cls, dtype: str) -> _Chunk:
        """Return the buffers of a block."""
        words = (shared([size], "uint64") for size in (CHUNK * SPLIT, CHUNK))
        return cls(shared([CHUNK * 4], dtype), shared([CHUNK], "uint8"), *words)

    def is_alive(self, i: Any) -> Any:
        return keep(self.dead[i]) == tirx.const(0, "uint8")

    def corners(self, i: Any) -> Corners:
        a, b, c, d = (keep(self.boxes[i * 4 + k]) for k in range(4))
        return a, b, c, d

    def put(self, i: Any, own: Corners) -> None:
        for k, value in enumerate(own):
            self.boxes[i * 4 + k] = value


def _kept(box: Corners) -> Corners:
    a, b, c, d = map(keep, box)
    return a, b, c, d


def _drop(nests: Nests, rows: Any, selection: _Selection, split: int, first: Any, number: Any) -> None:
    """Drop candidates that overlap a box of an earlier phase. Threads that find one write the same."""
    with nests.grid("drop", rows, split, number) as (row, part, step):
        place = first + step
        goes_on = tirx.all(cast(selection.count[row], "int64") < selection.kept, selection.is_candidate(row, place))
        with T.If(goes_on), T.Then():
            own = _kept(selection.corners_of(row, place))
            found, at = local(tirx.const(0, "int32")), local(cast(part, "int32"))
            with T.While(tirx.all(found[0] == 0, at[0] < selection.count[row])):
                other = selection.selected(row, cast(at[0], "int64"))
                with T.If(overlaps(other, own, selection.limit[0])), T.Then():
                    found[0] = tirx.const(1, "int32")
                at[0] = at[0] + split
            with T.If(found[0] != 0), T.Then():
                selection.dropped[row * selection.number + place] = tirx.const(1, "uint8")


def _select(nests: Nests, rows: Any, selection: _Selection, first: Any, end: Any) -> None:
    """Select among candidates ``first`` to ``end`` of each row, whose overlaps with earlier phases are known."""
    zero, one, size = tirx.const(0, "uint64"), tirx.const(1, "uint64"), int64(CHUNK)
    last = tirx.const(CHUNK - 1, "uint64")
    with nests.rows("select", rows) as row:
        chunk = _Chunk.of(str(selection.boxes.dtype))
        with T.serial(int64(0), ceil_div(end - first, CHUNK)) as number:
            base = first + number * CHUNK
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
                    own, is_alive = chunk.corners(i), chunk.is_alive(i)
                    # Shared memory is read on no condition.
                    with T.serial(int64(0), int64(CHUNK // SPLIT)) as step:
                        j = keep(part * (CHUNK // SPLIT) + step)
                        both = overlaps(chunk.corners(j), own, selection.limit[0])
                        is_hit = tirx.all(j < i, is_alive, chunk.is_alive(j), both)
                        word[0] = word[0] | tirx.Select(is_hit, one << cast(j, "uint64"), zero)
                    # No candidate is before itself: the last bit says that a box selected earlier overlaps.
                    with T.While(tirx.all(is_alive, at[0] < count, (word[0] >> last) == zero)):
                        other = selection.selected(row, cast(at[0], "int64"))
                        with T.If(overlaps(other, own, selection.limit[0])), T.Then():
                            word[0] = word[0] | (one << last)
                        at[0] = at[0] + SPLIT
                    chunk.before[thread] = word[0]
                _decide(chunk, selection, row, base, count)
        with one_thread():
            selection.begin[row] = selection.count[row]


def _decide(chunk: _Chunk, selection: _Selection, row: Any, base: Any, count: Any) -> None:
    """Select candidates of a chunk, of which it is known what overlaps them before it and within it."""
    zero, one, size = tirx.const(0, "uint64"), tirx.const(1, "uint64"), int64(CHUNK)
    last = tirx.const(CHUNK - 1, "uint64")
    with T.parallel(int64(0), size) as i:
        word = local(tirx.Select(chunk.is_alive(i), zero, one << last))
        with T.serial(int64(0), int64(SPLIT)) as part:
            word[0] = word[0] | chunk.before[part * CHUNK + i]
        chunk.overlapped[i] = word[0]
    # Each candidate's thread decides on all, so that none waits for another one.
    with T.parallel(int64(0), size) as i:
        word, left, own = local(zero), local(selection.kept - cast(count, "int64")), chunk.corners(i)
        with T.serial(int64(0), size) as other:
            free = (chunk.overlapped[other] & (word[0] | (one << last))) == zero
            with T.If(tirx.all(free, left[0] > int64(0))), T.Then():
                word[0] = word[0] | (one << cast(other, "uint64"))
                left[0] = left[0] - 1
        bit = local(one << cast(i, "uint64"))
        with T.If((word[0] & bit[0]) != zero), T.Then():
            earlier = cast(tirx.popcount(word[0] & (bit[0] - one)), "int64")
            selection.put(row, cast(count, "int64") + earlier, selection.box_of(row, base + i), own)
        with T.If(i == int64(0)), T.Then():
            selection.winners[row] = word[0]
    with one_thread():
        selection.count[row] = count + cast(tirx.popcount(selection.winners[row]), "int32")
