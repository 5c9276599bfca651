"""Runs one backend on a model file's partitions, or kernels, and describes its output by hashes.

``main`` does so in a subprocess, for tests of leftover files and reproducibility.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packager.backends.base import NO_CACHE, CodeGenerator, Context, Target
from packager.backends.registry import find_backend
from packager.bundle.hashing import sha256_of_array, sha256_of_file
from packager.codegen.cache import Cache
from packager.codegen.toolchain import find_toolchain
from packager.ir.primitives import BackendOutput, FunctionGroup, Kernel, Partition
from packager.targets.target_list import parse_targets

Targets = Sequence[str | Mapping[str, Any]]


@dataclass(frozen=True)
class Compiled:
    """A backend's input and output."""

    target: Target
    partitions: tuple[Partition, ...]
    kernels: tuple[Kernel, ...]
    output: BackendOutput


def context_for(targets: Targets, kind: str, workdir: Path, cache: Cache = NO_CACHE) -> tuple[Target, Context]:
    """Return the canonical Target of ``kind`` in a list, and the backend's Context."""
    parsed = parse_targets(targets)
    target = next(target for target in (*parsed.bases, *parsed.specialized) if target.kind == kind)
    workdir.mkdir(parents=True)
    return target, Context(workdir, find_toolchain(parsed.host.machine), parsed.base_of(target), jobs=1, cache=cache)


def compile_model(
    model: Path, targets: Targets, dims: Mapping[str, Any], kind: str, workdir: Path, cache: Cache = NO_CACHE
) -> Compiled:
    """Compile the partitions that the backend of ``kind`` takes, in ``workdir``, which must not exist yet."""
    from packager.lower.lowering import lower
    from packager.pipeline.import_models import import_model
    from packager.pipeline.options import BuildOptions
    from packager.pipeline.request import make_build_request
    from packager.placement.place import compile_with, partition
    from packager.placement.preparation import preparation_for
    from packager.plan.planner import plan
    from packager.transforms.prepare import prepare

    request = make_build_request(BuildOptions(model, targets=targets, dims=dims))
    given: list[Partition] = []

    def compile_partitions(target: Target, partitions: Sequence[Partition]) -> BackendOutput:
        given.extend(partitions if target.kind == kind else ())
        return compile_with(lambda target: context_for(targets, target.kind, workdir / target.kind, cache)[1])(
            target, partitions
        )

    specialized, device = request.targets.specialized, request.targets.device
    prepared = prepare(import_model(request), preparation_for(specialized), device)
    placement = partition(prepared, specialized, compile_partitions)
    backend = find_backend(kind)
    if not isinstance(backend, CodeGenerator):
        target = next(target for target in request.targets.specialized if target.kind == kind)
        output = next(output for output in placement.model.backends if output.kind == kind)
        return Compiled(target, tuple(given), (), output)
    functions = plan(lower(placement.model, device)).functions
    kernels = tuple(function for function in functions if isinstance(function, Kernel))
    target, context = context_for(targets, kind, workdir / kind)
    return Compiled(target, (), kernels, backend.generate(kernels, target, context))


def describe(output: BackendOutput) -> dict[str, Any]:
    """Return a JSON description of an output, with files and arrays as hashes: equal for equal outputs."""
    return {
        "libraries": [
            [library.name, [[x.name, sha256_of_file(x)] for x in library.files], library.symbols, library.level]
            for library in output.static_libraries
        ],
        "groups": {name: _describe_group(group) for name, group in output.groups.items()},
        "given_back": dict(output.given_back),
        "constants": {name: _describe_array(array) for name, array in output.constants.items()},
        "requires": [[library.link_name, library.soname] for library in output.requires],
        "licenses": [[one.component, one.spdx] for one in output.licenses],
        "toolchain": dict(output.toolchain),
    }


def _describe_group(group: FunctionGroup) -> list[Any]:
    functions = [
        [
            f.symbol,
            [[p.kind, p.index, p.written, p.name] for p in f.parameters],
            list(map(str, f.scalars)),
            str(f.extent),
        ]
        for f in group.functions
    ]
    return [functions, list(map(str, group.workspaces)), [[p.argument, p.layout] for p in group.packings]]


def _describe_array(array: Any) -> list[Any]:
    return [list(array.shape), str(array.dtype), sha256_of_array(array)]


def main(argument: str) -> None:
    """Compile as specified by a JSON object, and print a description of each result."""
    wanted = json.loads(argument)
    dims = {name: tuple(bounds) for name, bounds in wanted["dims"].items()}
    for attempt in range(wanted["times"]):
        folder = Path(wanted["workdir"], str(attempt))
        compiled = compile_model(Path(wanted["model"]), wanted["targets"], dims, wanted["kind"], folder)
        print(json.dumps(describe(compiled.output)))
