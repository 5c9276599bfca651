"""The attributes of the ``tensorrt`` kind."""

from __future__ import annotations

from dataclasses import dataclass

from packager.backends.base import PartitionOptions, attribute

LIBRARIES = ("tensorrt", "tensorrt_rtx", "tensorrt_lean")
PRECISIONS = ("typed", "fp16")
ENGINES = ("auto", "pending")
OPTIMUMS = ("largest", "middle", "smallest")
"""``middle`` is the geometric mean of a dim's bounds."""
RTX_ARCHS = (75, 80, 86, 89, 120, 121)
"""Architectures that TensorRT for RTX 1.7 builds for."""


@dataclass(frozen=True)
class TensorrtOptions(PartitionOptions):
    """What a Target says."""

    library: str = attribute(
        "tensorrt",
        "What runs the engines: TensorRT, TensorRT for RTX, or the lean runtime of version-compatible engines",
        choices=LIBRARIES,
    )
    engines: str = attribute(
        "auto", "Build engines if the library is here, or leave all to packager finalize", choices=ENGINES
    )
    precision: str = attribute(
        "typed",
        "Compute in the types of the model, or (fp16: before version 11 only) let TensorRT compute float32 in half",
        choices=PRECISIONS,
    )
    allow_tf32: bool = attribute(False, "Let products of float32 be computed as rounded tf32")
    workspace_mb: int = attribute(1024, "Memory that a layer's kernels may use beside tensors", minimum=1)
    optimization_level: int = attribute(3, "How much time the builder takes: 0 to 5", minimum=0)
    optimize_for: str = attribute(
        "largest", "The sizes of symbolic dims, between their bounds, that engines are fastest for", choices=OPTIMUMS
    )
    refit: bool = attribute(False, "Engines whose weights sessions can swap; may be slower")
    embed_runtime: bool = attribute(
        False, "Put this machine's lean runtime into the bundle, whose targets then need no TensorRT (tensorrt_lean)"
    )
    int64: bool = attribute(False, "Take operators of 64-bit integers too: version 10 and later, and TensorRT for RTX")
    leave: tuple[str, ...] = attribute((), "Operators that are left to other Targets, as nn.conv3d,topk")
    timing_cache: str = attribute("", "A timing cache of TensorRT to start from", is_path=True)
    min_partition_flops: int = attribute(
        1_000_000, "Leave partitions of fewer floating-point operations a call", minimum=0
    )
