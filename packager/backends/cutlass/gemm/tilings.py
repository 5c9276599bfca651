"""How CUTLASS's kernels divide a product: tiles of blocks and warps, clusters, pipelines, and their schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from packager.backends.cutlass.core.element_types import ELEMENTS

Family = Literal["sm90", "sm80"]
# CUTLASS's schedules of the main loop and of the epilogue.
SCHEDULES = {
    "plain": ("KernelTmaWarpSpecialized", "TmaWarpSpecialized"),
    "pingpong": ("KernelTmaWarpSpecializedPingpong", "TmaWarpSpecialized"),
    "cooperative": ("KernelTmaWarpSpecializedCooperative", "TmaWarpSpecializedCooperative"),
}


@dataclass(frozen=True)
class Sm90Tile:
    """The tiling of an sm90 kernel: ``shape`` is (M, N, K) of a block, ``cluster`` blocks along M and N.

    For a convolution M are pixels of the output, N filters and K channels. ``stages`` 0 is as many as fit.
    ``epilogue`` is the epilogue's tile, None CUTLASS's default. ``blocks`` is the minimum number of blocks per SM,
    where its shared memory allows. A ``swapped`` kernel solves the transposed problem, for few rows: its shape is
    (N, M, K) of the problem.
    """

    shape: tuple[int, int, int]
    cluster: tuple[int, int] = (1, 1)
    schedule: str = "pingpong"
    stages: int = 0
    epilogue: tuple[int, int] | None = None
    blocks: int = 1
    swapped: bool = False

    family = "sm90"
    slices = 1

    @property
    def name(self) -> str:
        """The tile as a part of a kernel's name."""
        parts = ["x".join(map(str, self.shape)), f"c{self.cluster[0]}x{self.cluster[1]}", self.schedule]
        parts += [f"s{self.stages}"] if self.stages else []
        parts += [f"e{self.epilogue[0]}x{self.epilogue[1]}"] if self.epilogue else []
        parts += [f"b{self.blocks}"] if self.blocks > 1 else []
        return "_".join(parts + ["t"] * self.swapped)

    def values(self) -> dict[str, Any]:
        """Return the values of templates."""
        schedule, epilogue_schedule = SCHEDULES[self.schedule]
        schedules = {"schedule": schedule, "epilogue_schedule": epilogue_schedule, "epilogue_tile": self.epilogue}
        return {**vars(self), "tile": self.shape, **schedules}


@dataclass(frozen=True)
class Sm80Tile:
    """The tiling of an sm80 kernel: ``shape`` is (M, N, K) of a block, ``warp`` (M, N) of a warp.

    ``slices`` blocks share a tile, each with a part of K; 0 is stream-K, as many as fill the GPU. Unless it is 1,
    GEMMs need a workspace, and batches are not split; in a convolution the slices are a cluster, which needs sm90.
    """

    shape: tuple[int, int, int]
    warp: tuple[int, int]
    stages: int
    slices: int = 1

    family = "sm80"

    @property
    def name(self) -> str:
        """The tile as a part of a kernel's name."""
        shape, warp = "x".join(map(str, self.shape)), "x".join(map(str, self.warp))
        return "_".join([shape, f"w{warp}", f"s{self.stages}"] + [f"k{self.slices}"] * (self.slices != 1))

    def values(self) -> dict[str, Any]:
        """Return the values of templates."""
        return {**vars(self), "tile": self.shape}


Tile = Sm90Tile | Sm80Tile


def fits(tile: Tile, out: str) -> bool:
    """Return whether rows of the epilogue's tile are made of whole rows of shared memory, of 128 bytes or less."""
    if isinstance(tile, Sm80Tile) or tile.epilogue is None:
        return True
    row = tile.epilogue[1] * ELEMENTS[out].size
    return row <= 128 or row % 128 == 0


def has_gates(tile: Tile) -> bool:
    """Return whether a tile may have columns of gates beside those that they multiply."""
    return isinstance(tile, Sm90Tile) and not tile.swapped and tile.epilogue is None
