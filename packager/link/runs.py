"""Template views of the entrypoint's run functions, per CPU level, and of the tasks of parallel loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packager.bundle.isa.levels import level_identifier
from packager.codegen.c_text import dim_expression
from packager.codegen.escape import c_string
from packager.ir.call_plan import (
    Branch,
    Call,
    Check,
    Choice,
    Copy,
    EntryPlan,
    LoopBegin,
    LoopEnd,
    Memory,
    Operand,
    ReadExtent,
    Step,
)
from packager.ir.primitives import PrimitiveFunction
from packager.ir.shapes import Extent
from packager.link.reads import fetch_text, reads_together

LINE = "\n  "
# The C operator that holds if a condition does not.
FAILS = {"==": "!=", "<=": ">"}

# C expressions: the address of each input and output.
Tensors = Mapping[Operand, str]


@dataclass(frozen=True)
class EntryLevel:
    """A CPU level: the features that its sessions require, and symbol -> clone of every function."""

    name: str
    cpu_features: tuple[str, ...]
    clones: Mapping[str, str]


def level_views(levels: Sequence[EntryLevel], every: Sequence[str]) -> list[dict[str, Any]]:
    """Return the levels, each with the CPU features it checks in addition to ``every`` session's."""
    return [
        {
            "name": c_string(level.name),
            "number": number,
            "features": [name for name in level.cpu_features if name not in every],
        }
        for number, level in enumerate(levels)
    ]


def count_loops(run: EntryPlan) -> int:
    """Return the loops of a run."""
    return sum(isinstance(step, LoopBegin) for step in run.steps)


def run_views(run: EntryPlan, levels: Sequence[EntryLevel], on_gpu: bool, prefix: str) -> list[dict[str, Any]]:
    """Return the run function of each level."""
    tensors = _tensors(run)

    def steps(clones: Mapping[str, str]) -> list[dict[str, Any]]:
        views, number, fetched = [], 0, 0
        for place, step in enumerate(run.steps):
            if isinstance(step, Call | Copy):
                number += 1
                text = _guarded(step, _step_text(number, step, clones, tensors, on_gpu))
                views.append({"text": text, "number": number})
                continue
            if on_gpu and place >= fetched and isinstance(step, ReadExtent):
                group, fetched = reads_together(run.steps, place)
                pointers = [_pointer(read.source, tensors) for read in group]
                targets = [f"&call->extents[{read.number}]" for read in group]
                text = fetch_text(pointers, targets, max(number, 1))
                taken = " && ".join(_conditions(group[0].branch))
                views.append({"text": f"if ({taken}) {text}" if taken else text, "number": 0})
            views.append({"text": _between(number, step, run, tensors, on_gpu), "number": 0})
        return views

    if not levels:
        return [{"name": f"{prefix}run", "steps": steps({})}]
    names = ["run", *(f"run_{level_identifier(level.name)}" for level in levels[1:])]
    return [{"name": prefix + name, "steps": steps(level.clones)} for name, level in zip(names, levels, strict=True)]


def _tensors(run: EntryPlan) -> Tensors:
    """Return the addresses of all inputs and outputs; of the current micro-batch's part where the tensor is split."""
    places = [("input", number) for number in range(len(run.inputs))]
    places += [("output", number) for number in range(len(run.outputs))]
    parts = run.parts or (0,) * len(places)

    def address(role: str, number: int, part: Extent) -> str:
        whole = f"call->{role}s[{number}]"
        return f"(uint8_t *){whole} + call->batch * {dim_expression(part)}" if part else whole

    return {Operand(*place): address(*place, part) for place, part in zip(places, parts, strict=True)}


def _clones(symbol: str, levels: Sequence[EntryLevel]) -> list[str]:
    """Return the distinct clones of a function, the lowest level's first."""
    return list(dict.fromkeys(level.clones.get(symbol, symbol) for level in levels)) or [symbol]


def function_views(function: PrimitiveFunction, levels: Sequence[EntryLevel], on_gpu: bool) -> list[dict[str, str]]:
    """Return the declarations of a function, one per clone."""
    pointers = ["void *" if parameter.written else "const void *" for parameter in function.parameters]
    others = (2 if function.extent is not None else 0) + (1 if function.candidates else 0)
    integers = ["int64_t"] * (len(function.scalars) + others)
    first = ["pk_cuda_t *"] if on_gpu else []
    parameters = ", ".join([*first, *pointers, *integers]) or "void"
    return [{"symbol": clone, "parameters": parameters} for clone in _clones(function.symbol, levels)]


