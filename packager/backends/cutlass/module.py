"""Compile all partitions of a model: one C file of launchers, and each kernel once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packager.backends.base import Context, Target
from packager.backends.cutlass.attention.problem import AttentionProblem, add_attention
from packager.backends.cutlass.candidates import Shipping, ship
from packager.backends.cutlass.conv.problem import ConvProblem, add_convolution
from packager.backends.cutlass.core.compile_kernels import (
    HEADER_FOLDERS,
    KernelObject,
    compile_kernels,
    find_cutlass,
    templates_digest,
)
from packager.backends.cutlass.core.drafts import GroupDraft
from packager.backends.cutlass.core.kernel import KernelConfig
from packager.backends.cutlass.core.options import SM90A, CutlassOptions
from packager.backends.cutlass.gemm.block_problem import BlockProblem, add_block_gemm
from packager.backends.cutlass.gemm.gated import GatedProblem, add_gated
from packager.backends.cutlass.gemm.grouped import GroupedProblem, add_grouped
from packager.backends.cutlass.gemm.normed import NormedProblem
from packager.backends.cutlass.gemm.problem import add_gemm
from packager.backends.cutlass.quantized.problem import QuantizedProblem, add_quantized
from packager.backends.cutlass.recurrent.problem import RecurrentProblem, add_recurrent
from packager.bundle.manifest import License
from packager.bundle.tuning_records import read_records
from packager.codegen.cuda_toolkit import find_cuda_toolkit
from packager.codegen.templates import MARK, render
from packager.codegen.toolchain import run
from packager.errors import BackendError
from packager.graph.identity import IdentityMap
from packager.graph.products.matmul import MatmulProblem
from packager.graph.symbolic import most_elements
from packager.ir.primitives import BackendOutput, CudaModule, Partition, StaticLibrary

LICENSES = (License("NVIDIA CUTLASS", "BSD-3-Clause"),)
C_FLAGS = ("-std=gnu11", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-fno-asynchronous-unwind-tables", "-Wall")


def compile_partitions(partitions: Sequence[Partition], target: Target, context: Context) -> BackendOutput:
    """Compile ``cutlass.o`` and the objects of all kernels. Raises BackendError, ToolchainError."""
    toolkit, cutlass = find_cuda_toolkit(context.base.options.home), find_cutlass()
    toolchain = {"cutlass": cutlass.version, "nvcc": toolkit.version}
    if not partitions:
        return BackendOutput(target.kind, toolchain=toolchain)
    options = target.options
    drafts = [draft_group(partition, options) for partition in partitions]
    revision = f"cutlass {cutlass.version} {templates_digest()} nvcc {toolkit.version}"
    records, calls = read_records(options.tuning), _calls(partitions)
    shipping, warnings = ship(drafts, options.candidates, records, revision, calls)
    for group in drafts:
        group.reserve(shipping)
    kernels = [(config.source(archs), arch) for config, archs, arch in _kernels(drafts, shipping, options.arch)]
    objects = compile_kernels(kernels, cutlass, toolkit, context, options)
    module = _compile_module(drafts, shipping, objects, context)
    functions = [draft for group in drafts for draft in group.functions]
    library = StaticLibrary(
        "cutlass",
        (module, *(kernel.host for kernel in objects)),
        tuple(draft.symbol for draft in functions),
        cuda_modules=tuple(CudaModule(f"pkm_cutlass_{index}", 1) for index in range(len(objects))),
    )
    groups = {
        partition.name: group.group([draft.function(shipping[draft.symbol], revision) for draft in group.functions])
        for partition, group in zip(partitions, drafts, strict=True)
    }
    return BackendOutput(
        target.kind,
        (library,),
        groups,
        licenses=LICENSES,
        toolchain=toolchain,
        warnings=warnings,
    )


def draft_group(partition: Partition, options: CutlassOptions) -> GroupDraft:
    """Return the functions of a partition, by the type of its problem."""
    arguments = IdentityMap((parameter, index) for index, parameter in enumerate(partition.function.params))
    group = GroupDraft(name=partition.name)

    def most(extents: Sequence[Any]) -> int:
        return most_elements(extents, partition.function.params, partition.bounds)

    (composite,) = partition.composites
    found, norm = composite.problem, None
    if isinstance(found, NormedProblem):
        found, norm = found.problem, found.norm
    match found:
        case AttentionProblem() as problem:
            add_attention(problem, arguments, group, options)
        case MatmulProblem() as problem:
            add_gemm(problem, arguments, group, options, most, norm)
        case GatedProblem() as problem:
            add_gated(problem, arguments, group, options, most, norm)
        case BlockProblem() as problem:
            add_block_gemm(problem, arguments, group, options, most(problem.rows), norm)
        case GroupedProblem() as problem:
            add_grouped(problem, arguments, group, options, most)
        case ConvProblem() as problem:
            add_convolution(problem, arguments, group, options, most)
        case QuantizedProblem() as problem:
            add_quantized(problem, arguments, group, options, most)
        case RecurrentProblem() as problem:
            add_recurrent(problem, arguments, group, options)
        case _:
            raise BackendError(f"cutlass: {partition.name} ({composite.name}) has no problem of this backend's")
    return group


def kernels_for(partitions: Sequence[Partition], target: Target) -> list[tuple[KernelConfig, int]]:
    """Return the kernels that ``compile_partitions`` would compile without tuning records, and the arch of each."""
    options = target.options
    drafts = [draft_group(partition, options) for partition in partitions]
    shipping, _ = ship(drafts, options.candidates, read_records(()), "", _calls(partitions))
    return [(config, arch) for config, _, arch in _kernels(drafts, shipping, options.arch)]


def _calls(partitions: Sequence[Partition]) -> dict[str, int]:
    return {partition.name: len(partition.sites) for partition in partitions}


def _kernels(
    drafts: Sequence[GroupDraft], shipping: Shipping, archs: Sequence[str]
) -> list[tuple[KernelConfig, tuple[str, ...], int]]:
    """Return each shipped kernel once, sorted by name, with what it is compiled for, and the arch that it is for."""
    configs: dict[str, KernelConfig] = {}
    wanted: dict[str, set[int]] = {}
    for draft in (draft for group in drafts for draft in group.functions):
        for choice in draft.choices(shipping[draft.symbol]):
            configs[choice.kernel.name] = choice.kernel
            wanted.setdefault(choice.kernel.name, set()).add(choice.arch)
    return [
        (configs[name], (SM90A,) if wanted[name] == {90} else tuple(archs), min(wanted[name]))
        for name in sorted(configs)
    ]


def _compile_module(
    drafts: Sequence[GroupDraft], shipping: Shipping, objects: Sequence[KernelObject], context: Context
) -> Path:
    source = context.workdir / "cutlass.c"
    kernels = [{"name": kernel.source.name, "arch": kernel.arch} for kernel in objects]
    functions = [draft.view(shipping[draft.symbol]) for group in drafts for draft in group.functions]
    source.write_text(
        render("cutlass/common/module.c.j2", mark=MARK, kernels=kernels, functions=functions), encoding="utf-8"
    )
    output = source.with_suffix(".o")
    include = [f"-I{path}" for path in HEADER_FOLDERS]
    run([context.toolchain.cc, *C_FLAGS, *include, "-c", source.name, "-o", output.name], cwd=context.workdir)
    return output
