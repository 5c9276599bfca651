"""Compile all partitions of a model: their graphs, and the engines that can be built here."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packager.backends.base import Context, Target
from packager.backends.tensorrt.library import installed_library
from packager.backends.tensorrt.module import Engine, compile_engines, group_of
from packager.backends.tensorrt.options import TensorrtOptions
from packager.backends.tensorrt.subgraph import Subgraph, composites_in, write_subgraph
from packager.bundle.gpu.arch import arch_number
from packager.bundle.gpu.engine_graphs import encode_graphs
from packager.bundle.gpu.engine_job import Builder, BuiltEngine, build_engine, find_builder
from packager.bundle.manifest import License
from packager.errors import BackendError, ModelError, ToolchainError
from packager.ir.primitives import BackendOutput, FunctionGroup, Partition

CACHE_KIND = "engines"
RUNTIME_LICENSE = License("NVIDIA TensorRT lean runtime", "LicenseRef-NVIDIA-TensorRT")
TYPICAL_SECONDS = 30.0  # of building an engine


def compile_partitions(partitions: Sequence[Partition], target: Target, context: Context) -> BackendOutput:
    """Compile ``tensorrt.o``. Raises BackendError, ToolchainError."""
    options: TensorrtOptions = target.options
    refused = _Refused()
    graphs = _write_all(partitions, options, refused)
    archs = tuple(map(arch_number, context.base.options.arch)) if options.library == "tensorrt_rtx" else ()
    builder, why = _builder_for(options, context)
    functions = []
    kept = []
    with context.counted("building engine", len(graphs), typical=TYPICAL_SECONDS) as steps:
        for graph in graphs:
            with steps.step():
                try:
                    built = builder and _build(graph, builder, archs, options, context)
                except ToolchainError as error:
                    refused.add(graph.partition, error.message, error.stderr)
                    continue
            functions.append(graph.function(_engine(graph, options, built or None)))
            kept.append(graph)
    if not kept:
        return BackendOutput(target.kind, given_back=refused.given_back, left_out=refused.left_out)
    runtime = _runtime(options, builder)
    library = compile_engines(functions, context, encode_graphs([one.graph for one in kept]), embedded=runtime)
    groups = {graph.partition.name: group_of(one) for graph, one in zip(kept, functions, strict=True)}
    return BackendOutput(
        target.kind,
        (library,),
        groups if builder else {name: _pending(group) for name, group in groups.items()},
        given_back=refused.given_back,
        left_out=refused.left_out,
        licenses=(RUNTIME_LICENSE,) if runtime else (),
        toolchain={builder.library: ".".join(map(str, builder.version))} if builder else {},
        warnings=(f"{len(kept)} engines are pending ({why}): run packager finalize on the target",)
        if not builder
        else (),
    )


def _runtime(options: TensorrtOptions, builder: Builder | None) -> Path | None:
    """Return the lean runtime that the bundle gets a copy of; of the major version that has built the engines."""
    if not options.embed_runtime:
        return None
    major = builder.version[0] if builder else 0
    found = installed_library("tensorrt_lean", major)
    if found is None:
        raise BackendError(
            f"tensorrt: engines are of version {major}, and there is no lean runtime of that here",
            hint=f"install it, as tensorrt-lean-cu13-libs {major}, or leave -embed_runtime out",
        )
    return found


@dataclass
class _Refused:
    """Why partitions are given back, and because of which composites, where messages name some."""

    given_back: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def add(self, partition: Partition, why: str, names: str) -> None:
        self.given_back[partition.name] = why
        count = len(partition.composites)
        places = composites_in(names, count)
        if places and len(places) < count:
            self.left_out[partition.name] = places


def _write_all(partitions: Sequence[Partition], options: TensorrtOptions, refused: _Refused) -> list[Subgraph]:
    graphs = []
    for partition in partitions:
        try:
            graphs.append(write_subgraph(partition, options))
        except ModelError as error:
            why = error.detail or error.message
            refused.add(partition, f"it cannot be written as ONNX: {why}", why)
    return graphs


def _builder_for(options: TensorrtOptions, context: Context) -> tuple[Builder | None, str]:
    """Return what builds engines here, or why nothing does."""
    if options.engines == "pending":
        return None, "as the Target says"
    found = find_builder(Path(sys.executable), options.library)
    if isinstance(found, str):
        return None, found
    if found.library == "tensorrt":
        wanted = sorted(set(map(arch_number, context.base.options.arch)))
        if [found.arch] != wanted:
            here = f"a GPU of sm_{found.arch}" if found.arch else "no GPU"
            return None, f"{found.text} is here, and {here}"
    return found, ""


def _build(
    graph: Subgraph, builder: Builder, archs: Sequence[int], options: TensorrtOptions, context: Context
) -> BuiltEngine:
    """Build an engine, or take it from the cache."""
    key = builder.engine_key(graph.graph.key, archs)
    plan, facts = context.workdir / "plan", context.workdir / "facts.json"
    if context.cache.fetch(CACHE_KIND, key, context.workdir):
        return BuiltEngine.of_facts(plan.read_bytes(), json.loads(facts.read_text(encoding="utf-8")))
    built = build_engine(
        builder,
        graph.model,
        library=options.library,
        settings=graph.graph.settings,
        workdir=context.workdir,
        archs=archs,
        timing_cache=_timing_cache(options, context),
    )
    plan.write_bytes(built.data)
    facts.write_text(json.dumps(built.facts), encoding="utf-8")
    context.cache.add(CACHE_KIND, key, [plan, facts])
    return built


def _timing_cache(options: TensorrtOptions, context: Context) -> Path | None:
    """Return a copy of the timing cache, which the builder adds to."""
    if not options.timing_cache:
        return None
    copy = context.workdir / "timing.cache"
    if not copy.exists():
        copy.write_bytes(Path(options.timing_cache).read_bytes())
    return copy


def _engine(graph: Subgraph, options: TensorrtOptions, built: BuiltEngine | None) -> Engine:
    form: Any = options.library
    if built is None:
        return Engine(graph.graph.key, form, workspace_bytes=0)
    return Engine(graph.graph.key, form, built.data, built.version, built.arch, built.memory)


def _pending(group: FunctionGroup) -> FunctionGroup:
    return dataclasses.replace(group, pending=True)
