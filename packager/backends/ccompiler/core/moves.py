"""Operators that move elements, and what they do with strided boxes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax, tirx

from packager.backends.base import Found
from packager.backends.ccompiler.core.boxes import CannotMoveError, Moved, concatenated, filled, whole
from packager.backends.ccompiler.core.expressions import CTYPES
from packager.backends.ccompiler.core.shapes import Extent, Shape, equal
from packager.graph.dataflow import Dataflow, operator_of, shape_of

# Operators that leave every element where it is.
VIEWS = frozenset({"reshape", "expand_dims", "squeeze"})
# The most boxes of a function: each is a loop nest.
MOST_BOXES = 48


@dataclass(frozen=True)
class Permute:
    """A permutation of axes."""

    axes: tuple[int, ...]

    def apply(self, parts: Sequence[Moved]) -> Moved:
        return parts[0].permuted(self.axes)


@dataclass(frozen=True)
class Slice:
    """Slices: an axis, the first position, how many, and the step, of each."""

    ranges: tuple[tuple[int, int, Extent, int], ...]

    def apply(self, parts: Sequence[Moved]) -> Moved:
        return functools.reduce(lambda moved, one: moved.sliced(*one), self.ranges, parts[0])


@dataclass(frozen=True)
class Concat:
    """A concatenation along an axis."""

    axis: int

    def apply(self, parts: Sequence[Moved]) -> Moved:
        return concatenated(parts, self.axis)


@dataclass(frozen=True)
class Repeat:
    """Each position of an axis so many times in a row, or with ``tiles`` the whole axis."""

    counts: tuple[int, ...]
    tiles: bool

    def apply(self, parts: Sequence[Moved]) -> Moved:
        (moved,) = parts
        for axis, count in enumerate(self.counts):
            moved = concatenated([moved] * count, axis) if self.tiles else moved.repeated(axis, count)
        return moved


@dataclass(frozen=True)
class Pad:
    """Padding before and after each axis by ``value``, the edge, what is mirrored at it, or the other side."""

    widths: tuple[tuple[int, int], ...]
    mode: str
    value: float

    def apply(self, parts: Sequence[Moved]) -> Moved:
        (moved,) = parts
        for axis, (before, after) in enumerate(self.widths):
            sides = [self._side(moved, axis, before, 0), moved, self._side(moved, axis, after, 1)]
            moved = concatenated([side for side in sides if side is not None], axis)
        return moved

    def _side(self, moved: Moved, axis: int, width: int, end: int) -> Moved | None:
        extent = moved.shape[axis]
        if not width:
            return None
        if self.mode == "constant":
            return filled(Shape((*moved.shape[:axis], width, *moved.shape[axis + 1 :])), self.value)
        if self.mode == "replicate":
            return moved.sliced(axis, extent - 1 if end else 0, 1).repeated(axis, width)
        if not isinstance(extent, int) or width >= extent:
            raise CannotMoveError("padding by more than there is")
        if self.mode == "circular":
            return moved.sliced(axis, 0 if end else extent - width, width)
        return moved.sliced(axis, extent - 2 if end else width, width, -1)


@dataclass(frozen=True)
class Broadcast:
    """Axes of extent 1, or that are missing, repeated."""

    shape: Shape

    def apply(self, parts: Sequence[Moved]) -> Moved:
        (moved,) = parts
        missing = len(self.shape) - len(moved.shape)
        if missing:
            moved = _behind(moved, missing)
        for axis, extent in enumerate(self.shape):
            if not equal(extent, moved.shape[axis]):
                moved = moved.repeated(axis, extent)
        return moved


def _behind(moved: Moved, count: int) -> Moved:
    """Return a tensor behind so many axes of extent 1; of a number, too, which is no reshape."""
    boxes = (
        replace(
            box,
            starts=(*[0] * count, *box.starts),
            loops=tuple(replace(loop, axis=loop.axis + count) for loop in box.loops),
        )
        for box in moved.boxes
    )
    return Moved(Shape((*[1] * count, *moved.shape)), tuple(boxes))


Move = Permute | Slice | Concat | Repeat | Pad | Broadcast
OPERATORS = ("permute_dims", "strided_slice", "concat", "nn.pad", "flip", "tile", "repeat")


def read_move(call: Any) -> Move | None:
    """Return what a call moves, or None if it is none of these operators, or by numbers that are not known."""
    name, tensors = operator_of(call), tensors_of(call)
    shapes = [shape_of(tensor) for tensor in (*tensors, call)] if name in OPERATORS else [()]
    if not all(shapes):
        return None
    shape, attrs = shapes[0] or (), call.attrs
    match name:
        case "permute_dims":
            axes = range(len(shape))[::-1] if attrs.axes is None else attrs.axes
            return Permute(tuple(int(axis) % len(shape) for axis in axes))
        case "concat":
            return None if attrs.axis is None else Concat(int(attrs.axis) % len(shape))
        case "strided_slice":
            return _read_slice(call, Shape(shape), Shape(call.ty.shape.values))
        case "flip":
            axis = int(attrs.axis) % len(shape)
            extent = shape[axis]
            return Slice(((axis, extent - 1, extent, -1),)) if isinstance(extent, int) else None
        case "tile" if len(attrs.repeats) == len(shape):
            return Repeat(tuple(map(int, attrs.repeats)), tiles=True)
        case "repeat" if attrs.axis is not None:
            counts = [1] * len(shape)
            counts[int(attrs.axis)] = int(attrs.repeats)
            return Repeat(tuple(counts), tiles=False)
        case "nn.pad" if str(attrs.pad_mode) in ("constant", "replicate", "reflect", "circular"):
            widths = [int(width) for width in attrs.pad_width]
            pairs = tuple(zip(widths[::2], widths[1::2], strict=True))
            return Pad(pairs, str(attrs.pad_mode), float(attrs.pad_value)) if min(widths, default=0) >= 0 else None
    return None


def tensors_of(call: Any) -> list[Any]:
    """Return the tensor operands of a call."""
    first = call.args[0] if isinstance(call, relax.Call) and len(call.args) else None
    return list(first.fields) if isinstance(first, relax.Tuple) else [first]


def _read_slice(call: Any, shape: Shape, result: Shape) -> Slice | None:
    lists = [list(argument.fields) for argument in call.args[1:] if isinstance(argument, relax.Tuple)]
    if len(lists) != len(call.args) - 1 or not all(isinstance(n, tirx.IntImm) for n in itertools.chain(*lists)):
        return None  # a partition has no symbolic bounds: its dims are those of its arguments
    steps = lists[3] if len(lists) > 3 else [1] * len(lists[0])
    ranges = []
    for position, (axis, begin) in enumerate(zip(map(int, lists[0]), map(int, lists[1]), strict=True)):
        step, extent, end = int(steps[position]), shape[axis], lists[2][position]
        if isinstance(extent, int):
            found = range(*slice(begin, int(end), step).indices(extent))
            if not equal(len(found), result[axis]):
                return None
            ranges.append((axis % len(shape), found.start, len(found), step))
        elif begin < 0 or step < 1:
            return None
        else:
            ranges.append((axis % len(shape), begin, result[axis], step))
    return Slice(tuple(ranges))


def moves_alone(call: Any) -> bool:
    """Whether a call of one of the operators can be a function of its own: a copy that changes something."""
    move, tensors = read_move(call), tensors_of(call)
    types = {str(tensor.ty.dtype) for tensor in (*tensors, call)} if move is not None else set()
    if move is None or len(types) != 1 or not types <= CTYPES.keys():
        return False
    if not all(isinstance(tensor, relax.Var) for tensor in tensors):
        return False
    try:
        moved = move.apply([whole(number, Shape(shape_of(t) or ())) for number, t in enumerate(tensors)])
    except CannotMoveError:
        return False
    few = isinstance(move, Concat) or len(moved.boxes) <= MOST_BOXES  # a concatenation has a loop nest of its own too
    return few and moved.shape == Shape(shape_of(call) or ())


def find_move(flow: Dataflow, variable: Any) -> Iterator[Found]:
    """Yield a movement with the views that nothing else reads, then alone."""
    call = flow.value(variable)
    if not moves_alone(call):
        return
    views = [
        operand
        for operand in dict.fromkeys(tensors_of(call))
        if operator_of(flow.value(operand)) in VIEWS
        and isinstance(flow.value(operand).args[0], relax.Var)
        and not flow.is_result(operand)
        and len(flow.readers(operand)) == 1
    ]
    if views:
        yield Found((*views, variable))
    yield Found((variable,))
