"""Template views of the entrypoint's run functions, per CPU level, and of the tasks of parallel loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packager.bundle.isa.levels import level_identifier
from packager.codegen.c_text import dim_expression
from packager.codegen.escape import c_string
from packager.ir.call_plan import Call, Copy, EntryPlan, Iteration, LoopBegin, LoopEnd, ReadExtent, Step
from packager.ir.primitives import PrimitiveFunction
from packager.link.control import LINE, conditions, control_text
from packager.link.pointers import Tensors, pointer, tensors_of
from packager.link.reads import fetch_text, reads_together
from packager.link.segments import Segment, split, waits


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
    """Return the loops of a run in which the host has a part."""
    return sum(isinstance(step, LoopBegin | LoopEnd) and waits(step) for step in run.steps)


def run_views(run: EntryPlan, levels: Sequence[EntryLevel], on_gpu: bool, prefix: str) -> list[dict[str, Any]]:
    """Return the run function of each level; on a GPU with the functions of its segments."""
    if on_gpu:
        return [_gpu_view(run, prefix)]
    tensors = tensors_of(run)

    def steps(clones: Mapping[str, str]) -> list[dict[str, Any]]:
        views, number = [], 0
        for step in run.steps:
            if isinstance(step, Call | Copy):
                number += 1
                text = f"{_step_text(number, step, clones, tensors, on_gpu=False)}{LINE}pk_returned(call, {number});"
                views.append({"text": _guarded(step, text)})
            else:
                views.append({"text": control_text(number, step, run, tensors, on_gpu=False)})
        return views

    if not levels:
        return [{"name": f"{prefix}run", "steps": steps({}), "segments": ()}]
    names = ["run", *(f"run_{level_identifier(level.name)}" for level in levels[1:])]
    named = zip(names, levels, strict=True)
    return [{"name": prefix + name, "steps": steps(level.clones), "segments": ()} for name, level in named]


def _gpu_view(run: EntryPlan, prefix: str) -> dict[str, Any]:
    """Return the run function of a GPU: segments, and what is between."""
    tensors, parts = tensors_of(run), split(run)
    steps = [part if isinstance(part, Segment) else part[1] for part in parts]
    places = {extent.name: place for place, extent in enumerate(run.extents)}
    texts, segments, fetched = [], [], 0
    for place, part in enumerate(parts):
        if isinstance(part, Segment):
            name = f"{prefix}segment_{part.number}"
            texts.append(_segment_text(part, name))
            inner = [_gpu_text(number, step, run, tensors) for number, step in part.steps]
            keys = [{"c_name": f"dim_{key}", "place": places[key]} for key in part.keys]
            segments.append({"name": name, "texts": inner, "extents": keys})
            continue
        number, step = part
        if place >= fetched and isinstance(step, ReadExtent):
            group, fetched = reads_together(steps, place)
            texts += _fetch_texts(group, max(number, 1), tensors)
        texts.append(_gpu_text(number, step, run, tensors))
    return {"name": f"{prefix}run", "steps": [{"text": text} for text in texts], "segments": segments}


def _fetch_texts(group: Sequence[ReadExtent], failure: int, tensors: Tensors) -> list[str]:
    """Return the text that fetches extents from the device, if the host does not know them."""
    sources = [(read, read.source) for read in group if not isinstance(read.source, Iteration | int | str)]
    if not sources:
        return []
    pointers = [pointer(source, tensors) for _, source in sources]
    text = fetch_text(pointers, [f"&call->extents[{read.number}]" for read, _ in sources], failure)
    taken = " && ".join(conditions(sources[0][0].branch))
    return [f"if ({taken}) {text}" if taken else text]


def _gpu_text(number: int, step: Step, run: EntryPlan, tensors: Tensors) -> str:
    if isinstance(step, Call | Copy):
        return _guarded(step, _step_text(max(number, 1), step, {}, tensors, on_gpu=True))
    return control_text(number, step, run, tensors, on_gpu=True)


def _segment_text(segment: Segment, name: str) -> str:
    """Return the text that runs a segment."""
    keys = ", ".join(f"dim_{key}" for key in segment.keys)
    values = f"(const int64_t[]){{{keys}}}" if keys else "0"
    arguments = f"call, {segment.number}, {dim_expression(segment.launches)}, {len(segment.keys)}, {values}, {name}"
    return f"{{ const int32_t failed = pk_cuda_segment({arguments}); if (failed) return failed; }}"


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


def _guarded(step: Call | Copy, text: str) -> str:
    """Return the text of a step that is left out if it would write nothing."""
    if isinstance(step, Copy):
        return text
    needed = conditions(step.branch)
    if step.unless_empty is not None:
        needed.append(f"{dim_expression(step.unless_empty)} > 0")
    return f"if ({' && '.join(needed)}) {{ {text} }}" if needed else text


def _step_text(number: int, step: Call | Copy, clones: Mapping[str, str], tensors: Tensors, on_gpu: bool) -> str:
    failure = number
    if on_gpu:
        return f"pk_cuda_step(call->cuda, {failure}); if ({_gpu_call(step, tensors)}) return {failure};"
    if isinstance(step, Copy):
        target, source = pointer(step.destination, tensors), pointer(step.source, tensors)
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
        target, source = pointer(step.destination, tensors), pointer(step.source, tensors)
        return f"pk_cuda_copy(call->cuda, {target}, {source}, (uint64_t)({dim_expression(step.nbytes)}))"
    return f"{step.symbol}({', '.join(['call->cuda', *_arguments(step, tensors)])})"


def _arguments(step: Call, tensors: Tensors) -> list[str]:
    chosen = [] if step.selection is None else [f"call->selection[{step.selection}]"]
    pointers = [pointer(operand, tensors) for operand in step.operands]
    return [*pointers, *map(dim_expression, step.scalars), *chosen]
