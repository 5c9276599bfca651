"""The ``cuda`` backend: TVM's CUDA code generator and nvcc, for what no other backend takes on the GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packager.backends.base import API_VERSION, Context, Unavailable, attribute
from packager.bundle.gpu.arch import arch_key, is_arch
from packager.errors import ToolchainError, UsageError

if TYPE_CHECKING:
    from packager.backends.base import Target
    from packager.ir.primitives import BackendOutput, Kernel


@dataclasses.dataclass(frozen=True)
class CudaOptions:
    """Attributes of the ``cuda`` kind."""

    arch: tuple[str, ...] = attribute((), "GPU architectures to compile for, as sm_80,sm_90a; there is no default")
    ptx: tuple[str, ...] = attribute((), "Also PTX that the driver compiles for later GPUs, as compute_80")
    home: str = attribute("", "Folder of a CUDA toolkit; default: the wheels of packager[cuda]", is_path=True)


class CudaBackend:
    """The code generator of GPUs: compiles all kernels of a model into fatbins, with a C function to launch each."""

    api_version = API_VERSION
    kind = "cuda"
    device = "cuda"
    options = CudaOptions
    summary = "TVM's CUDA code generator and nvcc: what no other backend takes on the GPU"
    example = "cuda -arch=sm_80"

    def canonical(self, options: CudaOptions, base: Target | None) -> CudaOptions:  # noqa: ARG002
        """Put architectures in order. Raises UsageError if there is none, or one that is not written as such."""
        if not options.arch:
            raise UsageError(
                "Target 'cuda' has no attribute 'arch': there is no default",
                hint="name the GPU: -arch=sm_90a for H100 and H200, sm_80 for A100, sm_89 for L4 and L40S;"
                " several: -arch=sm_80,sm_90a",
            )
        return dataclasses.replace(
            options, arch=_ordered("arch", "sm_", options.arch), ptx=_ordered("ptx", "compute_", options.ptx)
        )

    def probe(self, target: Target) -> Unavailable | None:
        """Return a reason if there is no toolkit. Raises UsageError for an architecture that its nvcc lacks."""
        from packager.codegen.cuda_toolkit import check_archs, find_cuda_toolkit

        try:
            toolkit = find_cuda_toolkit(target.options.home)
        except ToolchainError as error:
            return Unavailable(error.message, error.hint or "pip install 'packager[cuda]'")
        check_archs(target.options.arch, target.options.ptx, toolkit)
        return None

    def inputs(self, target: Target) -> Sequence[Path]:
        """Return the compiler of a toolkit that the Target names; the wheels have a version."""
        return [Path(target.options.home) / "bin" / "nvcc"] if target.options.home else []

    def generate(self, kernels: Sequence[Kernel], target: Target, context: Context) -> BackendOutput:
        """Compile kernels to ``cuda.o``: fatbins and launching functions. Raises BackendError, ToolchainError."""
        from packager.backends.cuda.codegen import generate

        return generate(kernels, target, context)


def _ordered(name: str, prefix: str, values: Sequence[str]) -> tuple[str, ...]:
    for value in values:
        if not value.startswith(prefix) or not is_arch(value):
            raise UsageError(
                f"attribute {name!r} of Target 'cuda' is {value!r}, which is no GPU architecture",
                hint=f"write for example -{name}={prefix}80 or -{name}={prefix}90a",
            )
    return tuple(sorted(set(values), key=arch_key))


BACKEND = CudaBackend()
