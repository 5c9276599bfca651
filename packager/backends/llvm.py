"""The ``llvm`` backend: TVM's LLVM code generator, which compiles what no other backend takes on the CPU."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from packager.backends.base import API_VERSION, Context, Unavailable, attribute
from packager.errors import UsageError

if TYPE_CHECKING:
    from packager.primitives import BackendOutput, Kernel
    from packager.targets import Target

# The portable baseline of each machine, used when a Target names no CPU.
DEFAULT_CPU = {"x86_64": "x86-64-v3", "aarch64": "generic"}


@dataclasses.dataclass(frozen=True)
class LlvmOptions:
    """Attributes of the ``llvm`` kind."""

    mtriple: str = attribute("", "LLVM target triple; default: this machine's (x86_64-linux-gnu, aarch64-linux-gnu)")
    mcpu: str = attribute("", "LLVM CPU name, or 'native' for this machine; default: x86-64-v3 or generic")


class LlvmBackend:
    """The code generator of the CPU: compiles all kernels of a model into one object."""

    api_version = API_VERSION
    kind = "llvm"
    device = "cpu"
    options = LlvmOptions
    summary = "TVM's LLVM code generator: what no other backend takes on the CPU"

    def canonical(self, options: LlvmOptions, base: Target | None) -> LlvmOptions:  # noqa: ARG002
        """Fill in this machine's triple and its portable CPU. Raises UsageError for a machine that is not known."""
        triple = options.mtriple or f"{platform.machine()}-linux-gnu"
        machine = triple.split("-", 1)[0]
        if machine not in DEFAULT_CPU or "-linux" not in triple:
            raise UsageError(
                f"attribute 'mtriple' of Target 'llvm' is {triple!r}, which packager cannot build for",
                hint="valid triples: x86_64-linux-gnu, aarch64-linux-gnu",
            )
        if options.mcpu == "native" and machine != platform.machine():
            raise UsageError(
                f"-mcpu=native means this machine ({platform.machine()}), but -mtriple is {triple!r}",
                hint="name the CPU, or leave -mtriple out",
            )
        return LlvmOptions(mtriple=triple, mcpu=options.mcpu or DEFAULT_CPU[machine])

    def probe(self, target: Target) -> Unavailable | None:
        """Return a reason if TVM's LLVM has no code for the Target's machine. Raises UsageError for its CPU."""
        from packager.backends import llvm_codegen

        machine = _machine(target)
        if machine not in llvm_codegen.machines():
            return Unavailable(f"TVM's LLVM has no code generator for {machine}", "install another apache-tvm")
        options: Any = target.options
        llvm_codegen.tvm_target(options.mtriple, options.mcpu)
        return None

    def generate(self, kernels: Sequence[Kernel], target: Target, context: Context) -> BackendOutput:
        """Compile kernels to ``llvm.o``. Raises BackendError, and UsageError as ``probe``."""
        from packager.backends import llvm_codegen

        options: Any = target.options
        return llvm_codegen.generate(kernels, options.mtriple, options.mcpu, context.workdir / "llvm.o")


def _machine(target: Target) -> str:
    options: Any = target.options
    return str(options.mtriple).split("-", 1)[0]


BACKEND = LlvmBackend()
