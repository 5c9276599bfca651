"""C text of what is done between calls: reads and checks of run-time extents, begins and ends of loops."""

from __future__ import annotations

from packager.codegen.c_text import dim_expression
from packager.ir.call_plan import (
    Branch,
    Check,
    Copy,
    EntryPlan,
    Iteration,
    LoopBegin,
    LoopEnd,
    Memory,
    ReadExtent,
)
from packager.link.pointers import Tensors, index_text, pointer, subject_text
from packager.link.reads import fetch_text

LINE = "\n  "
# The C operator that holds if a condition does not.
FAILS = {"==": "!=", "<=": ">"}


def control_text(
    done: int, step: ReadExtent | Check | LoopBegin | LoopEnd, run: EntryPlan, tensors: Tensors, on_gpu: bool
) -> str:
    """Return the text of what is done between calls, after ``done`` of them."""
    if isinstance(step, LoopBegin | LoopEnd):
        return _loop_text(done, step, run, tensors, on_gpu)
    return _extent_text(step, run, tensors, on_gpu)


def conditions(branch: Branch) -> list[str]:
    """Return C conditions that hold in runs that take a branch."""
    return [f"{subject_text(subject)} == {value}" for subject, value in branch]


def _loop_text(done: int, step: LoopBegin | LoopEnd, run: EntryPlan, tensors: Tensors, on_gpu: bool) -> str:
    """Return the text that begins or ends a loop, after ``done`` calls."""
    failure = max(done, 1)

    def at(memory: Memory) -> str:
        return pointer(memory, tensors)

    def write(memory: Memory, value: str) -> str:
        if on_gpu:
            return f"if (pk_cuda_store(call->cuda, {at(memory)}, {value})) return {failure};"
        return f"*(int64_t *)({at(memory)}) = {value};"

    def read(*values: tuple[str, Memory]) -> str:
        if not on_gpu:
            return LINE.join(f"{name} = *(const int64_t *)({at(memory)});" for name, memory in values)
        return fetch_text([at(memory) for _, memory in values], [f"&{name}" for name, _ in values], failure)

    def copy(target: str, source: str, size: str) -> str:
        if on_gpu:
            return f"if (pk_cuda_copy(call->cuda, {target}, {source}, (uint64_t)({size}))) return {failure};"
        return f"memcpy({target}, {source}, (size_t)({size}));"

    def move(moved: Copy) -> str:
        return copy(at(moved.destination), at(moved.source), dim_expression(moved.nbytes))

    name = f"loop_{step.number}"
    if isinstance(step, LoopBegin):
        scalars = [(f"{name}_going", step.going)] if step.going is not None else []
        trip = dim_expression(step.trip) if isinstance(step.trip, int | str) else "0"
        if not isinstance(step.trip, int | str):
            scalars.append((f"{name}_trip", step.trip))
        return LINE.join(
            [
                f"int64_t {name}_trip = {trip}, {name}_going = 1, {name} = 0;",
                *([read(*scalars)] if scalars else []),
                *(write(memory, dim_expression(value)) for memory, value in step.extents),
                *map(move, step.states),
                f"for (; {name}_going && {name} < {name}_trip; ++{name}) {{",
                *([] if step.index is None else [write(step.index, name)]),
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
                copy(f"(uint8_t *){at(c.destination)} + {name} * ({size})", at(c.source), size)
                for c in step.scanned
                for size in [dim_expression(c.nbytes)]
            ),
            *(f"const int64_t {name}_next_{i} = {value};" for i, value in enumerate(values)),
            *map(move, step.states),
            *(write(memory, f"{name}_next_{i}") for i, (memory, *_) in enumerate(step.extents)),
            *([] if step.again is None else [read((f"{name}_going", step.again))]),
            "}",
            *([] if step.count is None else [write(step.count, name)]),
            *(copy(at(final), at(source), "8") for final, source in step.finals),
        ]
    )


def _extent_text(step: ReadExtent | Check, run: EntryPlan, tensors: Tensors, on_gpu: bool) -> str:
    """Return the text that reads a run-time extent, or checks a condition on such."""
    if isinstance(step, Check):
        condition = run.conditions[step.number]
        left, right = dim_expression(condition.left), dim_expression(condition.right)
        fails = " && ".join([*conditions(step.branch), f"{left} {FAILS[condition.operator]} {right}"])
        return f"if ({fails}) return pk_broken(call, {step.number}, {left}, {right});"
    extent = run.extents[step.number]
    if isinstance(step.source, Iteration | int | str):
        read = f"call->extents[{step.number}] = {index_text(step.source)};"
    elif on_gpu:  # it was copied to the host before: fetch_text
        read = ""
    else:
        read = f"call->extents[{step.number}] = *(const int64_t *)({pointer(step.source, tensors)});"
    if step.branch:
        taken = " && ".join(conditions(step.branch))
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
