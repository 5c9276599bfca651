"""The ``llvm`` backend: TVM's LLVM code generator, which compiles what no other backend takes on the CPU."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from packager.backends.base import API_VERSION, Context, Unavailable, attribute
from packager.bundle.isa.levels import LEVELS
from packager.errors import UsageError

if TYPE_CHECKING:
    from packager.backends.base import Target
    from packager.ir.primitives import BackendOutput, Kernel

# The default CPUs of each machine; the first is the portable baseline.
DEFAULT_CPUS = {"x86_64": ("x86-64-v3", "x86-64-v4"), "aarch64": ("generic",)}


@dataclasses.dataclass(frozen=True)
class LlvmOptions:
    """Attributes of the ``llvm`` kind."""

    mtriple: str = attribute("", "LLVM target triple; default: this machine's (x86_64-linux-gnu, aarch64-linux-gnu)")
    mcpu: tuple[str, ...] = attribute(
        (), "LLVM CPU names, the least first, or 'native' for this machine; default: x86-64-v3,x86-64-v4, or generic"
    )
    micro_batch: int = attribute(
        0, "rows of a batch that a run computes at a time; 0: as activations and weights say", minimum=0
    )


class LlvmBackend:
    """The code generator of the CPU: compiles all kernels of a model for each CPU."""

    api_version = API_VERSION
    kind = "llvm"
    device = "cpu"
    options = LlvmOptions
    summary = "TVM's LLVM code generator: what no other backend takes on the CPU"

    def canonical(self, options: LlvmOptions, base: Target | None) -> LlvmOptions:  # noqa: ARG002
        """Fill in this machine's triple and default CPUs, and sort x86-64 levels.

        Raises UsageError for an unknown machine, and for CPUs that cannot be combined.
        """
        triple = options.mtriple or f"{platform.machine()}-linux-gnu"
        machine = triple.split("-", 1)[0]
        if machine not in DEFAULT_CPUS or "-linux" not in triple:
            raise UsageError(
                f"attribute 'mtriple' of Target 'llvm' is {triple!r}, which packager cannot build for",
                hint="valid triples: x86_64-linux-gnu, aarch64-linux-gnu",
            )
        cpus = options.mcpu or DEFAULT_CPUS[machine]
        if "native" in cpus and machine != platform.machine():
            raise UsageError(
                f"-mcpu=native means this machine ({platform.machine()}), but -mtriple is {triple!r}",
                hint="name the CPU, or leave -mtriple out",
            )
        if len(cpus) > 1 and "native" in cpus:
            raise UsageError(
                f"attribute 'mcpu' of Target 'llvm' is {','.join(cpus)}, but 'native' means one CPU and nothing else",
                hint="give -mcpu=native alone, or name the CPUs",
            )
        if len(set(cpus)) < len(cpus):
            raise UsageError(
                f"attribute 'mcpu' of Target 'llvm' is {','.join(cpus)}, which names a CPU twice",
                hint="name each CPU once, the least first",
            )
        if set(cpus) <= set(LEVELS):
            cpus = tuple(sorted(cpus, key=LEVELS.index))
        return dataclasses.replace(options, mtriple=triple, mcpu=cpus)

    def probe(self, target: Target) -> Unavailable | None:
        """Return a reason if TVM's LLVM has no code for the Target's machine. Raises UsageError for its CPU."""
        from packager.backends.llvm import codegen as llvm_codegen

        if target.machine not in llvm_codegen.machines():
            return Unavailable(f"TVM's LLVM has no code generator for {target.machine}", "install another apache-tvm")
        options: Any = target.options
        for cpu in target.cpus:
            llvm_codegen.tvm_target(options.mtriple, cpu)
        return None

    def generate(self, kernels: Sequence[Kernel], target: Target, context: Context) -> BackendOutput:
        """Compile kernels, for each CPU to objects. Raises BackendError, and UsageError as ``probe``."""
        from packager.backends.llvm import codegen as llvm_codegen

        options: Any = target.options
        return llvm_codegen.generate(kernels, options.mtriple, target.cpus, context)


BACKEND = LlvmBackend()
