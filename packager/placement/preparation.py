"""TODO"""

from __future__ import annotations

from collections.abc import Sequence

from packager.backends.base import PartitionBackend, Preparing, Target
from packager.backends.registry import blamed, find_backend
from packager.errors import BackendError
from packager.ir.preparation import Preparation


def backend_of(target: Target) -> PartitionBackend:
    """Return the backend of a specialised Target."""
    backend = find_backend(target.kind)
    if not isinstance(backend, PartitionBackend):
        raise BackendError(f"{target.kind}: the backend takes no partitions")
    return backend


def _preparation(targets: Sequence[Target]) -> Preparation:
    """Return what the backends of the Targets want together."""
    wanted = Preparation()
    for target in targets:
        backend = backend_of(target)
        with blamed(backend.kind):
            wanted |= backend.preparation(target) if isinstance(backend, Preparing) else Preparation()
    return wanted
