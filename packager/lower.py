"""Lower a Relax model to a flat sequence of calls of scheduled PrimFuncs, split into kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from packager.errors import ModelError, UnsupportedOperatorsError
from packager.fold import fold_weights
from packager.indices import clamp_indices, legalize_take
from packager.ir import CallSource, ImportedModel, KernelGroup, LoweredModel
from packager.kernels import lower_kernels, make_group
from packager.pack import pack_weights
from packager.schedule_cpu import schedule

_R = relax.transform

# Whether a schedule lowers does not depend on the CPU.
TRIAL_TARGET = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"})

SIMPLIFY = [
    _R.FoldBatchnormToConv2D(),
    _R.DecomposeOpsForInference(),
    _R.CanonicalizeBindings(),
    _R.DeadCodeElimination(),
]
LEGALIZE = [
    _R.LegalizeOps({"relax.take": legalize_take}),
    _R.AnnotateTIROpPattern(),
    _R.FoldConstant(),
    _R.DeadCodeElimination(),
]
FUSE = [
    _R.FuseOps(),
]
FLATTEN = [
    _R.FuseTIR(),
    _R.RewriteDataflowReshape(),
    _R.ToNonDataflow(),
    _R.RemovePurityChecking(),
]


def lower(model: ImportedModel) -> LoweredModel:
    """Fold, legalise, fuse and schedule a model for the CPU.

    Raises UnsupportedOperatorsError for operators that TVM cannot lower to a PrimFunc.
    """
    bounds = {dim.name: dim.max for dim in model.dims}
    module = model.module
    if bounds:
        module["main"] = module["main"].with_attr("tir_var_upper_bound", bounds)
    module = _apply(SIMPLIFY, module)
    module = pack_weights(module, len(model.inputs))
    module, constants = fold_weights(module, model.weights)
    module = _apply(LEGALIZE, module)
    _check_legal(module["main"], model.nodes)
    unfused = module["main"]
    module = _apply(FUSE, module)
    sources = _sources(unfused, module, model.nodes)
    module = _apply(FLATTEN, module)
    main = module["main"]
    groups: dict[str, KernelGroup] = {}
    calls = []
    for binding, source in zip(_bindings(main), sources, strict=True):
        callee = called_primfunc(binding.value)
        if callee is None:
            continue
        calls.append(source)
        if callee not in groups:
            groups[callee] = _make_kernels(callee, clamp_indices(module[callee]))
    return LoweredModel(
        source=model.source,
        main=main,
        groups=groups,
        inputs=model.inputs,
        output_names=model.output_names,
        dims=model.dims,
        constants=constants,
        call_sources=tuple(calls),
    )


def _apply(passes: Sequence[Any], module: tvm.IRModule) -> tvm.IRModule:
    """Run passes in order. Raises ModelError that names the pass that failed."""
    for transform in passes:
        try:
            module = transform(module)
        except Exception as error:  # a pass raises whatever its C++ side runs into
            raise ModelError(
                f"TVM cannot lower this model: pass {transform.info.name} failed",
                detail=_last_line(error),
                hint="this is a limit of TVM; simplify the model, or export it with another opset",
            ) from error
    return module


def _make_kernels(name: str, primfunc: Any) -> KernelGroup:
    """Schedule a PrimFunc and split it into kernels; where a schedule does not lower, do without.

    Raises ModelError for a function that does not lower either way.
    """
    failure = ""
    for attempt in (schedule, lambda unscheduled: unscheduled):
        try:
            group = make_group(name, attempt(primfunc))
            lower_kernels(group.kernels, TRIAL_TARGET)
        except Exception as error:  # TVM raises whatever its C++ side runs into
            failure = failure or _last_line(error)
            continue
        return group
    raise ModelError(f"TVM cannot lower the function {name!r}", detail=failure)


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__


def called_primfunc(value: Any) -> str | None:
    """Return the name of the PrimFunc that a binding's value calls, or None if it is no call of one."""
    if isinstance(value, relax.Call) and getattr(value.op, "name", "") == "relax.call_tir":
        return str(value.args[0].name_hint)
    return None


def _bindings(function: relax.Function) -> list[Any]:
    return [binding for block in function.body.blocks for binding in block.bindings]


def _check_legal(main: relax.Function, nodes: Mapping[str, str]) -> None:
    """Raise UnsupportedOperatorsError if an operator is left that is neither a call of a PrimFunc nor a view."""
    legal = {"relax.call_tir", "relax.reshape"}
    refused: dict[str, list[str]] = {}
    for binding in _bindings(main):
        value = binding.value
        if isinstance(value, relax.Call) and getattr(value.op, "name", "") not in legal:
            operator = str(getattr(value.op, "name", value.op)).removeprefix("relax.")
            refused.setdefault(operator, []).append(nodes.get(binding.var.name, binding.var.name))
        elif isinstance(value, relax.If):
            refused.setdefault("If", []).append(nodes.get(binding.var.name, binding.var.name))
    if refused:
        raise UnsupportedOperatorsError(refused)


def _sources(unfused: relax.Function, module: tvm.IRModule, nodes: Mapping[str, str]) -> list[CallSource]:
    """Return the operators and source nodes of each binding of main, those of fused functions included.

    FuseOps keeps the names of the bindings that it moves into a function, but for the last: its value is what the
    function returns, under a new name. FuseTIR and the passes after it keep main's bindings one to one, in order.
    """
    bindings = _bindings(module["main"])
    inner = [_bindings(module[b.value.op]) if _is_fused(b.value) else [] for b in bindings]
    names = [
        [b.var.name for b in group[:-1]] or [binding.var.name] for group, binding in zip(inner, bindings, strict=True)
    ]
    kept = {name for group in names for name in group}
    renamed = [b.var.name for b in _bindings(unfused) if b.var.name not in kept]
    lost = iter(renamed if len(renamed) == sum(1 for group in inner if group) else [])
    result = []
    for binding, group, own in zip(bindings, inner, names, strict=True):
        callees = [called_primfunc(b.value) for b in group or [binding]]
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
    """Return the operator that a legalised PrimFunc stands for: TVM numbers those of equal names (add, add1, ...)."""
    name = primfunc.removeprefix("tir_")
    return name if name in ("log2", "log10") else re.sub(r"(?<=[a-z_])\d+$", "", name)
