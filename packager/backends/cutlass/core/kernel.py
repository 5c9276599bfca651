"""Kernels of the cutlass backend: one configuration of a CUTLASS template each, and the file that it renders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class KernelSource:
    """A kernel's source file, compiled twice: by nvcc for the device, by the C++ compiler for the host.

    For the device it defines the kernel, ``extern "C" __global__`` under ``name``, with one ``__grid_constant__``
    parameter. For the host (``PK_HOST`` is defined) it defines the ``pk_cuda_fill_fn`` ``<name>_fill`` and the numbers
    ``extern "C" const uint32_t <name>_bytes``, the size of the parameter, and ``<name>_shared_bytes``.

    ``name`` encodes everything that the code depends on. ``archs`` are the architectures to compile for: real ones,
    as ``sm_80``, and virtual ones for PTX. ``megabytes`` is nvcc's peak memory. ``folders`` are further include
    folders inside CUTLASS's sources (``examples/88_hopper_fmha``).
    """

    name: str
    text: str
    archs: tuple[str, ...]
    megabytes: int
    macros: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


class KernelConfig(ABC):
    """A configuration of one of the templates."""

    @property
    @abstractmethod
    def name(self) -> str:
        """A C identifier that encodes everything that the kernel's code depends on."""

    @property
    def needs_workspace(self) -> bool:
        """Whether its blocks share results by a workspace, and count arrivals in the session's counters."""
        return False

    @abstractmethod
    def source(self, archs: tuple[str, ...]) -> KernelSource:
        """Render the kernel's source file for these architectures."""
