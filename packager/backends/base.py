"""What a backend is: a module that compiles kernels or partitions and says what it provides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from packager.ir import BackendOutput, Kernel
from packager.manifest import Primitive
from packager.targets import Target


@dataclass(frozen=True)
class Unavailable:
    """Why a backend cannot be used here, and what to install."""

    reason: str
    hint: str


class Backend(Protocol):
    """The interface of a backend. It reads no environment and writes only into ``workdir``."""

    kind: str

    def probe(self, target: Target) -> Unavailable | None:
        """Return why this backend cannot compile for ``target`` here, or None if it can."""

    def compile(
        self, kernels: Sequence[Kernel], primitives: Sequence[Primitive], target: Target, workdir: Path
    ) -> BackendOutput:
        """Compile everything in one call. Raises BackendError."""
