"""Writes next values of states directly to the states where that is safe, else copies them.

A state's memory must keep its old value until its last reader has run. The producer of the next value may write there
if it runs later, or if it is that reader and works in place (``plan.in_place``). The same holds for a chain of updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packager.ir.primitives import Kernel
from packager.plan.calls import PlannedCall, PlannedTensor, root
from packager.plan.in_place import InPlace, in_place


@dataclass(frozen=True)
class NextValue:
    """A state's tensor, which is main's parameter, and the root of the tensor with its next value."""

    state: PlannedTensor
    value: PlannedTensor


Copy = tuple[PlannedTensor, PlannedTensor]  # from, to


def place_next_values(nexts: Sequence[NextValue], calls: list[PlannedCall]) -> tuple[list[Copy], list[PlannedTensor]]:
    """Allocate the states' next values, and rewrite calls to work in place.

    Tensors read after the last call must have been touched in step ``len(calls)`` by the caller. Returns the copies to
    make at the end, in order, and the arena tensors they need.
    """
    end = len(calls)
    states = {id(entry.state) for entry in nexts}
    saved: dict[int, PlannedTensor] = {}  # state -> temporary for a value that other copies would overwrite
    saves: list[Copy] = []
    for entry in nexts:
        if entry.value is not entry.state and id(entry.value) in states and id(entry.value) not in saved:
            entry.value.touch(end)
            buffer = PlannedTensor(None, entry.value.shape, entry.value.dtype)
            buffer.first = buffer.last = end
            saved[id(entry.value)] = buffer
            saves.append((entry.value, buffer))
    values = {id(entry.value) for entry in nexts}
    copies: list[Copy] = []
    for entry in nexts:
        if entry.value is entry.state:
            continue
        source = saved.get(id(entry.value), entry.value)
        if source.operand is None and source is entry.value and _write_in_place(entry, calls, values):
            continue
        if source.operand is None:
            source.last = end
        copies.append((source, entry.state))
    return saves + copies, list(saved.values())


def _write_in_place(entry: NextValue, calls: list[PlannedCall], values: set[int]) -> bool:
    """Allocate a next value, and the chain of updates that leads to it, in the state's memory if that is safe."""
    state, chain = entry.state, [entry.value]
    changes: list[tuple[PlannedCall, PlannedTensor, InPlace]] = []
    while True:
        current = chain[-1]
        assert current.first is not None  # it is the result of a call
        if state.last is None or state.last < current.first:
            break
        call = calls[current.first]
        found = _update(call, state, current, values)
        if found is None:
            return False
        source, change = found
        changes.append((call, source, change))
        if source is state:
            break
        chain.append(source)
    for tensor in chain:
        tensor.operand = state.operand
    for call, source, change in changes:
        _apply(call, source, change)
    return True


def _update(
    call: PlannedCall, state: PlannedTensor, result: PlannedTensor, values: set[int]
) -> tuple[PlannedTensor, InPlace] | None:
    """Return the operand that a call may overwrite with its result, and the rewrite; the state itself if it reads
    it."""
    if not isinstance(call.function, Kernel):
        return None
    roots = [root(operand) for operand in call.operands]
    targets = [index for index, tensor in enumerate(roots) if tensor is result]
    reads_state = any(tensor is state for tensor in roots)
    for index, tensor in enumerate(roots):
        if tensor is result or (reads_state and tensor is not state) or roots.count(tensor) != 1 or len(targets) != 1:
            continue
        free = tensor is state or (tensor.operand is None and tensor.constant is None and id(tensor) not in values)
        if not free or tensor.last != result.first or tensor.last is None:
            continue
        change = in_place(call.function, index, targets[0])
        if change is not None:
            return tensor, change
    return None


def _apply(call: PlannedCall, source: PlannedTensor, change: InPlace) -> None:
    call.written = change.written
    if change.kernel is None:
        call.dropped = True
        return
    call.function = change.kernel
    call.operands = [operand for operand in call.operands if root(operand) is not source]
