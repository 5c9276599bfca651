"""Lower the operators that no backend took to a flat sequence of calls of scheduled PrimFuncs, split into kernels."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.s_tir import ScheduleError
from tvm.tirx.buffer import is_buffer_var

from packager.custom_ops.library import called_operator
from packager.errors import ModelError, UnsupportedOperatorsError, last_line
from packager.graph.control_flow import is_computed, is_control_flow
from packager.graph.dataflow import bindings_of, called_function
from packager.graph.rewrite import apply
from packager.ir.model import CallSource, LoweredModel, PartitionedModel
from packager.ir.pattern_kinds import OPAQUE
from packager.ir.primitives import CallSite, FunctionGroup, Kernel
from packager.lower.devices import DEVICES, Device
from packager.lower.kernels import make_group
from packager.lower.legalize.recurrent import expand_recurrent
from packager.lower.legalize.reshape import rewrite_reshapes
from packager.progress import counted
from packager.transforms.clamp_indices import clamp_indices
from packager.transforms.fold_weights import fold_weights

_R = relax.transform

FUSE = [_R.FuseOps()]
FLATTEN = [
    _R.FuseTIR(),
    rewrite_reshapes,
    _R.ToNonDataflow(),
    _R.RemovePurityChecking(),
]


def lower(model: PartitionedModel, device_name: str = "cpu") -> LoweredModel:
    """Pack and fold weights, legalize, fuse and schedule a model for a device; calls of partitions are kept.

    Raises UnsupportedOperatorsError for operators that TVM cannot lower to a PrimFunc.
    """
    device = DEVICES[device_name]
    sites = _sites(model)
    # Folds again after prepare: packed weights (CPU) and changed layouts are new arithmetic on constants.
    expanded = expand_recurrent(model.module, device.name == "cuda")
    module = device.change_layouts(expanded, len(model.signature.inputs))
    module, constants = fold_weights(module, model.constants)
    module = apply(device.legalize, module)
    _check_legal(module["main"], model.nodes, model.partitions)
    module, sources = _fuse(module, model.nodes)
    for place, binding in enumerate(bindings_of(module["main"])):
        callee = called_function(binding.value)
        if callee is not None and callee in model.partitions:
            composites = model.partitions[callee].partition.composites
            sources[place] = CallSource(tuple(op for c in composites for op in c.ops), next(sites[callee]).nodes)
    module, sources = device.join(module, sources)
    main = module["main"]
    groups = {name: placed.group for name, placed in model.partitions.items()}
    calls = []
    own: dict[str, Any] = {}
    for binding, source in zip(bindings_of(main), sources, strict=True):
        callee = called_function(binding.value)
        if callee is None or not is_computed(binding.value):
            continue
        calls.append(source)
        if callee not in groups:
            own[callee] = module[callee]
    groups |= _schedule(own, device)
    return LoweredModel(
        signature=model.signature,
        main=main,
        groups=groups,
        weights=model.weights,
        constants=constants,
        tables={f"{o.kind}.{name}": array for o in model.backends for name, array in o.constants.items()},
        call_sources=tuple(calls),
        placement=model.placement,
        device=device.name,
    )


def _fuse(module: tvm.IRModule, nodes: Mapping[str, str]) -> tuple[tvm.IRModule, list[CallSource]]:
    """Fuse operators, and flatten main; return the sources of its bindings, too."""
    try:
        fused = apply(FUSE, module)
        return apply(FLATTEN, fused), _sources(module["main"], fused, nodes)
    except ModelError:
        # FuseTIR fails for some functions with compound extents, whose variables are parameters, too.
        functions = {gv: _unfused(f) if isinstance(f, tvm.tirx.PrimFunc) else f for gv, f in module.functions.items()}
        fused = apply(FUSE, tvm.IRModule(functions))
        return apply(FLATTEN, fused), _sources(module["main"], fused, nodes)


def _unfused(primfunc: tvm.tirx.PrimFunc) -> tvm.tirx.PrimFunc:
    """Keep a function that takes variables of extents as parameters from being fused."""
    takes_extents = not all(is_buffer_var(parameter) for parameter in primfunc.params)
    return primfunc.with_attr("op_pattern", OPAQUE) if takes_extents else primfunc


def _schedule(functions: Mapping[str, Any], device: Device) -> dict[str, FunctionGroup]:
    """Schedule PrimFuncs. Raises ModelError if one cannot be lowered."""
    groups = {}
    with counted("scheduling primitive function", len(functions)) as steps:
        for name, primfunc in functions.items():
            with steps.step():
                groups[name] = _make_kernels(name, clamp_indices(primfunc), device)
    return groups


def _make_kernels(name: str, primfunc: Any, device: Device) -> FunctionGroup:
    """Schedule a PrimFunc and split it into kernels, by the first schedule of the device that lowers.

    Raises ModelError if none does.
    """
    failure = ""
    for schedule in device.schedules:
        try:
            scheduled = schedule(primfunc)
        except (ScheduleError, tvm.error.InternalError) as error:  # it does not apply, or TVM fails at the extents
            failure = failure or last_line(error)
            continue
        try:
            group = make_group(name, scheduled, device.name)
            device.try_lower([function for function in group.functions if isinstance(function, Kernel)])
        except Exception as error:  # TVM raises whatever its C++ side runs into
            failure = failure or last_line(error)
            continue
        return group
    raise ModelError(f"TVM cannot lower the function {name!r}", detail=failure)


def _sites(model: PartitionedModel) -> dict[str, Iterator[CallSite]]:
    """Return the call sites of each partition in the order of main's calls, which all passes keep.

    Variable names are not kept: LiftTransformParams renames the result of main.
    """
    sites: dict[str, list[CallSite]] = {name: [] for name in model.partitions}
    for binding in bindings_of(model.module["main"]):
        callee = called_function(binding.value)
        if callee in sites:
            sites[callee].append(model.sites[binding.var.name])
    return {name: iter(own) for name, own in sites.items()}


def _check_legal(main: relax.Function, nodes: Mapping[str, str], partitions: Container[str]) -> None:
    """Raise UnsupportedOperatorsError if anything but calls of PrimFuncs and partitions, and reshapes, is left."""
    legal = {"relax.call_tir", "relax.call_dps_packed", "relax.reshape"}
    refused: dict[str, list[str]] = {}
    for binding in bindings_of(main):
        value = binding.value
        callee = called_function(value)
        if is_control_flow(value):
            continue
        if callee is not None and value.op.name == "relax.call_dps_packed" and callee not in partitions:
            operator = called_operator(callee)
        elif isinstance(value, relax.Call) and getattr(value.op, "name", "") not in legal:
            operator = str(getattr(value.op, "name", value.op)).removeprefix("relax.")
        elif isinstance(value, relax.If):
            operator = "If"
        else:
            continue
        refused.setdefault(operator, []).append(nodes.get(binding.var.name, binding.var.name))
    if refused:
        raise UnsupportedOperatorsError(refused)


def _sources(unfused: relax.Function, module: tvm.IRModule, nodes: Mapping[str, str]) -> list[CallSource]:
    """Return the operators and source nodes of each binding of main, including those inside fused functions.

    FuseOps keeps the names of the bindings that it moves into a function, except the last, whose value the function
    returns under a new name. FuseTIR and later passes keep main's bindings one to one, in order.
    """
    bindings = bindings_of(module["main"])
    callees = [b.value.op if isinstance(b.value, relax.Call) else None for b in bindings]
    inner = [bindings_of(module[callee]) if isinstance(callee, tvm.ir.GlobalVar) else [] for callee in callees]
    names = [
        [b.var.name for b in group[:-1]] or [binding.var.name] for group, binding in zip(inner, bindings, strict=True)
    ]
    kept = {name for group in names for name in group}
    renamed = [b.var.name for b in bindings_of(unfused) if b.var.name not in kept]
    lost = iter(renamed if len(renamed) == sum(1 for group in inner if group) else [])
    result = []
    for binding, group, own in zip(bindings, inner, names, strict=True):
        called = [called_function(b.value) for b in group or [binding]]
        parts = [*own, next(lost, "")] if group else own
        result.append(
            CallSource(
                ops=tuple(_operator(callee) for callee in called if callee),
                nodes=tuple(dict.fromkeys(nodes[name] for name in parts if name in nodes)),
            )
        )
    return result


def _operator(primfunc: str) -> str:
    """Return the operator that a legalized PrimFunc computes: TVM numbers duplicates (add, add1, ...)."""
    name = primfunc.removeprefix("tir_")
    return name if name in ("log2", "log10") else re.sub(r"(?<=[a-z_])\d+$", "", name)
