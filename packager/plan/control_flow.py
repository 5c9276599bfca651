"""Plans the control flow of a run: choices between memories, and loops.

States keep their buffers, and are copied; ``plan.carried`` has loops in which nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, tirx
from tvm.ir import GenericConst

from packager.bundle.dtypes import INSIDE
from packager.graph import symbolic
from packager.graph.control_flow import (
    ALTERNATIVES,
    CHOOSE,
    LOOP_BEGIN,
    LOOP_END,
    LOOP_RESULT,
    LOOP_ROW,
    LOOP_STATE,
    ROW,
    operands_of,
)
from packager.graph.dataflow import called_function
from packager.ir.call_plan import Digit, Index, Iteration
from packager.ir.shapes import Extent
from packager.plan.calls import Alias, PlannedCall, PlannedTensor, Switched, owners, root
from packager.plan.carried import CarriedOf, RowOf, carry
from packager.plan.loops import LoopCopy, PlannedLoop, PlannedMark


class ControlFlow:
    """Plans the control flow of one entry.

    ``value_of`` returns the tensor of an expression, ``make`` a new one for a type, ``extent_of`` the text of an
    extent, ``read`` prepares a tensor to be read; ``calls`` are those planned so far. ``counts`` returns the numbers of
    so many iterations as a constant, or None if they are many; ``is_counted`` tells whether the dims alone decide a
    number.
    """

    def __init__(
        self,
        value_of: Callable[[Any], Any],
        make: Callable[[Any], PlannedTensor],
        extent_of: Callable[[Any], Extent],
        read: Callable[[PlannedTensor], PlannedTensor],
        calls: Sequence[PlannedCall],
        counts: Callable[[Extent], PlannedTensor | None],
        is_counted: Callable[[Extent], bool],
    ) -> None:
        self.value_of, self.make, self.extent_of, self.read, self.calls = value_of, make, extent_of, read, calls
        self.counts, self.is_counted = counts, is_counted
        self.loops: list[PlannedLoop] = []

    def evaluate(self, call: relax.Call, ty: Any) -> tuple[Any, PlannedMark | None]:
        """Return the value of a call of ``graph.control_flow``, and the mark that it makes."""
        tensors, extents = operands_of(call)
        match called_function(call):
            case str(name) if name == LOOP_BEGIN:
                return self._begin(tensors, extents, ty)
            case str(name) if name == LOOP_END:
                return self._end(tensors, extents, ty)
        values = [self.value_of(tensor) for tensor in tensors]
        match called_function(call):
            case str(name) if name == CHOOSE:
                return self._choose(values, extents[0], ty), None
            case str(name) if name == ALTERNATIVES:
                return self._alternatives(values, int(extents[0]), ty), None
            case str(name) if name == LOOP_STATE:
                return self._state(self._loop(values[0]), int(extents[0]), ty), None
            case str(name) if name == LOOP_ROW:
                return self._row(values[1], Iteration(self._loop(values[0]).number), ty), None
            case str(name) if name == ROW:
                return self._row(values[0], self.extent_of(extents[0]), ty), None
        assert called_function(call) == LOOP_RESULT
        return self._result(values[0], values[1], ty), None

    def counted(self, scalar: PlannedTensor) -> Index | None:
        """Return the value of a scalar that is the number of iterations of a loop, after its end."""
        loop = next((loop for loop in self.loops if loop.count is root(scalar)), None)
        if loop is None:
            return None
        if isinstance(loop.trip, PlannedTensor) or loop.going is not None or loop.again is not None:
            return Iteration(loop.number)
        return max(loop.trip, 0) if isinstance(loop.trip, int) else f"max({loop.trip}, 0)"

    def finish(self) -> None:
        """Finish the lifetimes of tensors that are made only if something reads them."""
        for loop in self.loops:
            if loop.count is not None and loop.count.first is not None:
                loop.count.first = min(loop.count.first, loop.end)

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
        return Switched(_view(ty), str(self.extent_of(taken)), ((1, then), (0, otherwise)))

    def _alternatives(self, values: list[PlannedTensor], number: int, ty: Any) -> PlannedTensor:
        return Switched(_view(ty), Digit(number), tuple(enumerate(self.read(value) for value in values)))

    def _scalar(self, expr: Any) -> PlannedTensor | int:
        """Return a scalar as a tensor, or its value if that is known."""
        if isinstance(expr, GenericConst):
            return int(expr.value.numpy())
        tensor: PlannedTensor = self.value_of(expr)
        return tensor if tensor.constant is None else int(tensor.constant[1].array)

    def _begin(self, tensors: list[Any], extents: list[Any], ty: Any) -> tuple[Any, PlannedMark]:
        now = len(self.calls)
        known = self.extent_of(extents[0])
        trip = self._scalar(tensors.pop(0)) if known == -1 else known
        condition = self._scalar(tensors.pop(0))
        going = condition if isinstance(condition, PlannedTensor) else None
        if condition == 0:
            trip = 0
        initial = [self.value_of(tensor) for tensor in tensors]
        index, *scalars = [self.make(field) for field in (ty.fields if isinstance(ty, relax.TupleType) else [ty])]
        first = [self.extent_of(extent) for extent in extents[1:]]
        loop = PlannedLoop(len(self.loops), now, trip, going, index, scalars, first, initial)
        for tensor in (*loop.used(), *scalars):
            self.read(tensor).touch(now)
        self.loops.append(loop)
        return (index, *scalars) if scalars else index, PlannedMark(loop, False, now)

    def _state(self, loop: PlannedLoop, number: int, ty: Any) -> PlannedTensor:
        state = self.make(ty)
        state.touch(loop.begin)
        loop.states[number] = state
        return state

    def _row(self, source: PlannedTensor, index: Iteration | Extent, ty: Any) -> PlannedTensor:
        view = _view(ty)
        return RowOf(view, source, index, self._nbytes(view))

    def _result(self, count: PlannedTensor, value: PlannedTensor, ty: Any) -> PlannedTensor:
        """Return a state, or a scan output, after its loop."""
        loop = next(loop for loop in self.loops if loop.count is count)
        if any(value is state for state in loop.states.values()) and isinstance(value.moved, CarriedOf):
            assert not isinstance(loop.trip, PlannedTensor)
            return value.moved.after(loop.trip, _view(ty))
        return Alias(value, _view(ty))

    def _nbytes(self, tensor: PlannedTensor) -> Extent:
        size = INSIDE[tensor.dtype].itemsize
        return symbolic.product((*(self.extent_of(extent) for extent in tensor.shape), size))

    def _copy(self, source: PlannedTensor, target: PlannedTensor) -> LoopCopy:
        return source, target, self._nbytes(source)

    def _next(self, loop: PlannedLoop, nexts: Sequence[PlannedTensor]) -> list[PlannedTensor]:
        """Plan the copies of the next values into the states; return the temporary memory that this takes.

        A next value that is another state is copied before any state is overwritten.
        """
        copied = {number: state for number, state in loop.states.items() if state.moved is None}
        # Without elements an initial value may have no memory.
        loop.copies_in = [self._copy(loop.initial[n], s) for n, s in copied.items() if not _is_empty(loop.initial[n])]
        memory = {id(owner) for state in copied.values() for owner, _ in owners(state)}
        first, then, made = [], [], []
        for number, state in copied.items():
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

    def _end(self, tensors: list[Any], extents: list[Any], ty: Any) -> tuple[Any, PlannedMark]:
        now = len(self.calls)
        loop = self._loop(self.value_of(tensors[0]))
        again = self._scalar(tensors[1])
        others = [self.value_of(tensor) for tensor in tensors[2:]]
        results = [self.make(field) for field in (ty.fields if isinstance(ty, relax.TupleType) else [ty])]
        count = len(loop.initial)
        loop.end, loop.again = now, None if again == 1 else self.value_of(tensors[1])
        loop.count, loop.finals = results[0], results[1 : 1 + len(loop.scalars)]
        rooms = results[1 + len(loop.scalars) :]
        scanned = [self._copy(value, room) for value, room in zip(others[count:], rooms, strict=True)]
        made, loop.scanned = self._carry(loop, others[:count], scanned)
        made += self._next(loop, others[:count])
        texts = [self.extent_of(extent) for extent in extents]
        loop.following = list(zip(texts[::2], texts[1::2], strict=True))
        for room in rooms:
            room.touch(loop.begin)
        for tensor in made:
            tensor.touch(loop.begin)
        if loop.index.first is not None:  # something reads it
            loop.index.first = loop.begin
            loop.index.touch(now)
        for tensor in (*loop.used(), *others, *results[1:], *loop.scalars, *loop.states.values()):
            self.read(tensor).touch(now)
        self._keep_outer(loop)
        return tuple(results) if len(results) > 1 else results[0], PlannedMark(loop, True, now)

    def _carry(
        self, loop: PlannedLoop, nexts: Sequence[PlannedTensor], scanned: list[LoopCopy]
    ) -> tuple[list[PlannedTensor], list[LoopCopy]]:
        """Spare the copies of a loop whose trip count the dims say.

        Return the memory that this takes, and the copies of ``scanned`` that are left.
        """
        made: list[PlannedTensor] = []

        def make(like: PlannedTensor) -> PlannedTensor:
            made.append(self.make(relax.TensorType([*like.shape], like.dtype)))
            return made[-1]

        known = not isinstance(loop.trip, PlannedTensor) and self.is_counted(loop.trip)
        if not known or loop.going is not None or loop.again is not None or loop.scalars:
            return made, scanned
        assert not isinstance(loop.trip, PlannedTensor)
        if loop.index.first is not None and (counts := self.counts(loop.trip)) is not None:
            loop.index.moved = RowOf(loop.index, counts, Iteration(loop.number), INSIDE["int64"].itemsize)
        states = [(state, loop.initial[n], nexts[n]) for n, state in loop.states.items() if not _is_empty(state)]
        return made, carry(loop.number, states, scanned, self._written(loop), make)

    def _written(self, loop: PlannedLoop) -> set[int]:
        """Return the identities of the tensors that the body writes."""
        return {
            id(root(tensor))
            for call in self.calls[loop.begin :]
            for parameter, tensor in zip(call.function.parameters, call.operands, strict=True)
            if parameter.written
        }

    def _keep_outer(self, loop: PlannedLoop) -> None:
        """Keep what comes from outside of the loop until its end: each iteration reads it."""
        inside = self._written(loop)
        inner = [tensor for other in self.loops if other.begin >= loop.begin for tensor in other.used()]
        for tensor in (*inner, *(t for call in self.calls[loop.begin :] for t in call.operands)):
            for owner, _ in owners(tensor):
                if owner.first is not None and id(owner) not in inside:
                    owner.touch(loop.end)

    def used(self) -> list[PlannedTensor]:
        """Return the tensors that loops read."""
        return [tensor for loop in self.loops for tensor in loop.used()]


def _view(ty: Any) -> PlannedTensor:
    return PlannedTensor(None, tuple(ty.shape.values), str(ty.dtype))


def _is_empty(tensor: PlannedTensor) -> bool:
    return any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in tensor.shape)
