"""The ``tensorrt`` backend's interface: engines of NVIDIA's TensorRT for whole parts of a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packager.backends.base import API_VERSION, Context, Unavailable
from packager.backends.tensorrt.library import KNOWN, installed_library
from packager.backends.tensorrt.options import RTX_ARCHS, TensorrtOptions
from packager.bundle.gpu.arch import arch_number
from packager.errors import UsageError

if TYPE_CHECKING:
    from packager.backends.base import Pattern, Search, Target
    from packager.ir.primitives import BackendOutput, Partition

MAX_LEVEL = 5


class TensorrtBackend:
    """Takes every operator that ONNX and TensorRT have, and joins them to partitions as large as can be."""

    api_version = API_VERSION
    kind = "tensorrt"
    device = "cuda"
    options = TensorrtOptions
    summary = "NVIDIA TensorRT: engines for whole parts of a model, built here or by packager finalize"
    merges = True
    needs_library = True
    known_libraries = KNOWN
    example = ("cuda -arch=sm_90a", "tensorrt")

    def canonical(self, options: TensorrtOptions, base: Target | None) -> TensorrtOptions:
        """Check the options together, and the timing cache. Raises UsageError."""
        if options.optimization_level > MAX_LEVEL:
            raise UsageError(
                f"Target 'tensorrt': optimization_level is {options.optimization_level}",
                hint=f"from 0 to {MAX_LEVEL}",
            )
        if options.library == "tensorrt_rtx":
            if options.precision == "fp16":
                raise UsageError(
                    "Target 'tensorrt': TensorRT for RTX computes in the types of the model",
                    hint="convert the model to float16 before the build, or leave -precision out",
                )
            archs = base.options.arch if base is not None else ()
            if wrong := [arch for arch in archs if arch_number(arch) not in RTX_ARCHS]:
                raise UsageError(
                    f"Target 'tensorrt': TensorRT for RTX has no engines for {', '.join(wrong)}",
                    hint="it has them for " + ", ".join(f"sm_{arch}" for arch in RTX_ARCHS) + "; leave -library out",
                )
        if options.embed_runtime:
            _check_runtime(options)
        if options.timing_cache and not Path(options.timing_cache).is_file():
            raise UsageError(
                f"Target 'tensorrt': there is no timing cache {options.timing_cache}", hint="give the path of a file"
            )
        return dataclasses.replace(options)

    def inputs(self, target: Target) -> Sequence[Path]:
        """Return the timing cache and the library that the bundle gets a copy of, if there are any."""
        options = target.options
        runtime = installed_library("tensorrt_lean") if options.embed_runtime else None
        return [*([Path(options.timing_cache)] if options.timing_cache else []), *([runtime] if runtime else [])]

    def probe(self, target: Target) -> Unavailable | None:  # noqa: ARG002
        """Return None: engines that cannot be built here are left to ``packager finalize``."""
        return None

    def patterns(self, target: Target) -> Sequence[Pattern | Search]:
        """Return what it takes. Raises UsageError for operators to leave that it would not take."""
        from packager.backends.tensorrt.patterns import make_patterns

        return make_patterns(target.options.leave, int64=target.options.int64)

    def compile(self, partitions: Sequence[Partition], target: Target, context: Context) -> BackendOutput:
        """Write all partitions as ONNX, and build their engines if that can be done here. Raises ToolchainError."""
        from packager.backends.tensorrt.engines import compile_partitions

        return compile_partitions(partitions, target, context)


def _check_runtime(options: TensorrtOptions) -> None:
    if options.library != "tensorrt_lean":
        raise UsageError(
            f"Target 'tensorrt': embed_runtime is for the lean runtime, not for {options.library}",
            hint="add -library=tensorrt_lean, or put the library beside the bundle",
        )
    if installed_library("tensorrt_lean") is None:
        raise UsageError(
            "Target 'tensorrt': there is no lean runtime here to be embedded",
            hint="pip install tensorrt-lean-cu13-libs, or leave -embed_runtime out",
        )


BACKEND = TensorrtBackend()
