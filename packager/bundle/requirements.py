"""The manifest's requirements on the host: machine, libraries, CPU features, GPU. Deployment policies check these."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Literal

from packager.bundle.fields import (
    CudaVersion,
    GlibcVersion,
    Identifier,
    LevelName,
    LibraryVersion,
    MachineCode,
    Name,
    Ptx,
    Soname,
    Symbol,
)
from packager.bundle.strict_json import Unique


@dataclass(frozen=True)
class CudaRequirements:
    """Requirements of a CUDA bundle on the GPU and its driver; both lists are empty if the bundle only copies.

    The bundle has machine code for each of ``archs`` and PTX for each of ``ptx``; one compatible item is sufficient.
    ``driver`` is the minimum CUDA version that the driver must support.
    """

    archs: Annotated[tuple[MachineCode, ...], Unique()]
    ptx: Annotated[tuple[Ptx, ...], Unique()]
    driver: CudaVersion

    def describe(self) -> str:
        """Format the architectures for display."""
        return ", ".join((*self.archs, *self.ptx)) or "no architecture: it only copies"


@dataclass(frozen=True)
class CpuLevel:
    """A CPU level that the bundle has code for: its name in the Target, and all CPU features it requires."""

    name: LevelName
    cpu_features: Annotated[tuple[Name, ...], Unique()]


@dataclass(frozen=True)
class LibraryRequirement:
    """A shared library that sessions open, by one of ``sonames``, in order of preference, to call ``functions``.

    By its own account it must be of version ``least`` or newer. What was decided at build time holds for version
    ``chosen_with``; null means any. ``symbol`` is the name that ``primitives`` and alternatives use for it. It is
    ``optional`` if sessions can do without: where it is called, its choice has an alternative that calls no library.
    If it is ``embedded``, the bundle has a copy, which is taken unless the process has the library open already.
    """

    symbol: Identifier
    sonames: Annotated[tuple[Soname, ...], Unique()]
    least: LibraryVersion
    chosen_with: LibraryVersion | None
    functions: Annotated[tuple[Identifier, ...], Unique()]
    optional: bool
    embedded: bool = False


@dataclass(frozen=True)
class Requirements:
    """Requirements on the host and its dynamic linker; ``cuda`` is null in CPU bundles.

    ``undefined`` are the symbols that the libraries in ``needed``, or the program that links an archive, must define,
    with the versions that they are bound to: ``memcpy@GLIBC_2.14``.

    Every session requires ``cpu_features``. ``cpu_levels`` are in increasing order; a session uses the highest that the
    CPU supports; CUDA bundles have none. ``dispatched_features`` are used only behind a run-time check of the CPU.

    Sessions open ``libraries``; the dynamic linker does not.
    """

    machine: Name
    os: Literal["linux"]
    needed: Annotated[tuple[Name, ...], Unique()]
    glibc: GlibcVersion | None
    cpu_features: Annotated[tuple[Name, ...], Unique()]
    exports: Annotated[tuple[Symbol, ...], Unique()]
    undefined: Annotated[tuple[Symbol, ...], Unique()]
    cuda: CudaRequirements | None = None
    cpu_levels: Annotated[tuple[CpuLevel, ...], Unique("name")] = ()
    dispatched_features: Annotated[tuple[Name, ...], Unique()] = ()
    libraries: Annotated[tuple[LibraryRequirement, ...], Unique("symbol")] = ()

    def best_level(self, cpu_features: Collection[str]) -> CpuLevel | None:
        """Return the highest level that a CPU with these features supports, or None."""
        fitting = [level for level in self.cpu_levels if set(level.cpu_features) <= set(cpu_features)]
        return fitting[-1] if fitting else None
