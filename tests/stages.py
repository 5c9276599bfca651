"""The first stages in one call, for tests of what comes after them; operators alone as PrimFuncs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tvm import relax, tirx

from packager.backends.base import Target
from packager.graph.rewrite import apply
from packager.ir.model import ImportedModel, PartitionedModel, PreparedModel
from packager.lower.devices import DEVICES
from packager.lower.lowering import FLATTEN, FUSE
from packager.pipeline.import_models import import_model
from packager.pipeline.options import BuildOptions
from packager.pipeline.request import Request, make_build_request
from packager.placement.place import Compile, Placement, partition
from packager.placement.preparation import preparation_for
from packager.placement.table import partition_table
from packager.transforms.prepare import prepare


def prepared_for(model: ImportedModel, targets: Sequence[Target], device: str = "cpu") -> PreparedModel:
    """Return ``model`` as the backends of ``targets`` see it."""
    return prepare(model, preparation_for(targets), device)


def placed(
    model: ImportedModel, targets: Sequence[Target], compile_partitions: Compile | None = None, device: str = "cpu"
) -> Placement:
    """Return ``model`` with the partitions that the backends of ``targets`` take."""
    return partition(prepared_for(model, targets, device), targets, compile_partitions)


def placed_file(path: Path, **options: Any) -> PartitionedModel:
    """Return a model file with the partitions that a build with these options would make of it."""
    return _placement(make_build_request(BuildOptions(path, **options))).model


def placement_table(path: Path, **options: Any) -> dict[str, Any]:
    """Return the partition table of a model file; nothing is compiled or lowered."""
    request = make_build_request(BuildOptions(path, **options))
    return partition_table(_placement(request), request.targets.generator.kind)


def _placement(request: Request) -> Placement:
    return placed(import_model(request), request.targets.specialized, device=request.targets.device)


def problems(model: PartitionedModel) -> list[Any]:
    """Return the problems of all partitions."""
    return [composite.problem for one in model.partitions.values() for composite in one.partition.composites]


def primfuncs_of(device: str, make: Callable[..., Any], *inputs: tuple[tuple[int | str, ...], str]) -> list[Any]:
    """Return the PrimFuncs of an operator, fused as packager does; a dim that is a string is symbolic."""
    names = sorted({extent for shape, _ in inputs for extent in shape if isinstance(extent, str)})
    dims = {name: tirx.Var(name, "int64") for name in names}
    builder = relax.BlockBuilder()
    parameters = [
        relax.Var(f"a{i}", relax.TensorType([dims.get(e, e) for e in shape], dtype))  # type: ignore[call-overload]
        for i, (shape, dtype) in enumerate(inputs)
    ]
    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(make(*parameters)))
        builder.emit_func_output(result)
    module = apply([*DEVICES[device].legalize, *FUSE, *FLATTEN], builder.finalize())
    return [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
