"""The attributes of the ``cutlass`` kind."""

from __future__ import annotations

from dataclasses import dataclass

from packager.backends.base import PartitionOptions, attribute

OPERATORS = ("dense", "attention", "conv2d", "recurrent")
SM90A = "sm_90a"
"""The architecture that Hopper's kernels are for, alone."""


@dataclass(frozen=True)
class CutlassOptions(PartitionOptions):
    """What a Target says. The names are those of TVM's former ``cutlass`` kind where it had the attribute."""

    operators: tuple[str, ...] = attribute(OPERATORS, "Groups of operators to take", choices=OPERATORS)
    arch: tuple[str, ...] = attribute((), "GPU architectures, and PTX's; default: all of the base Target")
    candidates: int = attribute(3, "Kernels of each problem that the bundle ships, for packager tune", minimum=1)
    find_first_valid: bool = attribute(False, "Ship the first kernel alone, as candidates=1")
    tuning: tuple[str, ...] = attribute((), "Files of records that packager tune wrote", is_path=True)
    packed_weights: int = attribute(
        1,
        "Keep weights in blocks packed: 1 where 16 rows or fewer may be multiplied, 2 always, 0 never",
        choices=(0, 1, 2),
    )
    use_3xtf32: bool = attribute(True, "Multiply float32 as three products of parts; else as one of rounded tf32")
    use_fast_math: bool = attribute(False, "Activations by the GPU's approximations")
    split_k_slices: int = attribute(
        1, "Blocks that may share a tile of a product, each with a part of K; a candidate beside the usual", minimum=1
    )
    profile_all_alignments: bool = attribute(False, "Also rank kernels of smaller alignments than sizes allow")
    use_multiprocessing: bool = attribute(True, "Compile several kernels at a time")
    threads: int = attribute(1, "Architectures of a kernel that nvcc compiles at a time", minimum=1)
    tmp_dir: str = attribute("", "Folder for nvcc's temporary files; default: the system's", is_path=True)
