"""Render the C entrypoint and the data sections of a bundle from its call plan."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packager.constants import fixed_reason
from packager.cpu_levels import level_identifier
from packager.dtypes import DTYPES
from packager.header import ENVIRONMENT, c_string, comment_text
from packager.ir import Call, CallPlan, ConstantSlot, ConstantTable, Copy, CudaCode, Extent, ExternalWeights, Operand
from packager.manifest import Dim, TensorSpec
from packager.manifest_section import SECTION_HEADER
from packager.primitives import CudaModule, PrimitiveFunction
from packager.symbolic import extent_interval


@dataclass(frozen=True)
class DataSection:
    """A section of the bundle: ``content`` is an assembler directive."""

    name: str
    flags: str
    symbols: tuple[str, ...]
    content: str


@dataclass(frozen=True)
class EntryLevel:
    """A CPU level as the entrypoint has it: what its sessions need, and the forms of all functions by their symbols."""

    name: str
    cpu_features: tuple[str, ...]
    forms: Mapping[str, str]


def render(template: str, **values: Any) -> str:
    """Render a template of ``templates/``."""
    return ENVIRONMENT.get_template(template).render(values)


def render_entrypoint(
    plan: CallPlan,
    *,
    entry_symbol: str,
    manifest_bytes: int,
    cpu_features: Sequence[str],
    levels: Sequence[EntryLevel] = (),
    external: ExternalWeights | None,
    cuda: CudaCode | None = None,
    cuda_modules: Sequence[CudaModule] = (),
) -> str:
    """Return the C source of the entrypoint. ``manifest_bytes`` is the room for the manifest's text.

    ``levels`` are the CPU levels, the least first, each with a run of its own: what a run calls is then decided before
    it begins. With ``cuda`` the calls are launches on the GPU, and there are no levels.
    """
    on_gpu = cuda is not None
    dims = _dim_views(plan)
    inputs = [_tensor_view(f"input_{i}", spec, plan.dims) for i, spec in enumerate(plan.inputs)]
    outputs = [_tensor_view(f"output_{i}", spec, plan.dims) for i, spec in enumerate(plan.outputs)]
    embedded = plan.constants.nbytes > 0 and external is None
    slots, forms = _slot_views(plan.constants)
    constants, constant_shapes = _constant_views(plan.constants)
    return render(
        "entrypoint.c.j2",
        name=comment_text(plan.source.name),
        c_name=c_string(plan.source.name),
        entry_symbol=entry_symbol,
        functions=[view for function in plan.functions for view in _function_views(function, levels, on_gpu)],
        tasks=_task_views(plan.steps, levels),
        runs=_run_views(plan.steps, levels, on_gpu),
        levels=_level_views(levels, cpu_features),
        step_names=[step.symbol if isinstance(step, Call) else "copy" for step in plan.steps],
        dims=dims,
        tensors=[*inputs, *outputs],
        inputs=inputs,
        outputs=outputs,
        extents=[_c_extent(extent) for spec in (*plan.inputs, *plan.outputs) for extent in spec.shape],
        shapes="shapes" if dims else "0",
        cpu_features=cpu_features,
        manifest_header_bytes=SECTION_HEADER.size,
        manifest_bytes=manifest_bytes,
        arena_bytes=plan.arena_bytes,
        candidates=[len(selected.candidates) for selected in plan.selection],
        constant_bytes=plan.constants.nbytes,
        named_constants=constants,
        constant_shapes=constant_shapes,
        slots=slots,
        forms=forms,
        embedded_constants="pk_constants" if embedded else "0",
        external="&external_weights" if external else "0",
        external_weights=_external_text(external),
        cuda=_cuda_view(cuda, cuda_modules) if cuda else None,
    )


def render_data(sections: Sequence[DataSection]) -> str:
    """Return the assembly source of the data sections."""
    return render("data.S.j2", sections=sections)


def _cuda_view(cuda: CudaCode, modules: Sequence[CudaModule]) -> dict[str, Any]:
    """Return the modules, whose kernels are numbered through, and what the runtime asks of the driver."""
    firsts = [sum(module.kernels for module in modules[:index]) for index in range(len(modules))]
    return {
        "modules": [{"name": m.symbol, "first": first} for m, first in zip(modules, firsts, strict=True)],
        "driver": cuda.driver,
        "code": c_string(cuda.description),
    }


def _level_views(levels: Sequence[EntryLevel], every: Sequence[str]) -> list[dict[str, Any]]:
    """Return the levels, each with what it asks of the CPU beside what ``every`` session does."""
    return [
        {
            "name": c_string(level.name),
            "number": number,
            "features": [name for name in level.cpu_features if name not in every],
            "run": _run_name(level, number),
        }
        for number, level in enumerate(levels)
    ]


def _run_name(level: EntryLevel, number: int) -> str:
    return f"run_{level_identifier(level.name)}" if number else "run"


def _run_views(steps: Sequence[Call | Copy], levels: Sequence[EntryLevel], on_gpu: bool) -> list[dict[str, Any]]:
    """Return the function that calls everything, for each level."""
    if not levels:
        return [{"name": "run", "steps": [_step_text(i, step, {}, on_gpu) for i, step in enumerate(steps)]}]
    return [
        {
            "name": _run_name(level, number),
            "steps": [_step_text(i, step, level.forms, on_gpu) for i, step in enumerate(steps)],
        }
        for number, level in enumerate(levels)
    ]


def _forms(symbol: str, levels: Sequence[EntryLevel]) -> list[str]:
    """Return the forms of a function, each once, the least first."""
    return list(dict.fromkeys(level.forms.get(symbol, symbol) for level in levels)) or [symbol]


def _function_views(function: PrimitiveFunction, levels: Sequence[EntryLevel], on_gpu: bool) -> list[dict[str, str]]:
    view = _function_view(function, on_gpu)
    return [view | {"symbol": form} for form in _forms(function.symbol, levels)]


def _function_view(function: PrimitiveFunction, on_gpu: bool) -> dict[str, str]:
    pointers = ["void *" if parameter.written else "const void *" for parameter in function.parameters]
    others = (2 if function.extent is not None else 0) + (1 if function.candidates else 0)
    integers = ["int64_t"] * (len(function.scalars) + others)
    first = ["pk_cuda_t *"] if on_gpu else []
    return {"symbol": function.symbol, "parameters": ", ".join([*first, *pointers, *integers]) or "void"}


def _swappable(table: ConstantTable) -> tuple[TensorSpec, ...]:
    """Return the constants of the model that a session can swap; the manifest tells of the others."""
    return tuple(spec for spec in table.named if fixed_reason(table, spec.name) is None)


def _constant_views(table: ConstantTable) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the constants that can be swapped as the ABI tells of them, and the shapes that they refer to."""
    shapes: dict[tuple[int | str, ...], int] = {}
    views = [
        {
            "name": c_string(spec.name),
            "dtype": _dtype(spec.dtype),
            "ndim": len(spec.shape),
            "shape": shapes.setdefault(spec.shape, len(shapes)),
        }
        for spec in _swappable(table)
    ]
    return views, [_list(_c_extent(extent) for extent in shape) for shape in shapes]


