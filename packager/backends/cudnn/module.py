"""Compile all partitions of a model: one C file that states their problems, with the plans of the library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packager.backends.base import Context, Target
from packager.backends.cudnn.devices import Device, find_devices
from packager.backends.cudnn.library import CUBLASLT, SYMBOL, loaded_libraries
from packager.backends.cudnn.options import CudnnOptions
from packager.backends.cudnn.planner import Choice, Libraries, Plans, ask, find_libraries
from packager.backends.cudnn.problem import (
    CudnnProblem,
    describe,
    largest_batch,
    numbers,
    state_problem,
    zeros_name,
)
from packager.backends.problem_calls import ProblemCall, ProblemMemory
from packager.backends.problem_module import compile_module, group_of, ranked
from packager.bundle.dtypes import storage_dtype
from packager.bundle.hashing import digest, digest_of_folder
from packager.bundle.tuning_records import read_records
from packager.codegen.templates import MARK, render
from packager.errors import BackendError, ToolchainError
from packager.graph.identity import IdentityMap
from packager.ir.primitives import BackendOutput, Partition, StaticLibrary
from packager.resources import folder

TEMPLATES = folder("templates") / "cudnn"


@dataclass(frozen=True)
class Draft:
    """The function of a partition, whose batch is ``batch`` with the dims at their maxima."""

    call: ProblemCall
    memory: ProblemMemory
    problem: CudnnProblem
    batch: int

    def view(self, choices: Sequence[tuple[int, Choice]]) -> dict[str, Any]:
        """Return the values of the template; ``choices`` are (architecture, plan)."""
        return {
            "symbol": self.call.symbol,
            "parameters": self.call.signature,
            "fields": self.call.fields,
            "batch": self.batch,
            "choices": [{"arch": arch, "engine": choice.engine, "knobs": choice.knobs} for arch, choice in choices],
        }


@dataclass(frozen=True)
class Planned:
    """Plans of all drafts by device; ``version`` is that of the library, or None where it is not on this machine."""

    version: str | None
    plans: Mapping[Device, Plans]
    warnings: tuple[str, ...] = ()

    def of(self, index: int) -> list[tuple[int, Choice]]:
        """Return (architecture, plan) of a draft."""
        return [(device.arch, choice) for device, plans in self.plans.items() for choice in plans.choices[index]]

    def lacking(self, index: int) -> list[str]:
        """Return the devices for which the library has no plan of a draft."""
        return [device.path.stem for device, plans in self.plans.items() if not plans.choices[index]]


def compile_partitions(partitions: Sequence[Partition], target: Target, context: Context) -> BackendOutput:
    """Compile ``cudnn.o``. Raises BackendError, ToolchainError, UsageError."""
    if not partitions:
        return BackendOutput(target.kind)
    options = target.options
    drafts = {partition.name: draft_partition(partition, options) for partition in partitions}
    planned = plan(list(drafts.values()), options, context.workdir)
    given_back = {name: planned.lacking(index) for index, name in enumerate(drafts)}
    kept = {name: draft for name, draft in drafts.items() if not given_back[name]}
    views = [draft.view(planned.of(index)) for index, (name, draft) in enumerate(drafts.items()) if name in kept]
    library = StaticLibrary(
        "cudnn",
        (compile_module("cudnn", render_module(views, planned.version), context),),
        tuple(draft.call.symbol for draft in kept.values()),
        loaded_libraries=loaded_libraries(options, planned.version),
    )
    records, revision = read_records(options.tuning), revision_of(options, planned.version)
    groups = {}
    for name, draft in kept.items():
        key = describe(draft.problem, draft.batch)
        candidates = ranked(key, "cudnn", options.candidates, records, revision)
        groups[name] = group_of(draft.call, draft.memory, candidates, (CUBLASLT.symbol, SYMBOL))
    return BackendOutput(
        target.kind,
        (library,) if kept else (),
        groups,
        given_back={
            name: f"cuDNN {planned.version} has no engine for it that is compiled in advance, on {', '.join(lacking)}"
            for name, lacking in given_back.items()
            if lacking
        },
        constants=_zeros(kept.values()),
        toolchain={"cudnn": planned.version} if planned.version else {},
        warnings=planned.warnings,
    )


def draft_partition(partition: Partition, options: CudnnOptions) -> Draft:
    """Return the function of a partition."""
    arguments = IdentityMap((parameter, index) for index, parameter in enumerate(partition.function.params))
    (composite,) = partition.composites
    problem = composite.problem
    if not isinstance(problem, CudnnProblem):
        raise BackendError(f"cudnn: {partition.name} ({composite.name}) has no problem of this backend's")
    call, memory = ProblemCall(f"{partition.name}_cudnn", "pk_cudnn_t"), ProblemMemory()
    state_problem(problem, arguments, call, memory, options)
    return Draft(call, memory, problem, largest_batch(problem, partition.cost.bytes_written))


def plan(drafts: Sequence[Draft], options: CudnnOptions, workdir: Path) -> Planned:
    """Return what the library of this machine answers; nothing if there is none."""
    libraries, devices = find_libraries(options.soname), find_devices(options.device)
    if libraries is None or not devices:
        return Planned(None, {})
    try:
        return _ask_all(libraries, devices, drafts, options, workdir)
    except ToolchainError as error:
        why = (error.stderr or error.message).strip().splitlines()[-1:]
        return Planned(None, {}, (f"cudnn: {libraries.cudnn} makes no plans ({''.join(why)}): sessions will",))


def _ask_all(
    libraries: Libraries, devices: Sequence[Device], drafts: Sequence[Draft], options: CudnnOptions, workdir: Path
) -> Planned:
    problems = [list(numbers(draft.problem, options, draft.batch).values()) for draft in drafts]
    plans = {device: ask(libraries, device, problems, options.candidates, workdir) for device in devices}
    return Planned(next(iter(plans.values())).version, plans)


def revision_of(options: CudnnOptions, version: str | None) -> str:
    """Return what measurements of ranks are valid for: how the library was asked, and which one."""
    devices = [device.path.read_text(encoding="utf-8") for device in find_devices(options.device)]
    facts = [options.soname, options.candidates, options.workspace_mb, version, devices]
    return f"cudnn {digest([digest_of_folder(TEMPLATES, '*'), *facts])[:12]}"


def _zeros(drafts: Any) -> dict[str, Any]:
    """Return a constant of zeros for each type in which a bias is missing."""
    sizes: dict[str, int] = {}
    for draft in drafts:
        problem = draft.problem
        if problem.has_epilogue and problem.chain.bias is None:
            sizes[problem.conv.dtype] = max(sizes.get(problem.conv.dtype, 0), problem.conv.filters)
    return {zeros_name(dtype): np.zeros(size, storage_dtype(dtype)) for dtype, size in sizes.items()}


def render_module(functions: Sequence[Mapping[str, Any]], version: str | None) -> str:
    """Return the C of functions, whose plans are of a version of the library."""
    major, minor, patch = (int(part) for part in (version or "0.0.0").split("."))
    values = {
        "library": SYMBOL,
        "cublaslt": CUBLASLT.symbol,
        "version": major * 10000 + minor * 100 + patch,
    }
    return render("cudnn/module.c.j2", mark=MARK, functions=functions, **values)
