"""Results of choices that are outputs: each alternative writes to the output itself, in place of a copy behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packager.ir.call_plan import Branch, Digit, Operand
from packager.plan.calls import Placed, PlannedCall, PlannedTensor, Switched, owners, root
from packager.plan.entries import PlannedCopy


def write_to_outputs(calls: Sequence[PlannedCall], copies: Sequence[PlannedCopy]) -> list[PlannedCopy]:
    """Give results of alternatives the memory of the output that they are copied to; return the copies that are left.

    ``calls`` have their branches. A run calls one alternative, so it is alone in that memory.
    """
    return [copy for copy in copies if not _write_to(copy.target, copy.source, calls)]


def _write_to(target: PlannedTensor, source: PlannedTensor, calls: Sequence[PlannedCall]) -> bool:
    operand = target.operand
    if operand is None or operand.space != "output" or not isinstance(root(source), Switched):
        return False
    results = list(_results(source, ()))
    if len({id(result) for result, _ in results}) < len(results):
        return False
    if not all(result.dtype == source.dtype and _is_made_in(result, branch, calls) for result, branch in results):
        return False
    for result, _ in results:
        result.operand = Operand("output", operand.value)
    return True


def _results(tensor: PlannedTensor, branch: Branch) -> Iterator[tuple[PlannedTensor, Branch]]:
    """Yield the tensors that a choice selects from, each with its alternatives."""
    whole = root(tensor)
    if not isinstance(whole, Switched):
        yield whole, branch
        return
    for value, case in whole.cases:
        yield from _results(case, (*branch, (whole.subject, value)))


def _is_made_in(result: PlannedTensor, branch: Branch, calls: Sequence[PlannedCall]) -> bool:
    """Tell whether a tensor in the arena is written by this alternative alone."""
    if result.operand is not None or isinstance(result, Placed):  # a constant, another output, or in a loop
        return False
    if not all(isinstance(subject, Digit) for subject, _ in branch):  # decided by the run
        return False
    writers = [
        call
        for call in calls
        if any(
            parameter.written and any(owner is result for owner, _ in owners(operand))
            for parameter, operand in zip(call.function.parameters, call.operands, strict=True)
        )
    ]
    return bool(writers) and all(set(branch) <= set(call.branch) for call in writers)
