"""Finds the branch in which the results of each call are used: the call is left out of runs that take another.

A backward pass: a tensor is used in the literals, pairs of a run-time extent or a digit and its value, that all of its
uses share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from packager.ir.call_plan import Branch, Digit, Subject
from packager.ir.model import ModelSignature
from packager.plan.calls import PlannedCall, PlannedRead, PlannedTensor, owners
from packager.plan.loops import PlannedMark


def assign_branches(
    entry: ModelSignature,
    calls: Sequence[PlannedCall],
    marks: Sequence[PlannedRead | PlannedMark],
    results: Sequence[PlannedTensor],
) -> None:
    """Set the branch of each call of an entry; ``results`` are used in every run."""
    extents = [extent.name for extent in entry.extents]
    branches = {extent.name: entry.branches.get(extent.node, ()) for extent in entry.extents}
    reads = [mark for mark in marks if isinstance(mark, PlannedRead)]
    used: dict[int, set[tuple[Subject, int]]] = {}

    def use(tensor: PlannedTensor, branch: Branch) -> None:
        for owner, own in owners(tensor, branch):
            literals = set(own)
            used[id(owner)] = used[id(owner)] & literals if id(owner) in used else literals

    for result in results:
        use(result, ())
    for read in reads:
        use(read.scalar, branches.get(extents[read.number], ()))
    for place in range(len(calls) - 1, -1, -1):
        call = calls[place]
        written = [t for p, t in zip(call.function.parameters, call.operands, strict=True) if p.written]
        # Others are workspaces, and results that nothing reads.
        literals = [used[id(owner)] for tensor in written for owner, _ in owners(tensor) if id(owner) in used]
        common = set.intersection(*literals) if literals else set()
        known: set[Subject] = {subject for subject, _ in common if isinstance(subject, Digit)}  # before the run
        known |= {extents[read.number] for read in reads if read.before <= place}
        call.branch = tuple(sorted((literal for literal in common if literal[0] in known), key=str))
        for tensor in call.operands:
            use(tensor, tuple(common))


def digits_of_tensors(
    calls: Sequence[PlannedCall], used: Sequence[PlannedTensor]
) -> Callable[[PlannedTensor], Mapping[int, int]]:
    """Return a function that says for which alternatives alone calls touch a tensor, by choice; ``used`` are for all.

    A session runs one alternative of a choice, so that tensors of two never hold values in the same session.
    """
    found: dict[int, set[tuple[int, int]]] = {}

    def touch(tensor: PlannedTensor, branch: Branch) -> None:
        for owner, own in owners(tensor, branch):
            digits = {(subject.number, value) for subject, value in own if isinstance(subject, Digit)}
            found[id(owner)] = found[id(owner)] & digits if id(owner) in found else digits

    for tensor in used:
        touch(tensor, ())
    for call in calls:
        for tensor in call.operands:
            touch(tensor, call.branch)
    return lambda tensor: dict(found.get(id(tensor), ()))
