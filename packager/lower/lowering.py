"""Lower the operators that no backend took to a flat sequence of calls of scheduled PrimFuncs, split into kernels."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.s_tir import ScheduleError

from packager.custom_ops.library import called_operator
from packager.errors import ModelError, UnsupportedOperatorsError, last_line
from packager.graph.dataflow import bindings_of, called_function
from packager.graph.rewrite import apply
from packager.ir.model import CallSource, LoweredModel, PartitionedModel
from packager.ir.primitives import CallSite, FunctionGroup, Kernel, Partition
from packager.lower.devices import Device, device_named
from packager.lower.kernels import make_group
from packager.lower.legalize.accumulate import legalize_layer_norm, legalize_softmax
from packager.lower.legalize.float8_cast import legalize_astype
from packager.lower.legalize.min_max import legalize_max, legalize_min
from packager.lower.legalize.reshape import legalize_reshape, rewrite_reshapes
from packager.transforms.clamp_indices import clamp_folded_indices, clamp_indices, legalize_take
from packager.transforms.fold_weights import fold_weights

_R = relax.transform

LEGALIZERS = {
    "relax.astype": legalize_astype,
    "relax.max": legalize_max,
    "relax.min": legalize_min,
    "relax.take": legalize_take,
    "relax.nn.softmax": legalize_softmax,
    "relax.reshape": legalize_reshape,
    "relax.nn.layer_norm": legalize_layer_norm,
}
TIDY = [
    _R.AnnotateTIROpPattern(),
    clamp_folded_indices,
    _R.FoldConstant(),
    _R.DeadCodeElimination(),
    _R.CanonicalizeBindings(),  # removes aliases: FuseTIR would drop them, and the source nodes with them
]
LEGALIZE = [_R.LegalizeOps(LEGALIZERS), *TIDY]
FUSE = [
    _R.FuseOps(),
]
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
    device = device_named(device_name)
    sites = _sites(model)
    # Once more after prepare: what no backend took has weights to pack (CPU) or layouts to change, and that is folded.
    module = device.change_layouts(model.module, len(model.signature.inputs))
    module, constants = fold_weights(module, model.constants)
    module = apply(LEGALIZE, module)
    _check_legal(module["main"], model.nodes, model.partitions)
    unfused = module["main"]
    module = apply(FUSE, module)
    sources = _sources(unfused, module, model.nodes)
    module = apply(FLATTEN, module)
    main = module["main"]
    groups = {name: placed.group for name, placed in model.partitions.items()}
    calls = []
    for binding, source in zip(bindings_of(main), sources, strict=True):
        callee = called_function(binding.value)
        if callee is None:
            continue
        if callee in model.partitions:
            calls.append(_partition_source(model.partitions[callee].partition, next(sites[callee])))
            continue
        calls.append(source)
        if callee not in groups:
            groups[callee] = _make_kernels(callee, clamp_indices(module[callee]), device)
    return LoweredModel(
        signature=model.signature,
        main=main,
        groups=groups,
        weights=model.weights,
        constants=constants,
        tables={f"{o.kind}.{name}": array for o in model.backends for name, array in o.constants.items()},
        call_sources=tuple(calls),
    )


def _make_kernels(name: str, primfunc: Any, device: Device) -> FunctionGroup:
    """Schedule a PrimFunc and split it into kernels, by the first schedule of the device that lowers.

    Raises ModelError if none does.
    """
    failure = ""
    for schedule in device.schedules:
        try:
            scheduled = schedule(primfunc)
        except ScheduleError as error:  # the schedule does not apply; any other exception is a bug in it
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


def _partition_source(part: Partition, site: CallSite) -> CallSource:
    return CallSource(tuple(op for composite in part.composites for op in composite.ops), site.nodes)


def _check_legal(main: relax.Function, nodes: Mapping[str, str], partitions: Container[str]) -> None:
    """Raise UnsupportedOperatorsError if anything but calls of PrimFuncs and partitions, and reshapes, is left."""
    legal = {"relax.call_tir", "relax.call_dps_packed", "relax.reshape"}
    refused: dict[str, list[str]] = {}
    for binding in bindings_of(main):
        value = binding.value
        callee = called_function(value)
        if callee is not None and value.op.name == "relax.call_dps_packed" and callee not in partitions:
            refused.setdefault(called_operator(callee), []).append(nodes.get(binding.var.name, binding.var.name))
        elif isinstance(value, relax.Call) and getattr(value.op, "name", "") not in legal:
            operator = str(getattr(value.op, "name", value.op)).removeprefix("relax.")
            refused.setdefault(operator, []).append(nodes.get(binding.var.name, binding.var.name))
        elif isinstance(value, relax.If):
            refused.setdefault("If", []).append(nodes.get(binding.var.name, binding.var.name))
    if refused:
        raise UnsupportedOperatorsError(refused)


def _sources(unfused: relax.Function, module: tvm.IRModule, nodes: Mapping[str, str]) -> list[CallSource]:
    """Return the operators and source nodes of each binding of main, including those inside fused functions.

    FuseOps keeps the names of the bindings that it moves into a function, except the last, whose value the function
    returns under a new name. FuseTIR and later passes keep main's bindings one to one, in order.
    """
    bindings = bindings_of(module["main"])
    inner = [bindings_of(module[b.value.op]) if _is_fused(b.value) else [] for b in bindings]
    names = [
        [b.var.name for b in group[:-1]] or [binding.var.name] for group, binding in zip(inner, bindings, strict=True)
    ]
    kept = {name for group in names for name in group}
    renamed = [b.var.name for b in bindings_of(unfused) if b.var.name not in kept]
    lost = iter(renamed if len(renamed) == sum(1 for group in inner if group) else [])
    result = []
    for binding, group, own in zip(bindings, inner, names, strict=True):
        callees = [called_function(b.value) for b in group or [binding]]
        parts = [*own, next(lost, "")] if group else own
        result.append(
            CallSource(
                ops=tuple(_operator(callee) for callee in callees if callee),
                nodes=tuple(dict.fromkeys(nodes[name] for name in parts if name in nodes)),
            )
        )
    return result


def _is_fused(value: Any) -> bool:
    return isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar)


def _operator(primfunc: str) -> str:
    """Return the operator that a legalized PrimFunc computes: TVM numbers duplicates (add, add1, ...)."""
    name = primfunc.removeprefix("tir_")
    return name if name in ("log2", "log10") else re.sub(r"(?<=[a-z_])\d+$", "", name)
