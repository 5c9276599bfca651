"""C expressions for the memory of operands."""

from __future__ import annotations

from collections.abc import Mapping

from packager.codegen.c_text import dim_expression
from packager.ir.call_plan import (
    Alternate,
    Carried,
    Digit,
    EntryPlan,
    Index,
    Iteration,
    Memory,
    Operand,
    Row,
    Subject,
    Switch,
)
from packager.ir.shapes import Extent

# C expressions: the address of each input and output.
Tensors = Mapping[Operand, str]


def tensors_of(run: EntryPlan) -> Tensors:
    """Return the addresses of all inputs and outputs; of the current micro-batch's part where the tensor is split."""
    places = [("input", number) for number in range(len(run.inputs))]
    places += [("output", number) for number in range(len(run.outputs))]
    parts = run.parts or (0,) * len(places)

    def address(role: str, number: int, part: Extent) -> str:
        whole = f"call->{role}s[{number}]"
        return f"(uint8_t *){whole} + call->batch * {dim_expression(part)}" if part else whole

    return {Operand(*place): address(*place, part) for place, part in zip(places, parts, strict=True)}


def pointer(operand: Memory, tensors: Tensors) -> str:
    """Return the address of an operand."""
    if isinstance(operand, Switch):
        *cases, (_, text) = [(value, pointer(memory, tensors)) for value, memory in operand.cases]
        for value, memory in reversed(cases):
            if memory != text:
                text = f"({subject_text(operand.subject)} == {value} ? (void *)({memory}) : (void *)({text}))"
        return text
    if isinstance(operand, Row):
        place = f"{index_text(operand.index)} * (int64_t){dim_expression(operand.nbytes)}"
        return f"(void *)((uint8_t *){pointer(operand.source, tensors)} + {place})"
    if isinstance(operand, Alternate):
        even, odd = pointer(operand.even, tensors), pointer(operand.odd, tensors)
        return f"({index_text(operand.index)} % 2 ? (void *)({odd}) : (void *)({even}))"
    if isinstance(operand, Carried):
        initial, following = pointer(operand.initial, tensors), pointer(operand.following, tensors)
        return f"({index_text(operand.index)} > 0 ? {following} : (void *)({initial}))"
    match operand.space:
        case "input" | "output":
            return tensors[operand]
        case "arena":
            return f"call->arena + {operand.value}"
        case "state":
            return f"call->states + {operand.value}"
    return f"(void *)call->constants[{operand.value}]"


def subject_text(subject: Subject) -> str:
    """Return the value of what decides about a case; choices come first in the selection of a session."""
    return f"call->selection[{subject.number}]" if isinstance(subject, Digit) else f"dim_{subject}"


def index_text(index: Index) -> str:
    """Return the number of an iteration, or a number that follows from the dims."""
    if isinstance(index, Iteration):
        return f"(loop_{index.loop} - {index.back})" if index.back else f"loop_{index.loop}"
    return dim_expression(index)
