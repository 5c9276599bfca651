"""Renders the C entrypoint of a bundle from its call plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from packager.bundle.buckets import shown_sizes
from packager.bundle.dtypes import DTYPES
from packager.bundle.manifest import Dim, RunTimeExtent, TensorSpec
from packager.bundle.section import SECTION_HEADER
from packager.codegen.c_text import dim_expression
from packager.codegen.escape import CText, c_string, comment_text, joined
from packager.codegen.templates import render
from packager.graph import symbolic
from packager.ir.call_plan import Call, CallPlan, Check, Copy, EntryPlan
from packager.ir.constants import ConstantSlot, ConstantTable, fixed_reason
from packager.ir.link_plan import NO_LIBRARIES, CudaCode, ExternalWeights, LoadedLibraries
from packager.ir.primitives import CudaModule
from packager.ir.shapes import Extent
from packager.link.control import FAILS
from packager.link.loaded_libraries import loaded_view
from packager.link.runs import EntryLevel, count_loops, function_views, level_views, run_views, task_views


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
    loaded: LoadedLibraries = NO_LIBRARIES,
) -> str:
    """Return the C source of the entrypoint. ``manifest_bytes`` is the capacity for the manifest's text.

    ``levels`` are the CPU levels in increasing order; each has its own run function, so that dispatch happens once per
    session. With ``cuda`` the calls are launches on the GPU, and there are no levels.
    """
    on_gpu = cuda is not None
    states = [
        _tensor_view(
            f"state_{i}", TensorSpec(state.spec.name, state.spec.dtype, state.spec.shape), (), state.spec.shape
        )
        | {"offset": state.spec.offset, "nbytes": state.spec.bytes, "slot": -1 if state.slot is None else state.slot}
        for i, state in enumerate(plan.states)
    ]
    embedded = plan.constants.nbytes > 0 and external is None
    slots, forms = _slot_views(plan.constants)
    constants, constant_shapes = _constant_views(plan.constants)
    return render(
        "entrypoint/entrypoint.c.j2",
        name=comment_text(plan.source.name),
        c_name=c_string(plan.source.name),
        entry_symbol=entry_symbol,
        entries=[_entry_view(i, entry, levels, on_gpu) for i, entry in enumerate(plan.entries)],
        functions=[view for function in plan.functions for view in function_views(function, levels, on_gpu)],
        tasks=task_views([step for entry in plan.entries for run in entry.runs() for step in run.steps], levels),
        levels=level_views(levels, cpu_features),
        cpu_features=cpu_features,
        manifest_header_bytes=SECTION_HEADER.size,
        manifest_bytes=manifest_bytes,
        arena_bytes=plan.arena_bytes,
        candidates=plan.count_alternatives(),
        constant_bytes=plan.constants.nbytes,
        named_constants=constants,
        constant_shapes=constant_shapes,
        slots=slots,
        forms=forms,
        embedded_constants="pk_constants" if embedded else "0",
        external=_external_view(external),
        states=states,
        state_bytes=plan.state_bytes,
        cuda=_cuda_view(cuda, cuda_modules) if cuda else None,
        loaded=loaded_view(loaded),
    )


def _entry_view(number: int, entry: EntryPlan, levels: Sequence[EntryLevel], on_gpu: bool) -> dict[str, Any]:
    """Return the template view of an entry. C names are prefixed with its number, except the first's."""
    prefix = f"entry_{number}_" if number else ""
    variants = [
        _run_view(f"{prefix}variant_{i}_", variant, entry, levels, on_gpu) for i, variant in enumerate(entry.variants)
    ]
    return _run_view(prefix, entry, entry, levels, on_gpu) | {
        "c_name": c_string(entry.name),
        "functions": {
            "run": f"{prefix}run_session" if number else "pk_session_run",
            "output_shape": f"{prefix}output_shape" if number else "pk_session_output_shape",
            "profile": f"{prefix}profile" if number else "pk_session_profile",
        },
        "variants": variants,
        "bucketed": [view for view in _dim_views(entry) if view["sizes"]],
    }


