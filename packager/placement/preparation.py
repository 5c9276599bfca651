"""Collect what the backends of specialized Targets require of the model before partitioning."""

from __future__ import annotations

from collections.abc import Sequence

from packager.backends.base import LibraryUser, PartitionBackend, Preparing, Target
from packager.backends.registry import blamed, find_backend
from packager.errors import BackendError
from packager.ir.preparation import Preparation


def backend_of(target: Target) -> PartitionBackend:
    """Return the backend of a specialized Target."""
    backend = find_backend(target.kind)
    if not isinstance(backend, PartitionBackend):
        raise BackendError(f"{target.kind}: the backend takes no partitions")
    return backend


def needs_library(target: Target) -> bool:
    """Return whether what the backend of a specialized Target takes needs a library of the target machine."""
    backend = backend_of(target)
    return isinstance(backend, LibraryUser) and backend.needs_library


def preparation_for(targets: Sequence[Target]) -> Preparation:
    """Return the union of what the backends of the specialized ``targets`` require of the model."""
    wanted = Preparation(sink_reshapes=bool(targets), transposed_convolutions=not targets)
    for target in targets:
        backend = backend_of(target)
        with blamed(backend.kind):
            wanted |= backend.preparation(target) if isinstance(backend, Preparing) else Preparation()
    return wanted
