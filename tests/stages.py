"""The stages prepare and partition in one call, for tests of what comes after them."""

from __future__ import annotations

from collections.abc import Sequence

from packager.backends.base import Target
from packager.ir.model import ImportedModel, PreparedModel
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