def task_views(steps: Sequence[Step], levels: Sequence[EntryLevel]) -> list[dict[str, str]]:
    """Return one task per kernel that runs in parallel anywhere: its calls differ only in arguments."""
    calls = {step.symbol: step for step in steps if isinstance(step, Call) and step.parallel}
    return [_task_view(call, clone) for call in calls.values() for clone in _clones(call.symbol, levels)]


def _task_view(call: Call, clone: str) -> dict[str, str]:
    pointers = [f"p{i}" for i in range(len(call.operands))]
    scalars = [f"s{i}" for i in range(len(call.scalars) + (call.selection is not None))]
    fields = [f"void *{name};" for name in pointers] + [f"int64_t {name};" for name in scalars]
    return {
        "name": f"task_{clone}",
        "symbol": clone,
        "fields": " ".join(fields),
        "forwarded": ", ".join(f"a->{name}" for name in [*pointers, *scalars]),
    }


def _between(
    done: int, step: ReadExtent | Check | LoopBegin | LoopEnd, run: EntryPlan, tensors: Tensors, on_gpu: bool
) -> str:
    """Return the text of what is done between calls, after ``done`` of them."""
    if isinstance(step, LoopBegin | LoopEnd):
        return _loop_text(done, step, run, tensors, on_gpu)
    return _extent_text(step, run, tensors, on_gpu)


def _guarded(step: Call | Copy, text: str) -> str:
    """Return the text of a step that is left out if it would write nothing."""
    if isinstance(step, Copy):
        return text
    conditions = _conditions(step.branch)
    if step.unless_empty is not None:
        conditions.append(f"{dim_expression(step.unless_empty)} > 0")
    return f"if ({' && '.join(conditions)}) {{ {text} }}" if conditions else text


def _conditions(branch: Branch) -> list[str]:
    return [f"dim_{name} == {value}" for name, value in branch]


def _loop_text(done: int, step: LoopBegin | LoopEnd, run: EntryPlan, tensors: Tensors, on_gpu: bool) -> str:
    """Return the text that begins or ends a loop, after ``done`` calls."""
    failure = max(done, 1)

    def pointer(memory: Memory) -> str:
        return _pointer(memory, tensors)

    def write(memory: Memory, value: str) -> str:
        if on_gpu:
            return f"if (pk_cuda_store(call->cuda, {pointer(memory)}, {value})) return {failure};"
        return f"*(int64_t *)({pointer(memory)}) = {value};"

    def read(*values: tuple[str, Memory]) -> str:
        if not on_gpu:
            return LINE.join(f"{name} = *(const int64_t *)({pointer(memory)});" for name, memory in values)
        return fetch_text([pointer(memory) for _, memory in values], [f"&{name}" for name, _ in values], failure)

    def copy(target: str, source: str, size: str) -> str:
        if on_gpu:
            return f"if (pk_cuda_copy(call->cuda, {target}, {source}, (uint64_t)({size}))) return {failure};"
        return f"memcpy({target}, {source}, (size_t)({size}));"

    def move(moved: Copy) -> str:
        return copy(pointer(moved.destination), pointer(moved.source), dim_expression(moved.nbytes))

    name = f"loop_{step.number}"
    if isinstance(step, LoopBegin):
        return LINE.join(
            [
                f"int64_t {name}_trip, {name}_going, {name} = 0;",
                read((f"{name}_trip", step.trip), (f"{name}_going", step.going)),
                *(write(memory, dim_expression(value)) for memory, value in step.extents),
                *map(move, step.states),
                f"for (; {name}_going && {name} < {name}_trip; ++{name}) {{ {write(step.index, name)}",
            ]
        )
    bounds = [dim_expression(run.extents[index].bound) for _, index, _ in step.extents]
    values = [dim_expression(value) for *_, value in step.extents]
    return LINE.join(
        [
            *(
                f"if ({value} > {bound}) return pk_outside(call, {index}, {value}, {bound});"
                for value, bound, (_, index, _) in zip(values, bounds, step.extents, strict=True)
            ),
            *(
                copy(f"(uint8_t *){pointer(c.destination)} + {name} * ({size})", pointer(c.source), size)
                for c in step.scanned
                for size in [dim_expression(c.nbytes)]
            ),
            *(f"const int64_t {name}_next_{i} = {value};" for i, value in enumerate(values)),
            *map(move, step.states),
            *(write(memory, f"{name}_next_{i}") for i, (memory, *_) in enumerate(step.extents)),
            read((f"{name}_going", step.again)),
            "}",
            write(step.count, name),
            *(copy(pointer(final), pointer(source), "8") for final, source in step.finals),
        ]
    )


