"""Loops of a plan, and the steps that they become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from packager.ir.call_plan import Copy, LoopBegin, LoopEnd
from packager.ir.shapes import Extent
from packager.plan.calls import PlannedTensor, operand_of, root

LoopCopy = tuple[PlannedTensor, PlannedTensor, Extent]  # source, target, bytes


@dataclass
class PlannedLoop:
    """A loop: its body are the calls from index ``begin`` to ``end``; extents are texts over dims.

    ``trip`` is such a text where the host knows it. ``going`` and ``again`` are None if they are always 1.
    """

    number: int
    begin: int
    trip: PlannedTensor | Extent
    going: PlannedTensor | None
    index: PlannedTensor
    scalars: list[PlannedTensor]
    first: list[Extent]
    initial: list[PlannedTensor]
    states: dict[int, PlannedTensor] = field(default_factory=dict)
    copies_in: list[LoopCopy] = field(default_factory=list)
    end: int = -1
    again: PlannedTensor | None = None
    copies: list[LoopCopy] = field(default_factory=list)
    scanned: list[LoopCopy] = field(default_factory=list)
    following: list[tuple[Extent, Extent]] = field(default_factory=list)
    count: PlannedTensor | None = None
    finals: list[PlannedTensor] = field(default_factory=list)

    def used(self) -> list[PlannedTensor]:
        """Return the tensors that it reads itself."""
        scalars = [t for t in (self.trip, self.going, self.again) if isinstance(t, PlannedTensor)]
        return [*scalars, *self.initial, *(source for source, *_ in (*self.copies, *self.scanned))]


@dataclass(frozen=True)
class PlannedMark:
    """The begin or the end of a loop, before the call with index ``before``."""

    loop: PlannedLoop
    ends: bool
    before: int


def begin_step(loop: PlannedLoop) -> LoopBegin:
    """Return the step that begins a loop, after all tensors are allocated."""
    stored = loop.index.first is not None and loop.index.moved is None
    return LoopBegin(
        number=loop.number,
        trip=operand_of(loop.trip) if isinstance(loop.trip, PlannedTensor) else loop.trip,
        going=None if loop.going is None else operand_of(loop.going),
        index=operand_of(loop.index) if stored else None,
        extents=tuple((operand_of(s), e) for s, e in zip(loop.scalars, loop.first, strict=True)),
        states=_copies(loop.copies_in),
    )


def end_step(loop: PlannedLoop, extents: Sequence[str]) -> LoopEnd:
    """Return the step that ends a loop; ``extents`` are the names of the entry's run-time extents."""
    assert loop.count is not None
    return LoopEnd(
        number=loop.number,
        again=None if loop.again is None else operand_of(loop.again),
        extents=tuple(
            (operand_of(scalar), extents.index(str(old)), new)
            for scalar, (old, new) in zip(loop.scalars, loop.following, strict=True)
        ),
        states=_copies(loop.copies),
        scanned=_copies(loop.scanned),
        count=None if root(loop.count).operand is None else operand_of(loop.count),
        finals=tuple(
            (operand_of(final), operand_of(scalar)) for final, scalar in zip(loop.finals, loop.scalars, strict=True)
        ),
    )


def _copies(copies: Sequence[LoopCopy]) -> tuple[Copy, ...]:
    return tuple(Copy(operand_of(source), operand_of(target), size) for source, target, size in copies)
