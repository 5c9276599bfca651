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
            return replace(box, starts=tuple(box.starts[axis] for axis in axes), loops=sorted_loops(loops))

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
            return replace(box, starts=starts, loops=sorted_loops([*loops, Loop(axis, times, 1, 0)]))

        shape = Shape((*self.shape[:axis], product((self.shape[axis], times)), *self.shape[axis + 1 :]))
        return self if equal(times, 1) else Moved(shape, tuple(map(repeat, self.boxes)))


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


def sorted_loops(loops: Sequence[Loop]) -> tuple[Loop, ...]:
    """Return loops in the order of axes, those of an axis by their steps as far as these are known."""

    def key(loop: Loop) -> tuple[int, int]:
        return loop.axis, -loop.step if isinstance(loop.step, int) else -(1 << 62)

    return tuple(sorted(loops, key=key))


def require_static(*extents: Extent) -> None:
    """Raise CannotMoveError if an extent is symbolic."""
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
    require_static(begin, count, box.starts[axis], *(value for o in along for value in (o.extent, o.step)))
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
