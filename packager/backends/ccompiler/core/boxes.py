"""Tensors that data movement makes, as strided boxes: permutations, slices, concatenations and reshapes compose.

A box is a loop nest that copies elements of one source, or fills. Strides and steps are in elements; extents may be
symbolic as long as nothing splits them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from packager.backends.ccompiler.core.shapes import Extent, Shape, equal, plain, product


class CannotMoveError(Exception):
    """A movement that boxes do not express, or of extents that are not known."""


@dataclass(frozen=True)
class Loop:
    """A loop of a box: ``step`` along an ``axis`` of the result, ``stride`` in the source."""

    axis: int
    extent: Extent
    step: Extent
    stride: Extent


@dataclass(frozen=True)
class Box:
    """Elements of ``source`` from ``offset`` on, or ``value`` if it is None, at ``starts`` of the result.

    ``loops`` are in the order of axes, the outer ones of an axis first. None has the extent 1.
    """

    source: int | None
    offset: Extent
    starts: tuple[Extent, ...]
    loops: tuple[Loop, ...]
    value: float = 0.0

    def along(self, axis: int) -> list[Loop]:
        """Return the loops along an axis."""
        return [loop for loop in self.loops if loop.axis == axis]

    def without(self, loop: Loop, number: int) -> Box:
        """Return the part of one iteration of a loop."""
        at = _moved(self.starts, loop.axis, number * loop.step)
        offset = plain(self.offset + number * loop.stride)
        return replace(self, offset=offset, starts=at, loops=tuple(other for other in self.loops if other is not loop))

    def part(self, loop: Loop, first: int, count: int) -> Box:
        """Return the part of some iterations of a loop."""
        begun = self.without(loop, first)
        if count == 1:
            return begun
        shorter = replace(loop, extent=count)
        return replace(begun, loops=tuple(shorter if other is loop else other for other in self.loops))


@dataclass(frozen=True)
class Moved:
    """A tensor of disjoint boxes that cover it."""

    shape: Shape
    boxes: tuple[Box, ...]

    def permuted(self, axes: Sequence[int]) -> Moved:
        """Return it with axes in another order."""

        def permute(box: Box) -> Box:
            loops = [replace(loop, axis=axes.index(loop.axis)) for loop in box.loops]
            return replace(box, starts=tuple(box.starts[axis] for axis in axes), loops=_sorted(loops))

        return Moved(Shape(self.shape[axis] for axis in axes), tuple(map(permute, self.boxes)))

    def sliced(self, axis: int, begin: Extent, count: Extent, step: int = 1) -> Moved:
        """Return ``count`` positions of an axis from ``begin`` on. Raises CannotMoveError."""
        shape = Shape((*self.shape[:axis], count, *self.shape[axis + 1 :]))
        if equal(count, 0):
            return Moved(shape, ())
        boxes = [part for box in self.boxes for part in _sliced(box, axis, begin, count, step, self.shape[axis])]
        return Moved(shape, tuple(boxes))

    def repeated(self, axis: int, times: Extent) -> Moved:
        """Return it with each position of an axis ``times`` in a row."""

        def repeat(box: Box) -> Box:
            loops = [replace(o, step=plain(o.step * times)) if o.axis == axis else o for o in box.loops]
            starts = tuple(plain(s * times) if i == axis else s for i, s in enumerate(box.starts))
            return replace(box, starts=starts, loops=_sorted([*loops, Loop(axis, times, 1, 0)]))

        shape = Shape((*self.shape[:axis], product((self.shape[axis], times)), *self.shape[axis + 1 :]))
        return self if equal(times, 1) else Moved(shape, tuple(map(repeat, self.boxes)))

    def reshaped(self, shape: Shape) -> Moved:
        """Return it as if it had another shape. Raises CannotMoveError."""
        if not self.shape or not shape:
            raise CannotMoveError("a reshape of a number")
        groups = _groups(self.shape, shape)
        flat = [_flattened(box, self.shape, [before for before, _ in groups]) for box in self.boxes]
        for number in reversed(range(len(groups))):
            extents = [shape[axis] for axis in groups[number][1]]
            flat = [part for box in flat for part in _unflattened(box, number, extents)]
        return Moved(shape, tuple(flat))


def whole(source: int, shape: Shape) -> Moved:
    """Return a source as it is."""
    strides = [product(shape[axis + 1 :]) for axis in range(len(shape))]
    loops = [Loop(axis, e, 1, strides[axis]) for axis, e in enumerate(shape) if not equal(e, 1)]
    return Moved(shape, (Box(source, 0, (0,) * len(shape), tuple(loops)),))


def filled(shape: Shape, value: float) -> Moved:
    """Return a tensor of one value."""
    if any(equal(extent, 0) for extent in shape):
        return Moved(shape, ())
    loops = [Loop(axis, e, 1, 0) for axis, e in enumerate(shape) if not equal(e, 1)]
    return Moved(shape, (Box(None, 0, (0,) * len(shape), tuple(loops), value),))


def concatenated(parts: Sequence[Moved], axis: int) -> Moved:
    """Return tensors one after the other along an axis."""
    boxes, start = [], plain(0)
    for part in parts:
        boxes += [replace(box, starts=_moved(box.starts, axis, start)) for box in part.boxes]
        start = plain(start + part.shape[axis])
    first = parts[0].shape
    return Moved(Shape((*first[:axis], start, *first[axis + 1 :])), tuple(boxes))


def _moved(starts: tuple[Extent, ...], axis: int, by: Extent) -> tuple[Extent, ...]:
    return tuple(plain(start + by) if number == axis else start for number, start in enumerate(starts))


def _sorted(loops: Sequence[Loop]) -> tuple[Loop, ...]:
    """Return loops in the order of axes, those of an axis by their steps as far as these are known."""

    def key(loop: Loop) -> tuple[int, int]:
        return loop.axis, -loop.step if isinstance(loop.step, int) else -(1 << 62)

    return tuple(sorted(loops, key=key))


def _require_static(*extents: Extent) -> None:
    if not all(isinstance(extent, int) for extent in extents):
        raise CannotMoveError("extents that are not known")


def _sliced(box: Box, axis: int, begin: Extent, count: Extent, step: int, extent: Extent) -> list[Box]:
    """Return the parts of a box within a slice."""
    along = box.along(axis)
    if len(along) == 1 and equal(box.starts[axis], 0) and equal(along[0].extent, extent):
        (loop,) = along
        made = [replace(loop, extent=count, stride=plain(loop.stride * step))] if not equal(count, 1) else []
        loops = [part for other in box.loops for part in (made if other is loop else [other])]
        return [replace(box, offset=plain(box.offset + begin * loop.stride), loops=tuple(loops))]
    _require_static(begin, count, box.starts[axis], *(value for o in along for value in (o.extent, o.step)))
    if step < 0:
        first = begin + (count - 1) * step
        return [_mirrored(part, axis, count) for part in _sliced(box, axis, first, count, -step, extent)]
    found = _within(box, axis, begin, begin + (count - 1) * step + 1)
    parts = [replace(part, starts=_moved(part.starts, axis, -begin)) for part in found]
    return parts if step == 1 else [thinner for part in parts for thinner in _thinned(part, axis, step)]


def _within(box: Box, axis: int, low: int, high: int) -> list[Box]:
    """Return the parts of a box at positions from ``low`` to before ``high``."""
    start, along = box.starts[axis], box.along(axis)
    span = sum((loop.extent - 1) * loop.step for loop in along)
    if start >= high or start + span < low:
        return []
    if low <= start and start + span < high:
        return [box]
    outer = max(along, key=lambda loop: loop.step)
    inner = span - (outer.extent - 1) * outer.step
    kept = [  # iterations that are inside, wholly or in part
        number
        for number in range(outer.extent)
        if start + number * outer.step < high and start + number * outer.step + inner >= low
    ]
    inside = [n for n in kept if low <= start + n * outer.step and start + n * outer.step + inner < high]
    parts = [part for n in kept if n not in inside for part in _within(box.without(outer, n), axis, low, high)]
    return [box.part(outer, inside[0], len(inside)), *parts] if inside else parts


def _thinned(box: Box, axis: int, step: int) -> list[Box]:
    """Return the parts of a box at positions that ``step`` divides."""
    start, along = box.starts[axis], box.along(axis)
    if len(along) > 1:
        raise CannotMoveError("a slice with steps of an axis of several loops")
    if not along or along[0].step % step == 0:
        loops = [replace(loop, step=loop.step // step) if loop.axis == axis else loop for loop in box.loops]
        starts = tuple(s // step if number == axis else s for number, s in enumerate(box.starts))
        return [replace(box, starts=starts, loops=tuple(loops))] if start % step == 0 else []
    (loop,) = along
    period, rest = divmod(step, loop.step)
    first = next((n for n in range(min(period, loop.extent)) if (start + n * loop.step) % step == 0), None)
    if rest:
        raise CannotMoveError("a slice with other steps than those of its data")
    if first is None:
        return []
    count = -(-(loop.extent - first) // period)
    begun = box.without(loop, first)
    starts = tuple(s // step if number == axis else s for number, s in enumerate(begun.starts))
    thinner = [] if count == 1 else [replace(loop, extent=count, step=1, stride=loop.stride * period)]
    loops = [part for other in box.loops for part in (thinner if other is loop else [other])]
    return [replace(begun, starts=starts, loops=tuple(loops))]


def _mirrored(box: Box, axis: int, extent: int) -> Box:
    """Return a box in an axis of the opposite direction."""
    along = box.along(axis)
    end = box.starts[axis] + sum((loop.extent - 1) * loop.step for loop in along)
    starts = tuple(extent - 1 - end if number == axis else s for number, s in enumerate(box.starts))
    offset = plain(box.offset + sum((loop.extent - 1) * loop.stride for loop in along))
    loops = [replace(loop, stride=plain(-loop.stride)) if loop.axis == axis else loop for loop in box.loops]
    return replace(box, offset=offset, starts=starts, loops=tuple(loops))


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
        return replace(part, starts=at, loops=_sorted([*others, *made]))

    if not more:
        return [box]
    direct = _direct(box, group, extents, pitches)
    if direct is not None:
        return [split((0,) * len(extents), direct, box)]
    _require_static(box.starts[group], *pitches, *(loop.step for loop in box.along(group)))
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
        _require_static(extents[axis], *(new.extent for _, new in pairs))
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
            parts.append(replace(first, loops=_sorted([*first.loops, stride])) if rows > 1 else first)
        return [*parts, box.part(old, head + rows * period, tail)] if tail else parts
    return None
