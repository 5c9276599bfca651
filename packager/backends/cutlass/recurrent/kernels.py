"""Kernels of recurrent layers, which keep the recurrent weights in registers, and how these are packed for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from packager.backends.cutlass.core.element_types import ELEMENTS, WARP_TYPES
from packager.backends.cutlass.core.kernel import KernelConfig, KernelSource
from packager.bundle.dtypes import HALVES
from packager.codegen.templates import MARK, render

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

MEGABYTES = 500
# Hidden units of a layer whose weights the registers of one block hold, and of a block of a cluster, whose lanes have
# half as many registers of weights as there are units in all.
MOST_OF_BLOCK, OF_CLUSTER, MOST = 128, 64, 320


@dataclass(frozen=True)
class RecurrentKernel(KernelConfig):
    """A kernel for layers of at most ``depth`` hidden units, of which each of ``blocks`` computes ``units``."""

    dtype: str
    cell: str
    units: int
    depth: int
    blocks: int

    @property
    def name(self) -> str:
        """A C identifier that encodes everything that the kernel's code depends on."""
        return f"pk_recurrent_{ELEMENTS[self.dtype].short}_{self.cell}_{self.depth}_{self.units}x{self.blocks}"

    def source(self, archs: tuple[str, ...]) -> KernelSource:
        """Render the kernel's source file for these architectures."""
        text = render(
            "cutlass/recurrent/recurrent.cu.j2",
            mark=MARK,
            name=self.name,
            element=WARP_TYPES[self.dtype],
            gru=self.cell == "gru",
            units=self.units,
            depth=self.depth,
            blocks=self.blocks,
        )
        return KernelSource(self.name, text, archs, MEGABYTES)

    def pack(self, weights: Array, order: Sequence[int]) -> Array:
        """Pack weights [directions, gates * hidden, hidden], gates in ``order``, as lanes load them.

        The result is [directions, warps of all blocks, steps of k, tile, lane, 8]: a lane's elements of a tile of 16
        rows, two gates of eight units, and 16 columns.
        """
        directions, _, hidden = weights.shape
        gates = weights.reshape(directions, -1, hidden, hidden)[:, list(order)]
        padded = np.zeros((directions, 4, self.blocks * self.units, self.depth), weights.dtype)
        padded[:, : len(order), :hidden, :hidden] = gates
        split = padded.reshape(directions, 2, 2, -1, 8, self.depth // 16, 2, 4, 2)
        return np.ascontiguousarray(split.transpose(0, 3, 5, 1, 4, 7, 6, 2, 8)).reshape(directions, -1)


def kernel_for(dtype: str, cell: str, hidden: int) -> RecurrentKernel | None:
    """Return the kernel of a layer, or None if its weights fit in no cluster's registers."""
    depth = -(-hidden // 16) * 16
    if dtype not in HALVES or depth > MOST:
        return None
    if depth <= MOST_OF_BLOCK:
        return RecurrentKernel(dtype, cell, depth, depth, 1)
    return RecurrentKernel(dtype, cell, OF_CLUSTER, depth, -(-depth // OF_CLUSTER))
