"""The ``cutlass`` backend's interface: NVIDIA's CUTLASS for GEMM, convolution and attention, compiled without a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packager.backends.base import API_VERSION, Context, Unavailable
from packager.backends.cutlass.core.options import OPERATORS, SM90A, CutlassOptions
from packager.bundle.tuning_records import read_records
from packager.errors import ToolchainError
from packager.ir.preparation import Preparation

if TYPE_CHECKING:
    from packager.backends.base import Search, Target
    from packager.ir.primitives import BackendOutput, Partition


class CutlassBackend:
    """Takes matrix products with what follows them, and attention."""

    api_version = API_VERSION
    kind = "cutlass"
    device = "cuda"
    options = CutlassOptions
    summary = "NVIDIA CUTLASS: matrix products, attention, convolutions and recurrent layers, compiled with no GPU"
    merges = False
    example = ("cuda -arch=sm_80", "cutlass")

    def canonical(self, options: CutlassOptions, base: Target | None) -> CutlassOptions:
        """Put ``operators`` in one order, fill in the architectures, and read ``tuning``. Raises UsageError."""
        read_records(options.tuning)
        chosen = tuple(name for name in OPERATORS if name in options.operators)
        archs = options.arch or ((*base.options.arch, *base.options.ptx) if base is not None else ())
        candidates = 1 if options.find_first_valid else options.candidates
        return dataclasses.replace(options, operators=chosen, arch=archs, candidates=candidates)

    def inputs(self, target: Target) -> Sequence[Path]:
        """Return the files of records."""
        return [Path(name) for name in target.options.tuning]

    def probe(self, target: Target) -> Unavailable | None:  # noqa: ARG002
        """Return a reason if CUTLASS's sources are not installed."""
        from packager.backends.cutlass.core.compile_kernels import find_cutlass

        try:
            find_cutlass()
        except ToolchainError as error:
            return Unavailable(error.message, error.hint or "pip install 'packager[cutlass]'")
        return None

    def preparation(self, target: Target) -> Preparation:
        """Return that what is quantized is to be computed so, and how convolutions are to be written."""
        return Preparation(
            integer_matmuls=True,
            block_products=target.options.packed_weights > 0 and "dense" in target.options.operators,
            grouped_products="dense" in target.options.operators,
            every_block_product=target.options.packed_weights > 1,
            float8_matmuls=set(target.options.arch) == {SM90A},
            im2col={"dense", "conv2d"} <= set(target.options.operators),
            padded_rows="conv2d" in target.options.operators and set(target.options.arch) == {SM90A},
            planar_convolutions="conv2d" in target.options.operators,
            volume_views="conv2d" in target.options.operators,
            volume_windows="conv2d" in target.options.operators and set(target.options.arch) == {SM90A},
        )

    def patterns(self, target: Target) -> Sequence[Search]:
        """Return what it takes."""
        from packager.backends.cutlass.patterns import make_searches

        return make_searches(target.options)

    def compile(self, partitions: Sequence[Partition], target: Target, context: Context) -> BackendOutput:
        """Compile all partitions. Raises BackendError, ToolchainError with what the compilers say."""
        from packager.backends.cutlass.module import compile_partitions

        return compile_partitions(partitions, target, context)


BACKEND = CutlassBackend()