def _extent_text(step: ReadExtent | Check, run: EntryPlan, tensors: Tensors, on_gpu: bool) -> str:
    """Return the text that reads a run-time extent, or checks a condition on such."""
    if isinstance(step, Check):
        condition = run.conditions[step.number]
        left, right = dim_expression(condition.left), dim_expression(condition.right)
        fails = " && ".join([*_conditions(step.branch), f"{left} {FAILS[condition.operator]} {right}"])
        return f"if ({fails}) return pk_broken(call, {step.number}, {left}, {right});"
    extent = run.extents[step.number]
    # On a GPU it was copied to the host before: fetch_text.
    read = "" if on_gpu else f"call->extents[{step.number}] = *(const int64_t *)({_pointer(step.source, tensors)});"
    if step.branch:
        taken = " && ".join(_conditions(step.branch))
        read = f"if (!({taken})) call->extents[{step.number}] = 0;" + (f" else {{ {read} }}" if read else "")
    name = f"dim_{extent.name}"
    bound = dim_expression(extent.bound)
    return LINE.join(
        [
            *([read] if read else []),
            f"const int64_t {name} = call->extents[{step.number}];",
            f"if ({name} < 0 || {name} > {bound}) return pk_outside(call, {step.number}, {name}, {bound});",
        ]
    )


def _step_text(number: int, step: Call | Copy, clones: Mapping[str, str], tensors: Tensors, on_gpu: bool) -> str:
    failure = number
    if on_gpu:
        return f"pk_cuda_step(call->cuda, {failure}); if ({_gpu_call(step, tensors)}) return {failure};"
    if isinstance(step, Copy):
        target, source = _pointer(step.destination, tensors), _pointer(step.source, tensors)
        return f"memcpy({target}, {source}, (size_t)({dim_expression(step.nbytes)}));"
    arguments = _arguments(step, tensors)
    symbol = clones.get(step.symbol, step.symbol)
    if step.parallel:
        values = ", ".join(arguments)
        extent = dim_expression(step.extent or 0)
        name = f"task_{symbol}"
        return (
            f"{{ const {name}_arguments a = {{ {values} }};"
            f" if (pk_for(call, {name}, &a, {extent})) return {failure}; }}"
        )
    if step.extent is not None:
        arguments += ["0", dim_expression(step.extent)]
    return f"if ({symbol}({', '.join(arguments)})) return {failure};"


def _gpu_call(step: Call | Copy, tensors: Tensors) -> str:
    if isinstance(step, Copy):
        target, source = _pointer(step.destination, tensors), _pointer(step.source, tensors)
        return f"pk_cuda_copy(call->cuda, {target}, {source}, (uint64_t)({dim_expression(step.nbytes)}))"
    return f"{step.symbol}({', '.join(['call->cuda', *_arguments(step, tensors)])})"


def _arguments(step: Call, tensors: Tensors) -> list[str]:
    chosen = [] if step.selection is None else [f"call->selection[{step.selection}]"]
    pointers = [_pointer(operand, tensors) for operand in step.operands]
    return [*pointers, *map(dim_expression, step.scalars), *chosen]


def _pointer(operand: Memory, tensors: Tensors) -> str:
    if isinstance(operand, Choice):
        then, otherwise = _pointer(operand.then, tensors), _pointer(operand.otherwise, tensors)
        if then == otherwise:
            return then
        return f"(dim_{operand.taken} ? (void *)({then}) : (void *)({otherwise}))"
    match operand.space:
        case "input" | "output":
            return tensors[operand]
        case "arena":
            return f"call->arena + {operand.value}"
        case "state":
            return f"call->states + {operand.value}"
    return f"(void *)call->constants[{operand.value}]"
