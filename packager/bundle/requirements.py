"""What a bundle asks of the machine that loads it: the part of the manifest that deployments are gated by."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Literal

from packager.bundle.fields import CudaVersion, GlibcVersion, LevelName, MachineCode, Name, Ptx, Symbol
from packager.bundle.strict_json import Unique


@dataclass(frozen=True)
class CudaRequirements:
    """What a CUDA bundle asks of a GPU and its driver; both lists are empty where nothing but copies is run.

    The bundle has machine code for each of ``archs`` and PTX for each of ``ptx``; one that fits the GPU is enough, even
    if some modules are for particular GPUs alone. ``driver`` is the least version of CUDA that the driver must support.
    """

    archs: Annotated[tuple[MachineCode, ...], Unique()]
    ptx: Annotated[tuple[Ptx, ...], Unique()]
    driver: CudaVersion

    def describe(self) -> str:
        """Return the architectures for people."""
        return ", ".join((*self.archs, *self.ptx)) or "no architecture: it only copies"


@dataclass(frozen=True)
class CpuLevel:
    """A CPU that the bundle has code for, by the name that its Target gives it, and all that sessions of it need."""

    name: LevelName
    cpu_features: Annotated[tuple[Name, ...], Unique()]


@dataclass(frozen=True)
class Requirements:
    """What the machine and its dynamic linker must provide; ``undefined`` is empty but for static archives, ``cuda``
    is null for bundles that run on the CPU.

    ``cpu_features`` are what every session needs. Of ``cpu_levels``, the least first, a session uses the last that the
    CPU has all features of; there are none in a CUDA bundle. ``dispatched_features`` are what code uses that asks the
    CPU for them itself.
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

    def best_level(self, cpu_features: Collection[str]) -> CpuLevel | None:
        """Return the level that a session has on a CPU with these features; None if there is none."""
        fitting = [level for level in self.cpu_levels if set(level.cpu_features) <= set(cpu_features)]
        return fitting[-1] if fitting else None
