"""The attributes of the ``cudnn`` kind."""

from __future__ import annotations

from dataclasses import dataclass

from packager.backends.base import PartitionOptions, attribute

OPERATORS = ("conv1d", "conv2d", "conv3d", "conv_transpose", "depthwise")
DEFAULT = OPERATORS[:-1]
MAX_CANDIDATES = 16
"""As PK_CUDNN_MAX_CANDIDATES of templates/cudnn/conv.h."""


@dataclass(frozen=True)
class CudnnOptions(PartitionOptions):
    """What a Target says."""

    operators: tuple[str, ...] = attribute(DEFAULT, "Groups of operators to take", choices=OPERATORS)
    soname: tuple[str, ...] = attribute(("libcudnn.so.9",), "The library by its sonames, in order of preference")
    device: tuple[str, ...] = attribute(
        (),
        "GPUs that plans are chosen for: names, or files with what packager machine --gpu prints; default: one"
        " for each architecture of the base Target",
        is_path=True,
    )
    candidates: int = attribute(4, "The library's plans to choose from for each problem, by packager tune", minimum=1)
    workspace_mb: int = attribute(64, "Memory that a plan may use beside its operands, in the arena", minimum=0)
    allow_tf32: bool = attribute(False, "Take convolutions of float32, and multiply them as rounded tf32")
    tuning: tuple[str, ...] = attribute((), "Files of records that packager tune wrote", is_path=True)
