"""Loops whose number of iterations is known before they begin: no state and no scan output is copied.

What an iteration computes is written where it stays: to its row of a scan output, or to two buffers in turn. A state is
then the memory that the iteration before has written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from packager.graph import symbolic
from packager.graph.control_flow import has_aligned_rows
from packager.ir.call_plan import Alternate, Carried, Index, Iteration, Memory, Row
from packager.ir.shapes import Extent
from packager.plan.calls import Placed, PlannedTensor, operand_of, root
from packager.plan.loops import LoopCopy


class RowOf(Placed):
    """Row ``index`` of a tensor, as long as ``nbytes``."""

    def __init__(self, view: PlannedTensor, source: PlannedTensor, index: Index, nbytes: Extent) -> None:
        super().__init__(view, source)
        self.source, self.index, self.nbytes = source, index, nbytes

    def at(self, index: Index) -> RowOf:
        """Return another row."""
        return RowOf(self, self.source, index, self.nbytes)

    def memory(self) -> Memory:
        """Return the row."""
        return Row(operand_of(self.source), self.index, self.nbytes)


class AlternateOf(Placed):
    """One of two buffers, which iterations write in turn."""

    def __init__(self, view: PlannedTensor, even: PlannedTensor, odd: PlannedTensor, index: Index) -> None:
        super().__init__(view, even, odd)
        self.even, self.odd, self.index = even, odd, index

    def at(self, index: Index) -> AlternateOf:
        """Return that of another iteration."""
        return AlternateOf(self, self.even, self.odd, index)

    def memory(self) -> Memory:
        """Return the buffer."""
        if isinstance(self.index, int):
            return operand_of(self.odd if self.index % 2 else self.even)
        return Alternate(operand_of(self.even), operand_of(self.odd), self.index)


class CarriedOf(Placed):
    """A state before iteration ``index``: what the one before has written; in the first one ``initial``."""

    def __init__(
        self, view: PlannedTensor, initial: PlannedTensor, following: RowOf | AlternateOf, index: Index
    ) -> None:
        super().__init__(view, initial, following)
        self.initial, self.following, self.index = initial, following, index

    def after(self, trip: Extent, view: PlannedTensor) -> CarriedOf:
        """Return the state after the loop."""
        return CarriedOf(view, self.initial, self.following, trip)

    def memory(self) -> Memory:
        """Return the memory that has the state."""
        if self.index == 0:
            return operand_of(self.initial)
        following = operand_of(self.following.at(_before(self.index)))
        if isinstance(self.index, int):
            return following
        return Carried(operand_of(self.initial), following, self.index)


def _before(index: Index) -> Index:
    if isinstance(index, Iteration):
        return Iteration(index.loop, index.back + 1)
    return symbolic.combine("-", index, 1)


def carry(
    loop: int,
    states: Sequence[tuple[PlannedTensor, PlannedTensor, PlannedTensor]],
    scanned: Sequence[LoopCopy],
    written: Collection[int],
    make: Callable[[PlannedTensor], PlannedTensor],
) -> list[LoopCopy]:
    """Place what each iteration of a loop makes, and its states; return those of ``scanned`` that must be copied.

    ``states`` are (state, initial value, next value), ``scanned`` (value, all values, bytes of one); ``written`` are
    identities of the tensors that calls of the body write. ``make`` returns a new tensor like another. States that must
    be copied stay as they are.
    """
    now = Iteration(loop)

    def is_free(tensor: PlannedTensor) -> bool:
        whole = root(tensor)
        return id(whole) in written and whole.operand is None and whole.constant is None

    copied = []
    for value, room, nbytes in scanned:
        if is_free(value) and has_aligned_rows(value.shape, value.dtype):
            root(value).moved = RowOf(value, room, now, nbytes)
        else:
            copied.append((value, room, nbytes))
    for state, initial, following in states:
        whole = root(following)
        if whole is root(state):
            state.moved = initial
            continue
        if is_free(following):
            whole.moved = AlternateOf(following, make(following), make(following), now)
        whole = root(following)
        if isinstance(whole, RowOf | AlternateOf) and whole.index == now:
            state.moved = CarriedOf(state, initial, whole, now)
    return copied