def _run_view(
    prefix: str, run: EntryPlan, entry: EntryPlan, levels: Sequence[EntryLevel], on_gpu: bool
) -> dict[str, Any]:
    """Return the template view of a run: of ``entry``, or of a variant, whose extents use the entry's dim names."""
    bounds = _bounds(run)
    inputs = [
        _tensor_view(f"{prefix}input_{i}", spec, bounds, own.shape)
        for i, (spec, own) in enumerate(zip(run.inputs, entry.inputs, strict=True))
    ]
    outputs = [
        _tensor_view(f"{prefix}output_{i}", spec, bounds, own.shape)
        for i, (spec, own) in enumerate(zip(run.outputs, entry.outputs, strict=True))
    ]
    dims, room = _dim_views(run), _room(run)
    checked = {step.number for step in run.steps if isinstance(step, Check)}
    return {
        "prefix": prefix,
        "sizes": comment_text(shown_sizes(run.sizes)),
        "runs": run_views(run, levels, on_gpu, prefix),
        "step_names": [
            step.symbol if isinstance(step, Call) else "copy" for step in run.steps if isinstance(step, Call | Copy)
        ],
        "dims": dims,
        "inputs": inputs,
        "outputs": outputs,
        "extents": [dim_expression(extent) for spec in (*run.inputs, *run.outputs) for extent in spec.shape],
        "shapes": f"{prefix}shapes" if dims or run.extents else "0",
        "room": [dim_expression(room(extent)) for spec in (*run.inputs, *run.outputs) for extent in spec.shape],
        "computed": [_extent_view(extent) for extent in run.extents],
        "loops": count_loops(run),
        "conditions": [_condition_view(i, run, i in checked) for i in range(len(run.conditions))],
        "checks_in_run": bool(run.extents),
        "batches": _batches_view(run),
        "lane_bytes": run.lane_bytes,
    }


def _batches_view(run: EntryPlan) -> dict[str, int] | None:
    """Return the number of micro-batches: a constant, or the 1-based index of the dim that holds it."""
    count = run.batches.count
    if count == 1:
        return None
    if isinstance(count, int):
        return {"fixed": count, "dim": 0}
    return {"fixed": 0, "dim": 1 + [dim.name for dim in run.dims].index(count)}


def _bounds(run: EntryPlan) -> tuple[Dim, ...]:
    """Return the bounds of the dims, and of the run-time extents."""
    known = {dim.name: dim for dim in run.dims}
    for extent in run.extents:
        known[extent.name] = Dim(extent.name, 0, symbolic.extent_interval(extent.bound, known)[1])
    return tuple(known.values())


def _room(run: EntryPlan) -> Callable[[Extent], Extent]:
    """Return a function from an extent to its largest value over all run-time extents, as an extent over the dims."""
    dims = {dim.name: dim for dim in _bounds(run)}
    bounds: dict[str, tuple[Extent, Extent]] = {}
    for extent in run.extents:
        bounds[extent.name] = 0, symbolic.room(extent.bound, bounds, dims)
    return lambda extent: symbolic.room(extent, bounds, dims)


def _extent_view(extent: RunTimeExtent) -> dict[str, str]:
    return {"c_name": f"dim_{extent.name}", "text": c_string(f"{extent.name} of {extent.node}")}


def _condition_view(index: int, run: EntryPlan, in_run: bool) -> dict[str, Any]:
    condition = run.conditions[index]
    return {
        "number": index + 1,
        "in_run": in_run,
        "left": dim_expression(condition.left),
        "right": dim_expression(condition.right),
        "fails": FAILS[condition.operator],
        "text": c_string(f"{condition.node}: {condition.text}"),
    }


