"""The ``llvm`` backend: TVM's LLVM code generator, which compiles what no other backend takes on the CPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm

from packager import isa
from packager.backends.base import Unavailable
from packager.deploy.elf import read_elf
from packager.errors import BackendError, UsageError
from packager.ir import BackendOutput, Kernel, ObjectFile
from packager.kernels import lower_kernels
from packager.manifest import Primitive
from packager.targets import Target

# What generated code may call: the C library, the math library, and the compiler's support library.
ALLOWED_UNDEFINED = {"memcpy", "memset", "memmove"}


class LlvmBackend:
    """Compiles all kernels of a model into one object."""

    kind = "llvm"

    def probe(self, target: Target) -> Unavailable | None:
        """Return a reason if TVM's LLVM cannot generate code for the Target's machine."""
        names = {str(name) for name in tvm.get_global_func("target.llvm_get_targets")()}
        if target.machine not in names:
            return Unavailable(f"TVM's LLVM has no code generator for {target.machine}", "install another apache-tvm")
        return None

    def compile(
        self, kernels: Sequence[Kernel], primitives: Sequence[Primitive], target: Target, workdir: Path
    ) -> BackendOutput:
        """Compile kernels to ``llvm.o``. Raises UsageError for a CPU that LLVM does not know, BackendError."""
        tvm_target = _tvm_target(target)
        version = str(tvm.get_global_func("target.llvm_version_major")())
        toolchain = {"tvm": tvm.__version__, "llvm": version}
        if not kernels:
            return BackendOutput(self.kind, (), (), toolchain)
        path = workdir / "llvm.o"
        try:
            module = lower_kernels(tuple(kernels), tvm_target)
            code = tvm.get_global_func("target.build.llvm")(module, tvm_target)
            path.write_bytes(_object_bytes(code))
        except tvm.error.InternalError as error:
            raise BackendError("llvm: TVM failed to generate code", detail=str(error).strip()) from error
        _check_symbols(path, kernels)
        library = ObjectFile(path, tuple(kernel.symbol for kernel in kernels), isa.cpu_features(path))
        return BackendOutput(self.kind, (library,), tuple(primitives), toolchain)


def _object_bytes(code: Any) -> bytes:
    """Return a module's object file. Through a file in memory: LLVM ends the process when a disk is full."""
    handle = os.memfd_create("llvm.o")
    path = Path(f"/proc/self/fd/{handle}")
    try:
        code.write_to_file(str(path), "o")
        return path.read_bytes()
    finally:
        os.close(handle)


def _tvm_target(target: Target) -> tvm.target.Target:
    """Return TVM's Target. TVM takes any mcpu and silently compiles for the baseline if LLVM does not know it."""
    mcpu = target.options.mcpu
    if mcpu == "native":
        mcpu = str(tvm.get_global_func("target.llvm_get_system_cpu")())
    tvm_target = tvm.target.Target({"kind": "llvm", "mtriple": target.options.mtriple, "mcpu": mcpu})
    if not tvm.get_global_func("target.llvm_is_valid_cpu")(mcpu, target.options.mtriple):
        known = tvm.get_global_func("target.llvm_get_cpu_archlist")(tvm_target)
        raise UsageError(
            f"attribute 'mcpu' of Target 'llvm' is {mcpu!r}, which LLVM does not know for {target.machine}",
            hint="valid CPUs: " + ", ".join(sorted(str(name) for name in known)),
        )
    return tvm_target


def _check_symbols(path: Path, kernels: Sequence[Kernel]) -> None:
    """Raise BackendError unless the object defines every kernel and calls nothing that a bundle lacks."""
    image = read_elf(path)
    missing = {kernel.symbol for kernel in kernels} - set(image.symbols)
    if missing:
        raise BackendError(f"llvm: the object does not define {', '.join(sorted(missing))}")
    runtime_calls = sorted(name for name in image.undefined if name.startswith(("TVM", "__tvm")))
    if runtime_calls:
        raise BackendError(
            f"llvm: the generated code calls {', '.join(runtime_calls)}, which needs TVM's runtime",
            hint="an operator of the model is implemented by a library call; it is not supported yet",
        )