def _slot_views(table: ConstantTable) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the slots, and the numbers of all forms one after the other."""
    numbers: dict[str, int] = {spec.name: number for number, spec in enumerate(_swappable(table))}
    places: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    forms: list[str] = []

    def view(slot: ConstantSlot) -> dict[str, Any]:
        values = {"name": comment_text(slot.name), "offset": slot.offset, "nbytes": slot.nbytes}
        if slot.form is None or slot.form.source not in numbers:
            return values | {"source": -1, "ndim": 0, "form": 0, "first": 0}
        key = (slot.form.extents, slot.form.strides)
        if key not in places:
            places[key] = sum(len(extents) * 2 for extents, _ in places)
            forms.append(", ".join(map(_c_extent, (*slot.form.extents, *slot.form.strides))))
        place = {"ndim": len(slot.form.extents), "form": places[key], "first": _c_extent(slot.form.offset)}
        return values | {"source": numbers[slot.form.source]} | place

    return [view(slot) for slot in table.slots], forms


def _task_views(steps: Sequence[Call | Copy], levels: Sequence[EntryLevel]) -> list[dict[str, str]]:
    """Return one task per kernel that runs in parallel somewhere: calls differ in their arguments alone."""
    calls = {step.symbol: step for step in steps if isinstance(step, Call) and step.parallel}
    return [_task_view(call, form) for call in calls.values() for form in _forms(call.symbol, levels)]


def _task_view(call: Call, form: str) -> dict[str, str]:
    pointers = [f"p{i}" for i in range(len(call.operands))]
    scalars = [f"s{i}" for i in range(len(call.scalars) + (call.selection is not None))]
    fields = [f"void *{name};" for name in pointers] + [f"int64_t {name};" for name in scalars]
    return {
        "name": f"task_{form}",
        "symbol": form,
        "fields": " ".join(fields),
        "forwarded": ", ".join(f"a->{name}" for name in [*pointers, *scalars]),
    }


def _step_text(index: int, step: Call | Copy, forms: Mapping[str, str], on_gpu: bool) -> str:
    failure = index + 1
    if on_gpu:
        return f"pk_cuda_step(call->cuda, {failure}); if ({_gpu_call(step)}) return {failure};"
    if isinstance(step, Copy):
        target, source = _pointer(step.destination), _pointer(step.source)
        return f"memcpy({target}, {source}, (size_t)({_c_extent(step.nbytes)}));"
    arguments = _arguments(step)
    symbol = forms.get(step.symbol, step.symbol)
    if step.parallel:
        values = ", ".join(arguments)
        extent = _c_extent(step.extent or 0)
        name = f"task_{symbol}"
        return (
            f"{{ const {name}_arguments a = {{ {values} }};"
            f" if (pk_for(call, {name}, &a, {extent})) return {failure}; }}"
        )
    if step.extent is not None:
        arguments += ["0", _c_extent(step.extent)]
    return f"if ({symbol}({', '.join(arguments)})) return {failure};"


def _gpu_call(step: Call | Copy) -> str:
    if isinstance(step, Copy):
        target, source = _pointer(step.destination), _pointer(step.source)
        return f"pk_cuda_copy(call->cuda, {target}, {source}, (uint64_t)({_c_extent(step.nbytes)}))"
    return f"{step.symbol}({', '.join(['call->cuda', *_arguments(step)])})"


def _arguments(step: Call) -> list[str]:
    chosen = [] if step.selection is None else [f"call->selection[{step.selection}]"]
    return [*map(_pointer, step.operands), *map(_c_extent, step.scalars), *chosen]


def _pointer(operand: Operand) -> str:
    match operand.space:
        case "input":
            return f"call->inputs[{operand.value}]"
        case "output":
            return f"call->outputs[{operand.value}]"
        case "arena":
            return f"call->arena + {operand.value}"
    return f"(void *)call->constants[{operand.value}]"


def _dim_views(plan: CallPlan) -> list[dict[str, Any]]:
    views = []
    for dim in plan.dims:
        place = next(
            (index, axis)
            for index, spec in enumerate(plan.inputs)
            for axis, extent in enumerate(spec.shape)
            if extent == dim.name
        )
        views.append(
            {
                "c_name": f"dim_{dim.name}",
                "name": c_string(dim.name),
                "min": dim.min,
                "max": dim.max,
                "input": place[0],
                "axis": place[1],
            }
        )
    return views


def _tensor_view(c_name: str, spec: TensorSpec, dims: Sequence[Dim]) -> dict[str, str]:
    by_name = {dim.name: dim for dim in dims}
    intervals = [extent_interval(extent, by_name) for extent in spec.shape]
    static = [isinstance(extent, int) for extent in spec.shape]
    return {
        "c_name": c_name,
        "shape": _list(str(e) if s else "PACKAGER_DIM_SYMBOLIC" for e, s in zip(spec.shape, static, strict=True)),
        "min_shape": _list(str(low) for low, _ in intervals),
        "max_shape": _list(str(high) for _, high in intervals),
        "dims": _list("0" if s else c_string(str(e)) for e, s in zip(spec.shape, static, strict=True)),
        "info": (
            f"{{ {c_string(spec.name)}, {_dtype(spec.dtype)}, {len(spec.shape)}, "
            f"{c_name}_shape, {c_name}_min, {c_name}_max, {c_name}_dims }}"
        ),
    }


def _dtype(name: str) -> str:
    dtype = DTYPES[name]
    return f"{{ {dtype.code}, {dtype.bits}, 1 }}"


def _list(items: Any) -> str:
    return ", ".join(items) or "0"  # C has no empty arrays; a scalar's ndim is 0, so the entry is never read


def _c_extent(extent: Extent) -> str:
    """Return a C expression for an extent over dims, which are ``dim_<name>``."""
    return c_expression(extent, "dim_")


def c_expression(extent: Extent, prefix: str = "") -> str:
    """Return a C expression for an extent; its names get ``prefix``, division rounds down."""
    if isinstance(extent, int):
        return f"INT64_C({extent})" if abs(extent) >= 2**31 else str(extent)
    return _c_expression(ast.parse(extent, mode="eval").body, prefix)


def _c_expression(node: ast.expr, prefix: str) -> str:
    match node:
        case ast.Constant(value=int(value)):
            return c_expression(value)
        case ast.Name(id=name):
            return f"{prefix}{name}"
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _c_expression(left, prefix), _c_expression(right, prefix)
            functions = {ast.FloorDiv: "pk_floordiv", ast.Mod: "pk_floormod"}
            if type(op) in functions:
                return f"{functions[type(op)]}({a}, {b})"
            return f"({a} { {ast.Add: '+', ast.Sub: '-', ast.Mult: '*'}[type(op)] } {b})"
        case ast.Call(func=ast.Name(id=name), args=args):
            return f"pk_{name}({', '.join(_c_expression(argument, prefix) for argument in args)})"
    raise AssertionError(ast.dump(node))  # symbolic.to_extent writes nothing else


def _external_text(external: ExternalWeights | None) -> str:
    if external is None:
        return ""
    data = ", ".join(map(str, external.header))
    return (
        f"static const uint8_t external_header[] = {{ {data} }};\n"
        f"static const pk_external_weights_t external_weights = {{ {c_string(external.file_name)}, "
        f"UINT64_C({external.file_bytes}), {len(external.header)}, external_header }};"
    )
