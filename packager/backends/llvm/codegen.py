"""Compile kernels to object files with TVM's LLVM."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import tvm

from packager.backends.base import Context
from packager.bundle.elf.file import read_elf
from packager.bundle.manifest import License
from packager.codegen.workers import workers
from packager.errors import BackendError, UsageError, valid_names
from packager.ir.primitives import BackendOutput, Kernel, StaticLibrary
from packager.lower.cpu.kernels import lower_kernels

KERNELS_PER_OBJECT = 8
"""Objects are compiled in parallel, and say how far a build is; each costs some milliseconds."""
LICENSE = License("Apache TVM generated code", "Apache-2.0")


def machines() -> set[str]:
    """Return the architectures that this LLVM supports, as in triples."""
    return {str(name) for name in tvm.get_global_func("target.llvm_get_targets")()}


def generate(kernels: Sequence[Kernel], triple: str, cpus: Sequence[str], context: Context) -> BackendOutput:
    """Compile kernels to a library of objects for each CPU, the baseline's first.

    Raises UsageError for an unknown CPU, BackendError.
    """
    targets = [tvm_target(triple, cpu) for cpu in cpus]
    version = str(tvm.get_global_func("target.llvm_version_major")())
    toolchain = {"tvm": tvm.__version__, "llvm": version}
    if not kernels:
        return BackendOutput("llvm", toolchain=toolchain)
    parts = [kernels[at : at + KERNELS_PER_OBJECT] for at in range(0, len(kernels), KERNELS_PER_OBJECT)]
    symbols = tuple(kernel.symbol for kernel in kernels)
    levels = ("", *cpus[1:])
    names = ["llvm", *(f"llvm-{cpu}" for cpu in cpus[1:])]
    libraries = tuple(
        StaticLibrary(
            f"{name}.o",
            tuple(context.workdir / f"{name}_{index}.o" for index in range(len(parts))),
            symbols,
            level=level,
        )
        for name, level in zip(names, levels, strict=True)
    )
    total = len(kernels) * len(cpus)
    with (
        context.counted("compiling primitive function", total, at_once=context.jobs) as steps,
        workers(context.jobs) as pool,
    ):

        def compile_part(task: tuple[int, int]) -> None:
            part, cpu = task
            with steps.step(len(parts[part])):
                _compile(parts[part], targets[cpu], libraries[cpu].files[part])

        list(pool.map(compile_part, product(range(len(parts)), range(len(cpus)))))
    return BackendOutput("llvm", libraries, licenses=(LICENSE,), toolchain=toolchain)


def _compile(kernels: Sequence[Kernel], target: tvm.target.Target, path: Path) -> None:
    try:
        module = lower_kernels(tuple(kernels), target)
        code = tvm.get_global_func("target.build.llvm")(module, target)
        path.write_bytes(_object_bytes(code))
    except tvm.error.InternalError as error:
        raise BackendError("llvm: TVM failed to generate code", detail=str(error).strip()) from error
    _refuse_runtime_calls(path)


def _object_bytes(code: Any) -> bytes:
    """Return a module's object file. Through a file in memory: LLVM ends the process when a disk is full."""
    handle = os.memfd_create("llvm.o")
    path = Path(f"/proc/self/fd/{handle}")
    try:
        code.write_to_file(str(path), "o")
        return path.read_bytes()
    finally:
        os.close(handle)


def tvm_target(triple: str, cpu: str) -> tvm.target.Target:
    """Return TVM's Target. Raises UsageError for a CPU that LLVM does not know: TVM would compile for the baseline."""
    if cpu == "native":
        cpu = str(tvm.get_global_func("target.llvm_get_system_cpu")())
    if not tvm.get_global_func("target.llvm_is_valid_cpu")(cpu, triple):
        machine = tvm.target.Target({"kind": "llvm", "mtriple": triple})
        known = sorted(str(name) for name in tvm.get_global_func("target.llvm_get_cpu_archlist")(machine))
        raise UsageError(
            f"attribute 'mcpu' of Target 'llvm' is {cpu!r}, which LLVM does not know for {triple.split('-', 1)[0]}",
            hint=valid_names(cpu, known, "CPUs"),
        )
    return tvm.target.Target({"kind": "llvm", "mtriple": triple, "mcpu": cpu})


def _refuse_runtime_calls(path: Path) -> None:
    """Raise BackendError if the code calls TVM's runtime: an operator is implemented by a library call there."""
    runtime_calls = sorted(name for name in read_elf(path).undefined if name.startswith(("TVM", "__tvm")))
    if runtime_calls:
        raise BackendError(
            f"llvm: the generated code calls {', '.join(runtime_calls)}, which needs TVM's runtime",
            hint="an operator of the model is implemented by a library call; it is not supported yet",
        )
