"""The ``cudnn`` backend's interface: convolutions by NVIDIA's cuDNN, which the target machine has."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packager.backends.base import API_VERSION, Context, Unavailable
from packager.backends.cudnn.devices import default_devices, find_devices
from packager.backends.cudnn.library import KNOWN
from packager.backends.cudnn.options import MAX_CANDIDATES, OPERATORS, CudnnOptions
from packager.bundle.tuning_records import read_records
from packager.errors import UsageError

if TYPE_CHECKING:
    from packager.backends.base import Search, Target
    from packager.ir.primitives import BackendOutput, Partition


class CudnnBackend:
    """Takes convolutions with what follows them."""

    api_version = API_VERSION
    kind = "cudnn"
    device = "cuda"
    options = CudnnOptions
    summary = "NVIDIA cuDNN: convolutions of all sorts, by the library that the target machine has"
    merges = False
    needs_library = True
    known_libraries = KNOWN
    example = ("cuda -arch=sm_90a", "cudnn")

    def canonical(self, options: CudnnOptions, base: Target | None) -> CudnnOptions:
        """Put ``operators`` in one order, fill in the devices, and read ``tuning``. Raises UsageError."""
        read_records(options.tuning)
        if options.candidates > MAX_CANDIDATES:
            raise UsageError(
                f"Target 'cudnn': candidates is {options.candidates}",
                hint=f"the library is asked for at most {MAX_CANDIDATES} plans",
            )
        if not options.soname:
            raise UsageError("Target 'cudnn': soname is empty", hint="for example: -soname=libcudnn.so.9")
        archs = base.options.arch if base is not None else ()
        devices = options.device or default_devices(archs)
        find_devices(devices)
        chosen = tuple(name for name in OPERATORS if name in options.operators)
        return dataclasses.replace(options, operators=chosen, device=devices)

    def inputs(self, target: Target) -> Sequence[Path]:
        """Return the files of records and of devices, and the library that plans are of."""
        from packager.backends.cudnn.planner import find_libraries

        options = target.options
        libraries = find_libraries(options.soname)
        devices = [device.path for device in find_devices(options.device)]
        return [*map(Path, options.tuning), *devices, *([libraries.cudnn] if libraries else [])]

    def probe(self, target: Target) -> Unavailable | None:  # noqa: ARG002
        """Return None: a build needs neither the library nor a GPU."""
        return None

    def patterns(self, target: Target) -> Sequence[Search]:
        """Return what it takes."""
        from packager.backends.cudnn.patterns import make_searches

        return make_searches(target.options)

    def compile(self, partitions: Sequence[Partition], target: Target, context: Context) -> BackendOutput:
        """Compile all partitions. Raises BackendError, ToolchainError with what the compiler says."""
        from packager.backends.cudnn.module import compile_partitions

        return compile_partitions(partitions, target, context)


BACKEND = CudnnBackend()
