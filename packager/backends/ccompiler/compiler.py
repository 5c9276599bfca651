"""Run the host's C compiler: detect the vector unit of a CPU, and compile the rendered module."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from packager.backends.base import Context
from packager.backends.ccompiler.core.machine import Machine
from packager.codegen.toolchain import run
from packager.errors import BackendError, ToolchainError, UsageError

# IEEE 754 as numpy has it: no errno, no traps, no vector math library; contraction into fused multiply-add is allowed.
FLAGS = ("-std=gnu11", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
# GCC 12's predictive commoning spills registers; its loop distribution turns short copies into calls and string
# instructions, which start slowly.
TUNING = ("-fno-predictive-commoning", "-fno-tree-loop-distribute-patterns", "-fno-thread-jumps")
QUIET = ("-g0", "-fno-ident", "-fno-asynchronous-unwind-tables", "-fno-stack-protector", "-Wno-psabi")


def cpu_flag(march: str, machine: str) -> str:
    """Return the option that names a CPU: on arm64 ``-march`` takes architectures only."""
    is_cpu = machine == "aarch64" and not march.startswith("armv") and march != "native"
    return f"-mcpu={march}" if is_cpu else f"-march={march}"


def predefined(context: Context, march: str) -> set[str]:
    """Return the macros that the compiler predefines for a CPU. Raises UsageError for an unknown CPU."""
    toolchain = context.toolchain
    asked = [toolchain.cc, cpu_flag(march, toolchain.machine), "-dM", "-E", "-x", "c", os.devnull]
    try:
        text = run(asked, cwd=context.workdir)
    except ToolchainError as error:
        if march not in error.stderr:  # the compiler itself is broken
            raise
        raise UsageError(
            f"attribute 'march' of Target 'ccompiler' is {march!r}, which the C compiler does not know for"
            f" {toolchain.machine}",
            hint="; ".join(line for line in error.stderr.splitlines() if "note:" in line) or "name another CPU",
        ) from error
    return {line.split()[1] for line in text.splitlines()}


def machine_of(macros: set[str]) -> Machine:
    """Return the vector unit of a CPU."""
    if "__x86_64__" not in macros:
        return Machine(16, 32, "aarch64")
    if "__AVX512F__" in macros:
        return Machine(64, 32, "avx512", quads="__AVX512VNNI__" in macros)
    if "__AVX2__" in macros and "__F16C__" in macros:
        return Machine(32, 16, "avx2")
    return Machine(16, 16, "sse2")


def compile_module(source: Path, target: Path, march: str, options: Any, context: Context) -> Path:
    """Compile for a CPU. Raises BackendError with the compiler's message, ToolchainError if a disk is full."""
    toolchain = context.toolchain
    argv = [toolchain.cc, *FLAGS, *TUNING, *QUIET, f"-O{options.opt_level}", cpu_flag(march, toolchain.machine)]
    argv += ["-ffast-math"] if options.fast_math else []
    headers = [Path(name) for name in options.header if not name.startswith("<")]
    try:
        run([*argv, "-c", source.name, "-o", str(target)], cwd=source.parent, reads=headers)
    except ToolchainError as error:
        if error.hint:  # a full disk, the sandbox: not the fault of what is compiled
            raise
        missing = "No such file or directory" in error.stderr and bool(options.header)
        raise BackendError(
            "ccompiler: the C compiler refused the rendered C",
            detail=error.stderr or error.message,
            hint="a header must be an absolute path or a system header in <>" if missing else None,
        ) from error
    return target
