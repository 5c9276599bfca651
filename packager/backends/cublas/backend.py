"""The ``cublas`` backend's interface: products by NVIDIA's cuBLASLt, which the target machine has."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packager.backends.base import API_VERSION, Context, Unavailable
from packager.backends.cublas.library import KNOWN
from packager.backends.cublas.options import COLUMNS_ARCH, FLOAT8_ARCH, MAX_CANDIDATES, OPERATORS, CublasOptions
from packager.bundle.gpu.arch import arch_number
from packager.bundle.tuning_records import read_records
from packager.errors import UsageError
from packager.ir.preparation import Preparation

if TYPE_CHECKING:
    from packager.backends.base import Search, Target
    from packager.ir.primitives import BackendOutput, Partition


class CublasBackend:
    """Takes matrix products of half precision and of 8 bits, with what follows them."""

    api_version = API_VERSION
    kind = "cublas"
    device = "cuda"
    options = CublasOptions
    summary = "NVIDIA cuBLASLt: matrix products, by the library that the target machine has"
    merges = False
    needs_library = True
    known_libraries = KNOWN
    example = ("cuda -arch=sm_90a", "cublas")

    def canonical(self, options: CublasOptions, base: Target | None) -> CublasOptions:
        """Put ``operators`` in one order, of none all that the GPUs have, and read ``tuning``. Raises UsageError."""
        read_records(options.tuning)
        if options.candidates > MAX_CANDIDATES:
            raise UsageError(
                f"Target 'cublas': candidates is {options.candidates}",
                hint=f"the library is asked for at most {MAX_CANDIDATES} answers",
            )
        if not options.soname:
            raise UsageError("Target 'cublas': soname is empty", hint="for example: -soname=libcublasLt.so.13")
        lacking = _lacking(base)
        for group, (archs, enough) in lacking.items():
            if group in options.operators and archs:
                raise UsageError(
                    f"Target 'cublas': operators has {group}, which {', '.join(archs)} does not multiply",
                    hint=f"leave {group} out, or build for {enough} alone",
                )
        wanted = options.operators or [name for name in OPERATORS if name not in lacking or not lacking[name][0]]
        chosen = tuple(name for name in OPERATORS if name in wanted)
        return dataclasses.replace(options, operators=chosen)

    def inputs(self, target: Target) -> Sequence[Path]:
        """Return the files of records."""
        return [Path(name) for name in target.options.tuning]

    def probe(self, target: Target) -> Unavailable | None:  # noqa: ARG002
        """Return None: a build needs neither the library nor a GPU."""
        return None

    def preparation(self, target: Target) -> Preparation:
        """Return that what is quantized is to be computed so, as far as it is taken."""
        groups = set(target.options.operators)
        whole, narrow = "int8" in groups, bool(groups & {"float8", "float8_columns"})
        return Preparation(integer_matmuls=whole, signed_data=whole, float8_matmuls=narrow, float8_halves=narrow)

    def patterns(self, target: Target) -> Sequence[Search]:
        """Return what it takes."""
        from packager.backends.cublas.patterns import make_searches

        return make_searches(target.options)

    def compile(self, partitions: Sequence[Partition], target: Target, context: Context) -> BackendOutput:
        """Compile all partitions. Raises BackendError, ToolchainError with what the compiler says."""
        from packager.backends.cublas.module import compile_partitions

        return compile_partitions(partitions, target, context)


def _lacking(base: Target | None) -> dict[str, tuple[list[str], str]]:
    """Return groups that not all GPUs have: the architectures of the bundle without them, and those with them.

    PTX is for GPUs that nobody knows yet, which need not have what the library does on one architecture alone.
    """
    archs = (*base.options.arch, *base.options.ptx) if base is not None else ()
    others = [name for name in archs if name.startswith("compute_") or arch_number(name) != COLUMNS_ARCH]
    older = [name for name in archs if arch_number(name) < FLOAT8_ARCH]
    return {"float8": (older, f"sm_{FLOAT8_ARCH} and newer"), "float8_columns": (others, f"sm_{COLUMNS_ARCH}a")}


BACKEND = CublasBackend()
