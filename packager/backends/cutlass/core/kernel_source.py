"""What a kernel of the cutlass backend is: one configuration of a CUTLASS template, whatever it is asked to solve."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KernelSource:
    """A kernel's file, compiled twice: by nvcc for the device, by the C++ compiler for the host.

    For the device it defines the kernel, ``extern "C" __global__`` under ``name``, with one ``__grid_constant__``
    parameter. For the host (``PK_HOST`` is defined) it defines the ``pk_cuda_fill_fn`` ``<name>_fill`` and the numbers
    ``extern "C" const uint32_t <name>_bytes``, the size of the parameter, and ``<name>_shared_bytes``.

    ``name`` says everything that the code depends on. ``archs`` are those that it is compiled for: real ones, as
    ``sm_80``, and for PTX virtual ones. ``megabytes`` is how much memory nvcc takes for it. ``folders`` are folders of
    CUTLASS's sources (``examples/88_hopper_fmha``) that are searched for headers, beside its include folder.
    """

    name: str
    text: str
    archs: tuple[str, ...]
    megabytes: int
    macros: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
