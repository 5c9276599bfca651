"""Products with weights that are quantized in blocks, for the benchmark fp16."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.cutlass.forms import HALF, SIZES


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
