"""The stages prepare and partition in one call, for tests of what comes after them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packager.backends.base import Target
from packager.ir.model import ImportedModel, PartitionedModel, PreparedModel
from packager.pipeline.import_models import import_model
from packager.pipeline.request import make_build_request
from packager.placement.place import Compile, Placement, partition
from packager.placement.preparation import preparation_for
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
    request = make_build_request(path, **options)
    return placed(import_model(request), request.targets.specialized, device=request.targets.device).model


def problems(model: PartitionedModel) -> list[Any]:
    """Return the problems of all partitions."""
    return [composite.problem for one in model.partitions.values() for composite in one.partition.composites]
