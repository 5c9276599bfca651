"""Plans the control flow of a run: choices between memories, and loops over states that keep their buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import relax, tirx

from packager.bundle.dtypes import INSIDE
from packager.graph import symbolic
from packager.graph.control_flow import CHOOSE, LOOP_BEGIN, LOOP_END, LOOP_RESULT, LOOP_STATE, operands_of
from packager.graph.dataflow import called_function
from packager.ir.call_plan import Copy, LoopBegin, LoopEnd
from packager.ir.shapes import Extent
from packager.plan.calls import Alias, Chosen, PlannedCall, PlannedTensor, operand_of, owners

_Copy = tuple[PlannedTensor, PlannedTensor, Extent]  # source, target, bytes


@dataclass
class PlannedLoop:
    """A loop: its body are the calls from index ``begin`` to ``end``; extents are texts over dims."""

    number: int
    begin: int
    trip: PlannedTensor
    going: PlannedTensor
    index: PlannedTensor
    scalars: list[PlannedTensor]
    first: list[Extent]
    initial: list[PlannedTensor]
    states: dict[int, PlannedTensor] = field(default_factory=dict)
    copies_in: list[_Copy] = field(default_factory=list)
    end: int = -1
    again: PlannedTensor | None = None
    copies: list[_Copy] = field(default_factory=list)
    scanned: list[_Copy] = field(default_factory=list)
    following: list[tuple[Extent, Extent]] = field(default_factory=list)
    count: PlannedTensor | None = None
    finals: list[PlannedTensor] = field(default_factory=list)


@dataclass(frozen=True)
class PlannedMark:
    """The begin or the end of a loop, before the call with index ``before``."""

    loop: PlannedLoop
    ends: bool
    before: int


class ControlFlow:
    """Plans the control flow of one entry.

    ``value_of`` returns the tensor of an expression, ``make`` a new one for a type, ``extent_of`` the text of an
    extent, ``read`` prepares a tensor to be read; ``calls`` are those planned so far.
    """

    def __init__(
        self,
        value_of: Callable[[Any], Any],
        make: Callable[[Any], PlannedTensor],
        extent_of: Callable[[Any], Extent],
        read: Callable[[PlannedTensor], PlannedTensor],
        calls: Sequence[PlannedCall],
    ) -> None:
        self.value_of, self.make, self.extent_of, self.read, self.calls = value_of, make, extent_of, read, calls
        self.loops: list[PlannedLoop] = []

    def evaluate(self, call: relax.Call, ty: Any) -> tuple[Any, PlannedMark | None]:
        """Return the value of a call of ``graph.control_flow``, and the mark that it makes."""
        tensors, extents = operands_of(call)
        values = [self.value_of(tensor) for tensor in tensors]
        match called_function(call):
            case str(name) if name == CHOOSE:
                return self._choose(values, extents[0], ty), None
            case str(name) if name == LOOP_BEGIN:
                return self._begin(values, extents, ty)
            case str(name) if name == LOOP_STATE:
                return self._state(self._loop(values[0]), int(extents[0]), ty), None
            case str(name) if name == LOOP_END:
                return self._end(values, extents, ty)
        assert called_function(call) == LOOP_RESULT
        return Alias(values[1], _view(ty)), None

    def _loop(self, index: PlannedTensor) -> PlannedLoop:
        return next(loop for loop in self.loops if loop.index is index)

    def _choose(self, values: list[PlannedTensor], taken: Any, ty: Any) -> PlannedTensor:
        then, otherwise = values
        if _is_empty(then):
            then = otherwise  # it has no elements, and maybe no memory
        elif _is_empty(otherwise):
            otherwise = then
        self.read(then)
        self.read(otherwise)
        return Chosen(_view(ty), str(self.extent_of(taken)), then, otherwise)

    def _begin(self, values: list[PlannedTensor], extents: list[Any], ty: Any) -> tuple[Any, PlannedMark]:
        now = len(self.calls)
        trip, going, *initial = values
        made = [self.make(field) for field in (ty.fields if isinstance(ty, relax.TupleType) else [ty])]
        for tensor in (*values, *made):
            self.read(tensor).touch(now)
        first = [self.extent_of(extent) for extent in extents]
        loop = PlannedLoop(len(self.loops), now, trip, going, made[0], made[1:], first, initial)
        self.loops.append(loop)
        return tuple(made) if len(made) > 1 else made[0], PlannedMark(loop, False, now)

    def _state(self, loop: PlannedLoop, number: int, ty: Any) -> PlannedTensor:
        state = self.make(ty)
        state.touch(loop.begin)
        loop.states[number] = state
        if not _is_empty(loop.initial[number]):  # without elements it may have no memory
            loop.copies_in.append(self._copy(loop.initial[number], state))
        return state

    def _copy(self, source: PlannedTensor, target: PlannedTensor) -> _Copy:
        size = INSIDE[source.dtype].itemsize
        return source, target, symbolic.product((*(self.extent_of(extent) for extent in source.shape), size))

    def _next(self, loop: PlannedLoop, nexts: Sequence[PlannedTensor]) -> list[PlannedTensor]:
        """Plan the copies of the next values into the states; return the temporary memory that this takes.

        A next value that is another state is copied before any state is overwritten.
        """
        memory = {id(owner) for state in loop.states.values() for owner, _ in owners(state)}
        first, then, made = [], [], []
        for number, state in loop.states.items():
            value = nexts[number]
            holders = [owner for owner, _ in owners(value)]
            if holders == [owner for owner, _ in owners(state)]:
                continue
            if any(id(owner) in memory for owner in holders):
                made.append(self.make(relax.TensorType([*state.shape], state.dtype)))
                first.append(self._copy(value, made[-1]))
                then.append((made[-1], state, first[-1][2]))
            else:
                then.append(self._copy(value, state))
        loop.copies = first + then
        return made

    def _end(self, values: list[PlannedTensor], extents: list[Any], ty: Any) -> tuple[Any, PlannedMark]:
        now = len(self.calls)
        index, again, *others = values
        loop = self._loop(index)
        results = [self.make(field) for field in (ty.fields if isinstance(ty, relax.TupleType) else [ty])]
        made = list(results)
        count = len(loop.initial)
        loop.end, loop.again = now, again
        made += self._next(loop, others[:count])
        loop.count, loop.finals = results[0], results[1 : 1 + len(loop.scalars)]
        rooms = results[1 + len(loop.scalars) :]
        loop.scanned = [self._copy(value, room) for value, room in zip(others[count:], rooms, strict=True)]
        texts = [self.extent_of(extent) for extent in extents]
        loop.following = list(zip(texts[::2], texts[1::2], strict=True))
        for room in rooms:
            room.touch(loop.begin)
        for tensor in (*values, *made, *loop.scalars, *loop.states.values()):
            self.read(tensor).touch(now)
        for call in self.calls[loop.begin :]:  # what comes from outside is read in each iteration
            for tensor in call.operands:
                for owner, _ in owners(tensor):
                    if owner.first is not None and owner.first < loop.begin:
                        owner.touch(now)
        return tuple(results) if len(results) > 1 else results[0], PlannedMark(loop, True, now)

    def used(self) -> list[PlannedTensor]:
        """Return the tensors that loops read."""
        found: list[PlannedTensor] = []
        for loop in self.loops:
            found += [loop.trip, loop.going, *loop.initial, *([] if loop.again is None else [loop.again])]
            found += [source for source, *_ in (*loop.copies, *loop.scanned)]
        return found


def begin_step(loop: PlannedLoop) -> LoopBegin:
    """Return the step that begins a loop, after all tensors are allocated."""
    return LoopBegin(
        number=loop.number,
        trip=operand_of(loop.trip),
        going=operand_of(loop.going),
        index=operand_of(loop.index),
        extents=tuple((operand_of(s), e) for s, e in zip(loop.scalars, loop.first, strict=True)),
        states=_copies(loop.copies_in),
    )


def end_step(loop: PlannedLoop, extents: Sequence[str]) -> LoopEnd:
    """Return the step that ends a loop; ``extents`` are the names of the entry's run-time extents."""
    assert loop.again is not None
    assert loop.count is not None
    return LoopEnd(
        number=loop.number,
        again=operand_of(loop.again),
        extents=tuple(
            (operand_of(scalar), extents.index(str(old)), new)
            for scalar, (old, new) in zip(loop.scalars, loop.following, strict=True)
        ),
        states=_copies(loop.copies),
        scanned=_copies(loop.scanned),
        count=operand_of(loop.count),
        finals=tuple(
            (operand_of(final), operand_of(scalar)) for final, scalar in zip(loop.finals, loop.scalars, strict=True)
        ),
    )


def _copies(copies: Sequence[_Copy]) -> tuple[Copy, ...]:
    return tuple(Copy(operand_of(source), operand_of(target), size) for source, target, size in copies)


def _view(ty: Any) -> PlannedTensor:
    return PlannedTensor(None, tuple(ty.shape.values), str(ty.dtype))


def _is_empty(tensor: PlannedTensor) -> bool:
    return any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in tensor.shape)