def _cuda_view(cuda: CudaCode, modules: Sequence[CudaModule]) -> dict[str, Any]:
    """Return the modules, with kernels numbered consecutively, and the runtime's requirements on the driver."""
    firsts = [sum(module.kernels for module in modules[:index]) for index in range(len(modules))]
    return {
        "modules": [{"name": m.symbol, "first": first} for m, first in zip(modules, firsts, strict=True)],
        "driver": cuda.driver,
        "code": c_string(cuda.description),
    }


def _swappable(table: ConstantTable) -> tuple[TensorSpec, ...]:
    """Return the model's constants that a session can swap; the others are only in the manifest."""
    return tuple(spec for spec in table.named if fixed_reason(table, spec.name) is None)


def _constant_views(table: ConstantTable) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the ABI descriptions of the constants that can be swapped, and their shape arrays."""
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
    return views, [_list(dim_expression(extent) for extent in shape) for shape in shapes]


def _slot_views(table: ConstantTable) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the slots, and the concatenated extents and strides of all views."""
    numbers: dict[str, int] = {spec.name: number for number, spec in enumerate(_swappable(table))}
    places: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    forms: list[str] = []

    def view(slot: ConstantSlot) -> dict[str, Any]:
        values = {"name": comment_text(slot.name), "offset": slot.offset, "nbytes": slot.nbytes}
        if slot.view is None or slot.view.source not in numbers:
            return values | {"source": -1, "ndim": 0, "form": 0, "first": 0}
        key = (slot.view.extents, slot.view.strides)
        if key not in places:
            places[key] = sum(len(extents) * 2 for extents, _ in places)
            forms.append(", ".join(map(dim_expression, (*slot.view.extents, *slot.view.strides))))
        place = {"ndim": len(slot.view.extents), "form": places[key], "first": dim_expression(slot.view.offset)}
        return values | {"source": numbers[slot.view.source]} | place

    return [view(slot) for slot in table.slots], forms


def _dim_views(entry: EntryPlan) -> list[dict[str, Any]]:
    views = []
    for dim in entry.dims:
        place = next(
            (index, axis)
            for index, spec in enumerate(entry.inputs)
            for axis, extent in enumerate(spec.shape)
            if extent == dim.name
        )
        views.append(
            {
                "c_name": f"dim_{dim.name}",
                "name": c_string(dim.name),
                "min": dim.min,
                "max": dim.max,
                "sizes": dim.buckets,
                "input": place[0],
                "axis": place[1],
            }
        )
    return views


def _tensor_view(c_name: str, spec: TensorSpec, dims: Sequence[Dim], shown: Sequence[Extent]) -> dict[str, Any]:
    """Return the description of a tensor; ``shown`` are its extents for display."""
    by_name = {dim.name: dim for dim in dims}
    intervals = [symbolic.extent_interval(extent, by_name) for extent in spec.shape]
    static = [isinstance(extent, int) for extent in spec.shape]
    return {
        "c_name": c_name,
        "shape": _list(str(e) if s else "PACKAGER_DIM_SYMBOLIC" for e, s in zip(spec.shape, static, strict=True)),
        "min_shape": _list(str(low) for low, _ in intervals),
        "max_shape": _list(str(high) for _, high in intervals),
        "dims": _list("0" if isinstance(extent, int) else c_string(extent) for extent in shown),
        "name": c_string(spec.name),
        "dtype": _dtype(spec.dtype),
        "ndim": len(spec.shape),
    }


def _dtype(name: str) -> str:
    dtype = DTYPES[name]
    return f"{{ {dtype.code}, {dtype.bits}, 1 }}"


def _list(items: Iterable[str]) -> CText:
    return joined(items) or CText("0")  # C has no empty arrays; ndim is 0, so the element is never read


def _external_view(external: ExternalWeights | None) -> dict[str, Any] | None:
    if external is None:
        return None
    return {
        "name": c_string(external.file_name),
        "bytes": external.file_bytes,
        "header": joined(external.header),
        "header_bytes": len(external.header),
    }
