"""Reshapes of strided boxes: axes that are split and merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from packager.backends.ccompiler.core.boxes import Box, CannotMoveError, Loop, Moved, require_static, sorted_loops
from packager.backends.ccompiler.core.shapes import Extent, Shape, equal, plain, product


def reshaped(moved: Moved, shape: Shape) -> Moved:
    """Return a tensor as if it had another shape. Raises CannotMoveError."""
    if not moved.shape or not shape:
        raise CannotMoveError("a reshape of a number")
    groups = _groups(moved.shape, shape)
    flat = [_flattened(box, moved.shape, [before for before, _ in groups]) for box in moved.boxes]
    for number in reversed(range(len(groups))):
        extents = [shape[axis] for axis in groups[number][1]]
        flat = [part for box in flat for part in _unflattened(box, number, extents)]
    return Moved(shape, tuple(flat))


def _groups(before: Shape, after: Shape) -> list[tuple[range, range]]:
    """Return the shortest groups of axes of two shapes that have as many elements. Raises CannotMoveError."""
    groups: list[tuple[range, range]] = []
    i = j = 0
    while i < len(before) and j < len(after):
        ends = ((m, n) for total in range(2, len(before) + len(after) + 1) for m in range(i + 1, len(before) + 1)
                for n in range(j + 1, len(after) + 1) if m - i + n - j == total)  # fmt: skip
        found = next(((m, n) for m, n in ends if equal(product(before[i:m]), product(after[j:n]))), None)
        if found is None:
            raise CannotMoveError("a reshape of extents that are not known to be equal")
        groups.append((range(i, found[0]), range(j, found[1])))
        i, j = found
    if not groups:
        return [(range(len(before)), range(len(after)))]
    last = groups[-1]
    groups[-1] = (range(last[0].start, len(before)), range(last[1].start, len(after)))  # axes of extent 1
    return groups


def _flattened(box: Box, shape: Shape, groups: Sequence[range]) -> Box:
    """Return a box with one axis for each group of axes."""
    starts, loops = [], []
    for number, group in enumerate(groups):
        strides = {axis: product(shape[axis + 1 : group.stop]) for axis in group}
        starts.append(plain(sum((box.starts[axis] * strides[axis] for axis in group), plain(0))))
        loops += [
            Loop(number, loop.extent, plain(loop.step * strides[loop.axis]), loop.stride)
            for loop in box.loops
            if loop.axis in group
        ]
    return replace(box, starts=tuple(starts), loops=tuple(loops))


def _unflattened(box: Box, group: int, extents: Sequence[Extent]) -> list[Box]:
    """Return a box with axes of ``extents`` in place of one axis. Raises CannotMoveError."""
    pitches = [product(extents[axis + 1 :]) for axis in range(len(extents))]
    more = len(extents) - 1

    def split(starts: Sequence[Extent], made: Sequence[Loop], part: Box) -> Box:
        others = [replace(o, axis=o.axis + more) if o.axis > group else o for o in part.loops if o.axis != group]
        at = (*part.starts[:group], *starts, *part.starts[group + 1 :])
        return replace(part, starts=at, loops=sorted_loops([*others, *made]))

    if not more:
        return [box]
    direct = _direct(box, group, extents, pitches)
    if direct is not None:
        return [split((0,) * len(extents), direct, box)]
    require_static(box.starts[group], *pitches, *(loop.step for loop in box.along(group)))
    boxes, pending = [], [box]
    while pending:
        part = pending.pop()
        starts, rest = [], part.starts[group]
        for pitch in pitches:
            starts.append(rest // pitch)
            rest %= pitch
        made = [_placed(loop, group, pitches) for loop in part.along(group)]
        cut = _cut(part, group, starts, made, extents)
        if cut is None:
            boxes.append(split(starts, made, part))
        pending += cut or []
    return boxes


def _direct(box: Box, group: int, extents: Sequence[Extent], pitches: Sequence[Extent]) -> list[Loop] | None:
    """Return the loops along the axes of a group if a box has all of it, in one loop or in a loop for each axis."""
    along = box.along(group)
    if not equal(box.starts[group], 0):
        return None
    if len(along) == 1 and equal(along[0].step, 1) and equal(along[0].extent, product(extents)):
        stride = along[0].stride
        pairs = enumerate(zip(extents, pitches, strict=True))
        return [Loop(group + n, e, 1, plain(stride * pitch)) for n, (e, pitch) in pairs if not equal(e, 1)]
    made = []
    for loop in along:
        pairs = enumerate(zip(extents, pitches, strict=True))
        place = next((n for n, (e, pitch) in pairs if equal(loop.extent, e) and equal(loop.step, pitch)), None)
        if place is None:
            return None
        made.append(Loop(group + place, loop.extent, 1, loop.stride))
    return made


def _placed(loop: Loop, group: int, pitches: Sequence[int]) -> Loop:
    """Return a loop along the axis that it steps along."""
    axis = next(number for number, pitch in enumerate(pitches) if pitch <= loop.step)
    if loop.step % pitches[axis]:
        raise CannotMoveError("a reshape that divides no steps")
    return replace(loop, axis=group + axis, step=loop.step // pitches[axis])


def _cut(
    box: Box, group: int, starts: Sequence[int], made: Sequence[Loop], extents: Sequence[Extent]
) -> list[Box] | None:
    """Return the parts of a box that goes beyond the end of an axis into the next row; None if it does not."""
    for axis in reversed(range(1, len(extents))):
        pairs = [(old, new) for old, new in zip(box.along(group), made, strict=True) if new.axis == group + axis]
        if not pairs:
            continue
        require_static(extents[axis], *(new.extent for _, new in pairs))
        if starts[axis] + sum((new.extent - 1) * new.step for _, new in pairs) < extents[axis]:
            continue
        old, new = max(pairs, key=lambda pair: pair[1].step)
        inner = sum((other.extent - 1) * other.step for _, other in pairs) - (new.extent - 1) * new.step
        period, rest = divmod(extents[axis], new.step)
        if rest or starts[axis] % new.step + inner >= new.step:
            return [box.without(old, number) for number in range(new.extent)]
        head = min((period - starts[axis] // new.step) % period, new.extent)
        rows, tail = divmod(new.extent - head, period)
        parts = [box.part(old, 0, head)] if head else []
        if rows:
            first = box.part(old, head, period)
            stride = Loop(group, rows, period * old.step, period * old.stride)
            parts.append(replace(first, loops=sorted_loops([*first.loops, stride])) if rows > 1 else first)
        return [*parts, box.part(old, head + rows * period, tail)] if tail else parts
    return None
