"""The ``ccompiler`` backend's interface: C rendered from templates and compiled by the host's gcc.

A complete backend in few lines, to read before writing one. ``patterns`` has what it takes, ``core`` reads a partition
and splits it into loop nests, ``ops`` has one module per kind of loop nest for a template of ``templates/ccompiler/``,
``module`` assembles them, and ``compiler`` runs gcc.
"""

from __future__ import annotations

import dataclasses
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packager.backends.base import API_VERSION, Context, PartitionOptions, Unavailable, attribute
from packager.codegen.escape import header_name
from packager.codegen.toolchain import find_toolchain
from packager.errors import ToolchainError, UsageError
from packager.ir.preparation import Preparation

if TYPE_CHECKING:
    from packager.backends.base import Pattern, Search, Target
    from packager.ir.primitives import BackendOutput, Partition

OPERATORS = ("elementwise", "dense", "conv2d", "pool2d", "softmax", "layer_norm", "attention", "recurrent", "trees")


@dataclass(frozen=True)
class CCompilerOptions(PartitionOptions):
    """Attributes of the ``ccompiler`` kind."""

    operators: tuple[str, ...] = attribute(OPERATORS, "Groups of operators to take", choices=OPERATORS)
    header: tuple[str, ...] = attribute((), "Headers to include first: an absolute path, or <name>", is_path=True)
    opt_level: int = attribute(3, "The compiler's -O level", choices=(0, 1, 2, 3))
    march: tuple[str, ...] = attribute(
        (),
        "The compiler's -march: one for all CPUs of the base Target, or one for each; default: what -mcpu means to it",
    )
    winograd: int = attribute(
        2,
        "Winograd's algorithm for 3x3 convolutions: the side of its tiles; 2 is as accurate as 0, without it, 4 is not",
        choices=(0, 2, 4),
    )
    fast_math: bool = attribute(False, "Let the compiler break IEEE 754: no NaN, no infinity, any order of additions")


class CCompilerBackend:
    """Compiles elementwise chains, dense, conv2d, pooling, softmax, layer norm, attention and trees, and epilogues."""

    api_version = API_VERSION
    kind = "ccompiler"
    device = "cpu"
    options = CCompilerOptions
    summary = "C rendered from templates, compiled by the host's C compiler"
    merges = True

    def canonical(self, options: CCompilerOptions, base: Target | None) -> CCompilerOptions:
        """Fill in ``march``, and sort ``operators``. Raises UsageError for invalid values."""
        for text in options.header:
            try:
                header_name(text)
            except ValueError as reason:
                raise UsageError(
                    f"attribute 'header' of Target 'ccompiler' {reason}",
                    hint="write -header=/path/to/file.h or -header=<stdint.h>",
                ) from reason
        for text in options.march:
            if not re.fullmatch(r"[\w.+=-]+", text):
                raise UsageError(f"attribute 'march' of Target 'ccompiler' is {text!r}, expected a CPU's name")
        machine = base.machine if base else platform.machine()
        march = options.march or tuple(default_march(machine, cpu) for cpu in (base.cpus if base else ("",)))
        expected = (1, len(base.cpus) if base else 1)
        if len(march) not in expected or len(set(march)) < len(march):
            raise UsageError(
                f"attribute 'march' of Target 'ccompiler' is {','.join(march)}, but the base Target has"
                f" {expected[1]} CPU{'s' if expected[1] > 1 else ''}",
                hint="give one -march for all, or another one for each, in the order of -mcpu",
            )
        chosen = tuple(name for name in OPERATORS if name in options.operators)
        return dataclasses.replace(options, march=march, operators=chosen)

    def probe(self, target: Target) -> Unavailable | None:  # noqa: ARG002  # -march is checked later
        """Return a reason if there is no C compiler; cross compilers are looked up when needed."""
        try:
            find_toolchain(platform.machine())
        except ToolchainError as error:
            return Unavailable(error.message, error.hint or "install gcc")
        return None

    def inputs(self, target: Target) -> Sequence[Path]:
        """Return the headers that the Target names, without system headers."""
        return [Path(name) for name in target.options.header if not name.startswith("<")]

    def patterns(self, target: Target) -> Sequence[Pattern | Search]:
        """Return the patterns of the groups of operators that the Target names."""
        from packager.backends.ccompiler.patterns import make_patterns

        return make_patterns(target.options.operators)

    def preparation(self, target: Target) -> Preparation:
        """Require NHWC for convolutions and poolings, integer arithmetic for quantized products, and whole norms."""
        taken = set(target.options.operators)
        return Preparation(
            channels_last=bool({"conv2d", "pool2d"} & taken),
            integer_matmuls={"conv2d", "dense"} <= taken,
            normalizations="layer_norm" in taken,
            transposed_convolutions="conv2d" in taken,
            block_products="dense" in taken,
        )

    def would_give_back(self, partitions: Sequence[Partition], target: Target) -> Mapping[str, str]:
        """Return what cannot be rendered, and why: it is the same for all CPUs."""
        from packager.backends.ccompiler.compiler import machine_of
        from packager.backends.ccompiler.module import draft_groups

        _, given_back = draft_groups(partitions, machine_of(set()), winograd=target.options.winograd)
        return given_back

    def compile(self, partitions: Sequence[Partition], target: Target, context: Context) -> BackendOutput:
        """Render ``ccompiler.c`` and compile it to ``ccompiler.o``, once for each CPU.

        Raises BackendError with the compiler's message, UsageError for a ``march`` that the compiler does not know.
        """
        from packager.backends.ccompiler.module import compile_partitions

        return compile_partitions(partitions, target, context)


def default_march(machine: str, mcpu: str) -> str:
    """Return gcc's -march for LLVM's ``mcpu``; most names are the same."""
    if mcpu in ("", "generic"):
        return {"x86_64": "x86-64" if mcpu else "x86-64-v3", "aarch64": "armv8-a"}.get(machine, "native")
    return mcpu


BACKEND = CCompilerBackend()
