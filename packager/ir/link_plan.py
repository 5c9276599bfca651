"""The inputs and outputs of linking a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packager.bundle.isa.levels import clone_symbol
from packager.bundle.manifest import StaticLibrary, Weights
from packager.bundle.origin import Provenance
from packager.bundle.requirements import CpuLevel, LibraryRequirement
from packager.ir.call_plan import CallPlan
from packager.ir.primitives import BackendOutput, CudaModule, LoadedLibrary


@dataclass(frozen=True)
class ExternalWeights:
    """The weights file that a bundle is bound to: its name, its size in bytes and the header it starts with."""

    file_name: str
    file_bytes: int
    header: bytes


@dataclass(frozen=True)
class PreparedLibrary:
    """A checked static library of backend ``kind``: one object, in which all names except ``symbols`` are local.

    ``files`` are its inputs, ``cpu_features`` the requirements of its code. ``uses_libgcc``: it has undefined names
    that libgcc defines. With a ``level`` its code is in that level's section, and its functions are that level's clones
    (``packager.bundle.isa.levels``).
    """

    kind: str
    path: Path
    symbols: tuple[str, ...]
    files: tuple[StaticLibrary, ...]
    cpu_features: tuple[str, ...]
    uses_libgcc: bool
    cuda_modules: tuple[CudaModule, ...] = ()
    level: str = ""
    loaded_libraries: tuple[LoadedLibrary, ...] = ()

    @property
    def defined(self) -> tuple[str, ...]:
        """The provided names in the linked file, in the order of ``symbols``."""
        return tuple(clone_symbol(symbol, self.level) for symbol in self.symbols)


@dataclass(frozen=True)
class LinkedFile:
    """A linked, unsealed file, and the CPU features that its code requires.

    ``levels`` are its CPU levels in increasing order; ``dispatched_features`` are used only behind a run-time check.
    """

    path: Path
    cpu_features: tuple[str, ...]
    levels: tuple[CpuLevel, ...] = ()
    dispatched_features: tuple[str, ...] = ()


@dataclass(frozen=True)
class CudaCode:
    """Requirements of a CUDA bundle's code: ``driver`` is the minimum CUDA version of the driver, encoded as by
    ``cuDriverGetVersion``; ``description`` lists the architectures, for messages."""

    driver: int
    description: str


@dataclass(frozen=True)
class LibraryUse:
    """Library number ``library`` is called by alternative ``alternative`` of placement choice ``choice``; outside of
    choices ``choice`` is -1."""

    choice: int
    alternative: int
    library: int


@dataclass(frozen=True)
class LoadedLibraries:
    """The shared libraries that sessions open, and what for.

    ``fallbacks`` has for each placement choice the alternative to take where a library of another one is missing; None
    if every alternative calls a library, or none does.
    """

    libraries: tuple[LibraryRequirement, ...] = ()
    uses: tuple[LibraryUse, ...] = ()
    fallbacks: tuple[int | None, ...] = ()


NO_LIBRARIES = LoadedLibraries()


@dataclass(frozen=True)
class LinkPlan:
    """Everything that is linked into the file: objects in link order, and their records for the manifest."""

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
    manifest_room: int  # capacity of the manifest section in bytes
    cpu_levels: tuple[CpuLevel, ...] = ()  # from the backends' libraries; empty in a CUDA bundle
    cuda: CudaCode | None = None  # None: a CPU bundle
    loaded: LoadedLibraries = NO_LIBRARIES
    provenance: Provenance | None = None
