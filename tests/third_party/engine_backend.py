"""A backend whose parts are engines of TensorRT's: products of a float32 tensor and a row of constants, on the GPU.

The engines are files, or pending. Tests run them by tests/cuda/tensorrt/nvinfer.c.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packager.backends.api import (
    API_VERSION,
    BackendOutput,
    Context,
    Match,
    Partition,
    PartitionOptions,
    Pattern,
    Target,
    Unavailable,
    attribute,
)
from packager.backends.tensorrt.module import (
    Engine,
    EngineConstant,
    EngineFunction,
    EngineTensor,
    compile_engines,
    group_of,
)


@dataclass(frozen=True)
class EngineOptions(PartitionOptions):
    """Which engine it is."""

    plan: str = attribute("", "File of the engine; without it the engine is pending")
    version: str = attribute("10.13.3", "Version that it is of")
    workspace: int = attribute(0, "Bytes that are set aside", minimum=0)
    form: str = attribute("tensorrt", "What runs it")
    library: str = attribute("", "File of the library, which the bundle gets a copy of")


class EngineBackend:
    """See the module."""

    api_version = API_VERSION
    kind = "engines"
    device = "cuda"
    options = EngineOptions
    merges = False
    needs_library = True
    summary = "engines of TensorRT's, for packager's tests"

    def canonical(self, options: EngineOptions, base: Target | None) -> EngineOptions:  # noqa: ARG002
        return options

    def probe(self, target: Target) -> Unavailable | None:  # noqa: ARG002
        return None

    def patterns(self, target: Target) -> Sequence[Pattern]:  # noqa: ARG002
        from tvm.relax.dpl import is_op, wildcard

        return [Pattern("engines.multiply", is_op("relax.multiply")(wildcard(), wildcard()), check=_by_a_constant)]

    def compile(self, partitions: Sequence[Partition], target: Target, context: Context) -> BackendOutput:
        if not partitions:
            return BackendOutput(self.kind)
        functions = {partition.name: _function(partition, target.options) for partition in partitions}
        file = Path(target.options.library) if target.options.library else None
        library = compile_engines(list(functions.values()), context, embedded=file)
        return BackendOutput(self.kind, (library,), {name: group_of(one) for name, one in functions.items()})


def _function(partition: Partition, options: EngineOptions) -> EngineFunction:
    x, w = partition.function.params
    shape = tuple(int(e) if hasattr(e, "value") else e for e in x.ty.shape.values)
    data = Path(options.plan).read_bytes() if options.plan else None
    form: Any = options.form
    engine = Engine(
        hashlib.sha256(partition.name.encode()).hexdigest(),
        form,
        data,
        tuple(map(int, options.version.split("."))) if data else (),
        arch=90 if data else 0,
        workspace_bytes=options.workspace,
    )
    return EngineFunction(
        f"{partition.name}_engine",
        (EngineTensor("x", "float32", shape, 0),),
        (EngineTensor("y", "float32", shape, 2),),
        engine,
        (EngineConstant("w", "float32", int(w.ty.shape.values[0]), 1),),
    )


def _by_a_constant(match: Match) -> bool:
    (call,) = match.calls
    return match.is_constant(call.args[1]) and call.args[1].ty.ndim == 1


ENGINES = EngineBackend()
