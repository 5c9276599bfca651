"""Products with weights in blocks, and the ways to launch them.

More than 16 rows are multiplied by the bits, 16 rows at a time, or by floats of some columns at a time. A route is
written ``few:KERNEL``, ``COLUMNS:DEQUANTIZE:GEMM`` or, of weights that are floats already, ``floats:GEMM``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.cutlass.forms import HALF, SIZES
from packager.backends.cutlass.gemm.cost_model import ceil_div

MOST_FEW = 96
SLICES = (16 << 20, 32 << 20, 64 << 20, 1 << 40)
"""Bytes of the floats of a slice of columns."""
COLUMNS = 256  # of a slice, a multiple


@dataclass(frozen=True)
class BlockProduct:
    """[m, k] times weights [n, k] of ``bits``, quantized in blocks, with zero points or without; 16 divides n, 64 k."""

    m: int
    n: int
    k: int
    bits: int = 4
    block: int = 32
    zeros: bool = False

    form = HALF

    @property
    def group(self) -> str:
        """The group that its figures are summarized with."""
        return "blocks" if self.m <= 16 else "many_blocks"

    @property
    def name(self) -> str:
        """The name in files and options."""
        return f"{self.group}_{self.m}x{self.n}x{self.k}_w{self.bits}g{self.block}{'z' * self.zeros}"

    @property
    def nbytes(self) -> int:
        """Bytes of operands and result."""
        numbers = (2 + self.zeros) * self.n * self.k // self.block
        return self.n * self.k * self.bits // 8 + numbers + SIZES["float16"] * self.m * (self.n + self.k)


def slices_of(problem: BlockProduct) -> list[int]:
    """Return the columns of each of the slices, the smallest first."""
    counts = [ceil_div(problem.n * problem.k * 2, nbytes) for nbytes in SLICES]
    return sorted({ceil_div(ceil_div(problem.n, count), COLUMNS) * COLUMNS for count in counts})


def routes(problem: BlockProduct, few: str, dequantize: str, gemms: Sequence[str]) -> Iterator[str]:
    """Yield the routes of a problem; ``gemms`` are the kernels of its slices, in their order."""
    yield from [f"few:{few}"] if problem.m <= MOST_FEW else []
    yield from (f"{columns}:{dequantize}:{gemm}" for columns, gemm in zip(slices_of(problem), gemms, strict=True))
    yield f"floats:{gemms[-1]}"
