"""Where the next values of states are written: straight into the states where that is right, else copied there.

A state's memory holds the value that the run began with until its last reader has run. The call that makes the next
value may write there if it comes after, or if it is that reader and works in place (``plan.in_place``); so may the
calls before it in a chain of updates, each of the result of the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packager.ir.primitives import Kernel
from packager.plan.in_place import InPlace, in_place
from packager.plan.tensors import PlannedCall, PlannedTensor, root


@dataclass(frozen=True)
class NextValue:
    """A state, as the tensor that main's parameter is, and the root of the tensor that is its next value."""

    state: PlannedTensor
    value: PlannedTensor


@dataclass(frozen=True)
class TensorCopy:
    """A copy from one tensor's place to another's, at the end of a run."""

    source: PlannedTensor
    target: PlannedTensor


def place_next_values(
    nexts: Sequence[NextValue], calls: list[PlannedCall]
) -> tuple[list[TensorCopy], list[PlannedTensor]]:
    """Give the states' next values places, and change calls that then work in place.

    Tensors that are read after the last call are touched in step ``len(calls)``, by the caller. Returns the copies that
    have to be made at the end, in order, and the tensors that they need in the arena.
    """
    end = len(calls)
    states = {id(entry.state) for entry in nexts}
    saved: dict[int, PlannedTensor] = {}  # values that other states' copies would overwrite, by their states
    saves: list[TensorCopy] = []
    for entry in nexts:
        if entry.value is not entry.state and id(entry.value) in states and id(entry.value) not in saved:
            entry.value.touch(end)
            buffer = PlannedTensor(None, entry.value.shape, entry.value.dtype)
            buffer.first = buffer.last = end
            saved[id(entry.value)] = buffer
            saves.append(TensorCopy(entry.value, buffer))
    values = {id(entry.value) for entry in nexts}
    copies: list[TensorCopy] = []
    for entry in nexts:
        if entry.value is entry.state:
            continue
        source = saved.get(id(entry.value), entry.value)
        if source.operand is None and source is entry.value and _write_in_place(entry, calls, values):
            continue
        if source.operand is None:
            source.last = end
        copies.append(TensorCopy(source, entry.state))
    return saves + copies, list(saved.values())


def _write_in_place(entry: NextValue, calls: list[PlannedCall], values: set[int]) -> bool:
    """Let a next value, and what it is made of step by step, lie in the state's memory, if that is right."""
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
    """Return the operand that a call may write its result over, and how; the state where it reads that, or nothing."""
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
