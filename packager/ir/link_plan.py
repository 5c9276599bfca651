"""What is linked into a bundle, and what linking gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packager.bundle.cpu_levels import clone_symbol
from packager.bundle.manifest import StaticLibrary, Weights
from packager.bundle.requirements import CpuLevel
from packager.ir.call_plan import CallPlan
from packager.ir.primitives import BackendOutput, CudaModule


@dataclass(frozen=True)
class ExternalWeights:
    """The weights file that a bundle is bound to: its name, its size in bytes and the header it starts with."""

    file_name: str
    file_bytes: int
    header: bytes


@dataclass(frozen=True)
class PreparedLibrary:
    """A static library of backend ``kind`` after its check: one object, in which all names but ``symbols`` are local.

    ``files`` are what it was made of, ``cpu_features`` what its code needs. ``uses_libgcc``: it leaves names undefined
    that the compiler's own archive defines. With a ``level`` its code lies in that level's section, and its functions
    have the names of that level's forms (``packager.bundle.cpu_levels``).
    """

    kind: str
    path: Path
    symbols: tuple[str, ...]
    files: tuple[StaticLibrary, ...]
    cpu_features: tuple[str, ...]
    uses_libgcc: bool
    cuda_modules: tuple[CudaModule, ...] = ()
    level: str = ""

    @property
    def defined(self) -> tuple[str, ...]:
        """The names in the linked file of what it provides, in the order of ``symbols``."""
        return tuple(clone_symbol(symbol, self.level) for symbol in self.symbols)


@dataclass(frozen=True)
class LinkedFile:
    """A linked file, not sealed yet, and the CPU features that the code in it needs.

    ``levels`` are the CPU levels that a session can have, the least first; ``dispatched_features`` what code uses that
    asks the CPU itself.
    """

    path: Path
    cpu_features: tuple[str, ...]
    levels: tuple[CpuLevel, ...] = ()
    dispatched_features: tuple[str, ...] = ()


@dataclass(frozen=True)
class CudaCode:
    """What the runtime must know of a CUDA bundle's code: ``driver`` is the least version of CUDA that the driver must
    support, as ``cuDriverGetVersion`` tells it; ``description`` lists the architectures, for messages."""

    driver: int
    description: str


@dataclass(frozen=True)
class LinkPlan:
    """Everything that goes into the linked file: objects in link order, and what the manifest tells of them."""

    plan: CallPlan
    backends: tuple[BackendOutput, ...]
    libraries: tuple[PreparedLibrary, ...]
    runtime: tuple[Path, ...]
    targets: tuple[dict[str, Any], ...]
    machine: str
    entry_symbol: str
    static: bool
    weights: Weights
    weights_file: ExternalWeights | None
    toolchain: Mapping[str, str]
    manifest_room: int  # bytes of the manifest section
    cpu_levels: tuple[CpuLevel, ...] = ()  # as the backends' libraries make them; none in a CUDA bundle
    cuda: CudaCode | None = None  # None: a CPU bundle
