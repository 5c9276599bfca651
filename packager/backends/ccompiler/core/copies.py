"""Chains of data movement as one copy each: pieces, which are loop nests with a stride in the source and in the result.

Consecutive loops merge where they are one in both, and pieces that differ by equal distances become a loop over them:
the four slices that patch merging concatenates are one piece.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise

from packager.backends.ccompiler.core.box_reshape import reshaped
from packager.backends.ccompiler.core.boxes import Box, CannotMoveError, Moved, whole
from packager.backends.ccompiler.core.moves import MOST_BOXES, Broadcast, Concat, Move, Permute
from packager.backends.ccompiler.core.operations import MOVES, Operand, Operation, Tensor, Use
from packager.backends.ccompiler.core.shapes import (
    Extent,
    Shape,
    equal,
    interleaves,
    makes_channels_last,
    plain,
    product,
)

# Elements between two that are written, which share no lines of the cache with their neighbors for long.
SCATTERED = 64
# The most boxes between operators: many become few pieces in the end.
MOST_BETWEEN = 1024


@dataclass(frozen=True)
class Loop:
    """A loop of a piece, with its strides in the source and in the result, in elements."""

    extent: Extent
    source: Extent
    target: Extent


@dataclass(frozen=True)
class Piece:
    """A loop nest that copies from ``offset`` of a source to ``start`` of the result, or writes ``value``."""

    source: int | None
    offset: Extent
    start: Extent
    loops: tuple[Loop, ...]
    value: float


@dataclass(frozen=True)
class Copy:
    """The attributes of the operation ``copy``: pieces of a result, which cover it and do not overlap."""

    pieces: tuple[Piece, ...]


def compose_moves(
    operations: Sequence[Operation], results: Sequence[Tensor], alone: Set[int] = frozenset()
) -> list[Operation]:
    """Replace movements, chains of them as one, by ``copy`` where there is no loop nest with an epilogue for them.

    What makes the tensors ``alone`` is a copy of its own.
    """
    readers: dict[int, list[Operation]] = {}
    for operation in operations:
        for use in operation.uses:
            readers.setdefault(use.tensor.index, []).append(operation)
    kept = {tensor.index for tensor in results} | alone
    moving: set[int] = set()
    for operation in reversed(operations):
        followed = readers.get(operation.result.index, [])
        if operation.name in MOVES or (_broadcasts(operation) and all(r.result.index in moving for r in followed)):
            moving.add(operation.result.index)
    moved: dict[int, tuple[Moved, tuple[Use, ...]]] = {}  # what movements before would read, by their results
    made: list[Operation] = []
    for operation in operations:
        if operation.result.index not in moving:
            made.append(operation)
            continue
        move: Move = Broadcast(operation.result.shape) if _broadcasts(operation) else operation.attributes
        followed = readers.get(operation.result.index, [])
        passes = operation.result.index not in kept and followed and all(r.result.index in moving for r in followed)
        chained = [use for use in operation.uses if use.tensor.index in moved]
        if not passes and not chained and _has_epilogue(operation):
            made.append(operation)
            continue
        composed = _compose(move, operation.uses, moved)
        if composed is None:  # what is before becomes a tensor
            for use in {use.tensor.index: use for use in chained}.values():
                before = moved.pop(use.tensor.index)
                made.append(_copy(use.tensor, *before))
            if _has_epilogue(operation):
                made.append(operation)
                continue
            composed = _compose(move, operation.uses, moved)
            assert composed is not None  # patterns have asked
        if passes:
            moved[operation.result.index] = composed
        else:
            made.append(_copy(operation.result, *composed))
    return made


def _broadcasts(operation: Operation) -> bool:
    """Whether it is a broadcast of a tensor, which is a movement where no loop reads its operand in place of it."""
    return operation.name == "broadcast_to" and len(operation.uses) == 1


def _has_epilogue(operation: Operation) -> bool:
    """Whether a movement alone has a loop nest of its own, with an epilogue."""
    move, shape = operation.attributes, operation.uses[0].shape
    if isinstance(move, Permute):
        return interleaves(shape, move.axes) or makes_channels_last(shape, move.axes)
    return isinstance(move, Concat)


def _compose(
    move: Move, uses: Sequence[Use], moved: dict[int, tuple[Moved, tuple[Use, ...]]]
) -> tuple[Moved, tuple[Use, ...]] | None:
    """Return the result of a movement as boxes of what those before it read; None if there is no way."""
    sources: list[Use] = []
    parts = []
    try:
        for use in uses:
            before = moved.get(use.tensor.index)
            if before is None:
                parts.append(whole(_place(sources, Use(use.tensor, use.tensor.shape)), use.shape))
                continue
            part = _renumbered(before[0], [_place(sources, source) for source in before[1]])
            parts.append(part if part.shape == use.shape else reshaped(part, use.shape))
        result = move.apply(parts)
    except CannotMoveError:
        return None
    if len(result.boxes) > MOST_BETWEEN:
        return None
    pieces = pieces_of(result)
    chained = any(use.tensor.index in moved for use in uses)
    scattered = chained and isinstance(move, Permute) and len(pieces) > 1 and any(map(_is_scattered, pieces))
    return None if scattered or len(pieces) > MOST_BOXES else (result, tuple(sources))


def _is_scattered(piece: Piece) -> bool:
    """Whether a copy reads runs and writes single elements far apart: two copies, of runs and of tiles, take less."""
    runs = [loop.target for loop in piece.loops if equal(loop.source, 1) and not equal(loop.extent, 1)]
    far = any(isinstance(target, int) and target >= SCATTERED for target in runs)
    return far and not any(equal(loop.target, 1) for loop in piece.loops)


def _place(sources: list[Use], source: Use) -> int:
    """Return the index of a source, which is added if it is not among them."""
    for number, other in enumerate(sources):
        if other.tensor.index == source.tensor.index:
            return number
    sources.append(source)
    return len(sources) - 1


def _renumbered(moved: Moved, places: Sequence[int]) -> Moved:
    return replace(
        moved,
        boxes=tuple(box if box.source is None else replace(box, source=places[box.source]) for box in moved.boxes),
    )


def _copy(result: Tensor, moved: Moved, sources: tuple[Operand, ...]) -> Operation:
    return Operation("copy", sources, result, Copy(pieces_of(moved)))


def pieces_of(moved: Moved) -> tuple[Piece, ...]:
    """Return the pieces of a tensor that movements make, as few as can be."""
    pieces = [_piece(box, moved.shape) for box in moved.boxes]
    while True:
        joined = _joined(pieces)
        if len(joined) == len(pieces):
            return tuple(replace(piece, loops=_merged(piece.loops)) for piece in pieces)
        pieces = joined


def _piece(box: Box, shape: Shape) -> Piece:
    pitches = [product(shape[axis + 1 :]) for axis in range(len(shape))]
    loops = [Loop(loop.extent, loop.stride, plain(loop.step * pitches[loop.axis])) for loop in box.loops]
    start = plain(sum((at * pitch for at, pitch in zip(box.starts, pitches, strict=True)), plain(0)))
    return Piece(box.source, box.offset, start, _merged(loops), box.value)


def _merged(loops: Sequence[Loop]) -> tuple[Loop, ...]:
    """Return loops with those as one that are one in the source and in the result."""
    made: list[Loop] = []
    for loop in loops:
        outer = made[-1] if made else None
        if outer is not None and all(
            equal(a, product((loop.extent, b))) for a, b in ((outer.source, loop.source), (outer.target, loop.target))
        ):
            made[-1] = replace(loop, extent=product((outer.extent, loop.extent)))
        else:
            made.append(loop)
    return tuple(made)


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Return pieces with runs of equal ones at equal distances as one."""
    made: list[Piece] = []
    run: list[Piece] = []

    def distance(first: Piece, second: Piece) -> tuple[int, int] | None:
        same = (first.source, first.loops, first.value) == (second.source, second.loops, second.value)
        numbers = (first.offset, second.offset, first.start, second.start)
        if not same or not all(isinstance(number, int) for number in numbers):
            return None
        return second.offset - first.offset, second.start - first.start

    def finish() -> None:
        by = distance(*run[:2]) if len(run) > 1 else None
        if by is None:
            made.extend(run)
            return
        loops = _outermost_first([Loop(len(run), *by), *run[0].loops])
        made.append(replace(run[0], loops=loops))

    for piece in pieces:
        grown = [*run, piece]
        steps = {distance(a, b) for a, b in pairwise(grown)}
        if run and (len(steps) > 1 or None in steps or min(step[1] for step in steps if step) <= 0):
            finish()
            grown = [piece]
        run = grown
    finish()
    return made


def _outermost_first(loops: Sequence[Loop]) -> tuple[Loop, ...]:
    """Return loops by their distance in the result, as far as it is known: the first one is put where it belongs."""
    first, *others = loops
    place = next(
        (n for n, o in enumerate(others) if isinstance(o.target, int) and o.target < first.target), len(others)
    )
    return (*others[:place], first, *others[place:])
