"""Writes down the calls of each run and the tensors between them, for the graph section of the bundle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packager.bundle.graph.call_graph import COPY, GRAPH_VERSION, CallGraph, GraphCall, GraphTensor, RunGraph, Space
from packager.graph import symbolic
from packager.ir.call_plan import Branch, CallPlan, Digit, Operand
from packager.ir.constants import ConstantTable
from packager.plan.calls import PlannedCall, PlannedTensor, owners
from packager.plan.entries import PlannedEntry
from packager.plan.loops import PlannedMark
from packager.plan.values import Values

_SPACES: dict[str, Space] = {"constants": "constant"}  # others have the same name


def call_graph(values: Values, entries: Sequence[PlannedEntry], plan: CallPlan) -> CallGraph:
    """Return the graph of planned entries, in order; variants for buckets are entries of their own."""
    return CallGraph(GRAPH_VERSION, tuple(_RunWriter(values, plan).write(entry) for entry in entries))


class _RunWriter:
    """Numbers the tensors of a run in the order in which its calls use them."""

    def __init__(self, values: Values, plan: CallPlan) -> None:
        self._values = values
        self._choices = [choice.name for choice in plan.choices]
        self._constants = _constants_of_slots(plan.constants)
        self._numbers: dict[int, int] = {}
        self._tensors: list[GraphTensor] = []
        self._written: set[int] = set()
        self._workspaces: set[int] = set()

    def write(self, entry: PlannedEntry) -> RunGraph:
        """Return the graph of a run."""
        calls = tuple(self._calls(entry))
        return RunGraph(entry.entry.source.name, dict(entry.entry.sizes), tuple(self._tensors), calls)

    def _calls(self, entry: PlannedEntry) -> Iterator[GraphCall]:
        marks = [mark for mark in entry.marks if isinstance(mark, PlannedMark)]
        for place, call in enumerate([*entry.calls, None]):
            for mark in marks:
                if mark.before == place:
                    loop = mark.loop
                    for source, target, _ in (*loop.copies, *loop.scanned) if mark.ends else loop.copies_in:
                        yield self._copy(source, target)
            if call is not None and not call.dropped:
                yield self._call(call)
        for copy in entry.copies:
            yield self._copy(copy.source, copy.target)

    def _call(self, call: PlannedCall) -> GraphCall:
        pairs = list(zip(call.function.parameters, call.operands, strict=True))
        self._workspaces.update(id(tensor) for parameter, tensor in pairs if parameter.kind == "workspace")
        writes = self._number([tensor for parameter, tensor in pairs if parameter.written])
        reads = self._number([tensor for parameter, tensor in pairs if not parameter.written])
        updated = [number for number in writes if self._holds_value(number)]  # by a call before, or as a state
        self._written.update(writes)
        return GraphCall(
            call.function.symbol,
            call.source.nodes,
            tuple(dict.fromkeys([*reads, *updated])),
            writes,
            self._branch(call.branch),
        )

    def _holds_value(self, number: int) -> bool:
        return number in self._written or self._tensors[number].space == "state"

    def _copy(self, source: PlannedTensor, target: PlannedTensor) -> GraphCall:
        writes = self._number([target])
        self._written.update(writes)
        return GraphCall(COPY, (), self._number([source]), writes, {})

    def _branch(self, branch: Branch) -> dict[str, int]:
        return {
            self._choices[subject.number] if isinstance(subject, Digit) else subject: value for subject, value in branch
        }

    def _number(self, tensors: Sequence[PlannedTensor]) -> tuple[int, ...]:
        """Return the numbers of the tensors, or of those that may have their memory."""
        found = [owner for tensor in tensors for owner, _ in owners(tensor)]
        return tuple(dict.fromkeys(self._number_of(owner, owner.operand) for owner in found if owner.operand))

    def _number_of(self, tensor: PlannedTensor, operand: Operand) -> int:
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self._tensors)
            constant = operand.space == "constants"
            space = "workspace" if id(tensor) in self._workspaces else _SPACES.get(operand.space, operand.space)
            self._tensors.append(
                GraphTensor(
                    space,  # type: ignore[arg-type]
                    self._constants[operand.value] if constant else operand.value,
                    self._values.nbytes(tensor),
                    tensor.dtype,
                    tuple(self._extent(extent) for extent in tensor.shape),
                )
            )
        return self._numbers[id(tensor)]

    def _extent(self, extent: object) -> int | str:
        found = symbolic.to_extent(extent, self._values.names)
        return found if symbolic.is_readable(found) else symbolic.maximum(extent, self._values.names, self._values.dims)


def _constants_of_slots(constants: ConstantTable) -> list[int]:
    """Return the number of each slot's record; empty contents share an offset with others."""
    numbers = {(record.offset, record.bytes): number for number, record in enumerate(constants.records)}
    return [numbers[slot.offset, slot.nbytes] for slot in constants.slots]
