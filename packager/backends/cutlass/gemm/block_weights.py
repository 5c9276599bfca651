"""Kernels for weights of 4 or 8 bits that are quantized in blocks along the depth: GEMM of at most 16 rows, and
what makes the weights floats."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from packager.backends.cutlass.core.element_types import ELEMENTS, WARP_TYPES
from packager.backends.cutlass.core.kernel import KernelConfig, KernelSource
from packager.backends.cutlass.gemm.few_rows import MEGABYTES, WARPS, RowsForm, RowsKernel, warps_for
from packager.codegen.templates import MARK, render
from packager.graph.block_weights import BlockFormat, unpack

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

ROWS = (8, 16)  # of kernels; see has_row_kernel for one row
OUTPUTS = {"float16": ("float16", "float32"), "bfloat16": ("bfloat16", "float32")}  # by the type of the data
COLUMNS = 16  # of a tile
UNIT_BITS = 256  # of a column, as in templates/cutlass/gemm/block_format.h
LEAST_BLOCK = 16
CHUNK = 32  # elements of a column whose eighths are of the lanes of a group
# Where the bits of eight elements lie in a word of 4 bits each: one mask gives two neighbors as halves of a register.
NIBBLES = np.array([0, 4, 1, 5, 2, 6, 3, 7], np.uint32)


@dataclass(frozen=True)
class BlockRowsGemm(RowsKernel):
    """A kernel for ``rows`` rows or fewer of ``dtype``; ``out`` is of bias, c and d.

    ``blocks_of_unit`` blocks are a unit, or one is a unit or several. The others are those of FewRowsGemm. Raises
    ValueError for what the template has no form for.
    """

    rows: int
    out: str
    bits: int
    blocks_of_unit: int
    has_zeros: bool
    activation: str = "none"
    residual: bool = False
    fast_math: bool = False
    dtype: str = "float16"
    gated: bool = False
    normed: bool = False
    warps: int = WARPS

    def __post_init__(self) -> None:
        known = self.rows in (1, *ROWS) and self.bits in (4, 8) and self.warps in (WARPS, 2 * WARPS)
        known = known and (self.rows > 1 or has_row_kernel(self.bits, self.blocks_of_unit))
        if not known or (self.gated and self.residual):
            both = " with gates and a residual" * self.gated
            raise ValueError(f"there is no kernel of {self.rows} rows and {self.bits} bits{both}")

    @property
    def name(self) -> str:
        """A C identifier that encodes everything that the kernel's code depends on."""
        weights = weights_name(self.bits, self.blocks_of_unit, has_zeros=self.has_zeros)
        types = ELEMENTS[self.dtype].short, ELEMENTS[self.out].short
        return "_".join(["pk_gemm_blocks", *types, str(self.rows), weights, *self.parts])

    def source(self, archs: tuple[str, ...]) -> KernelSource:
        """Render the kernel's source file for these architectures."""
        text = render(
            "cutlass/gemm/gemm_blocks.cu.j2",
            mark=MARK,
            name=self.name,
            element=WARP_TYPES[self.dtype],
            element_d=WARP_TYPES[self.out],
            activation=self.functor,
            residual=self.residual,
            gated=self.gated,
            normed=self.normed,
            blocks=2 * WARPS // self.warps,
            warps=self.warps,
            rows=self.rows,
            bits=self.bits,
            blocks_of_unit=self.blocks_of_unit,
            zeros="true" if self.has_zeros else "false",
        )
        return KernelSource(self.name, text, archs, MEGABYTES)


@dataclass(frozen=True)
class DequantizeBlocks(KernelConfig):
    """A kernel that makes columns of such weights floats of ``dtype``; the other fields are those of BlockRowsGemm.

    Raises ValueError for bits that the template has no form for.
    """

    dtype: str
    bits: int
    blocks_of_unit: int
    has_zeros: bool

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise ValueError(f"there is no kernel of {self.bits} bits")

    @property
    def name(self) -> str:
        """A C identifier that encodes everything that the kernel's code depends on."""
        weights = weights_name(self.bits, self.blocks_of_unit, has_zeros=self.has_zeros)
        return f"pk_dequantize_{ELEMENTS[self.dtype].short}_{weights}"

    def source(self, archs: tuple[str, ...]) -> KernelSource:
        """Render the kernel's source file for these architectures."""
        text = render(
            "cutlass/gemm/gemm_dequantize.cu.j2",
            mark=MARK,
            name=self.name,
            element=WARP_TYPES[self.dtype],
            bits=self.bits,
            blocks_of_unit=self.blocks_of_unit,
            zeros="true" if self.has_zeros else "false",
        )
        return KernelSource(self.name, text, archs, MEGABYTES)


def weights_name(bits: int, together: int, *, has_zeros: bool) -> str:
    """Return a form of weights as a part of kernels' names; ``together`` blocks are a unit."""
    return f"w{bits}{'z' * has_zeros}{f'b{together}' if together > 1 else ''}"


def has_row_kernel(bits: int, together: int) -> bool:
    """Whether one row has a kernel of its own, in whose chunks there is no more than one block."""
    return together * CHUNK <= UNIT_BITS // bits


def blocks_of_unit(form: BlockFormat) -> int:
    """Return how many blocks a unit has, 1 if a block is a unit or more, or 0 if no kernel reads such weights."""
    unit = UNIT_BITS // form.bits if form.bits in (4, 8) else 0
    if not unit or form.block & (form.block - 1) or form.depth % 8 != 0:
        return 0
    return max(1, unit // form.block) if form.block >= LEAST_BLOCK else 0


def pack_weights(packed: Array, form: BlockFormat) -> Array:
    """Return weights [columns, blocks, bytes] as a kernel reads them: tiles of 16 columns of units of 512 bytes.

    16 bytes of a unit are of lane 4 g + t: of each chunk of 32 elements those from 8 t on, of columns g and g + 8.
    """
    numbers = unpack(packed, form.bits, form.block).reshape(len(packed), -1)[:, : form.depth]
    unit = UNIT_BITS // form.bits
    padded = _padded(numbers, -(-form.depth // unit) * unit)
    chunks = padded.reshape(len(padded) // COLUMNS, 2, 8, -1, unit // CHUNK, 4, 8).transpose(0, 3, 2, 5, 4, 1, 6)
    if form.bits == 8:
        return np.ascontiguousarray(chunks).reshape(-1)
    words: Array = np.bitwise_or.reduce(chunks.astype(np.uint32) << 4 * NIBBLES, axis=-1)
    return np.ascontiguousarray(words).view(np.uint8).reshape(-1)


def pack_numbers(numbers: Array, form: BlockFormat) -> Array:
    """Return scales or zero points [columns, blocks] as a kernel reads them; see gemm_blocks.h."""
    together, unit = blocks_of_unit(form), UNIT_BITS // form.bits
    blocks = -(-form.depth // unit) * together if together > 1 else form.blocks
    padded = _padded(numbers, blocks)
    tiles = padded.reshape(len(padded) // COLUMNS, 2, 8, blocks // together, together)
    return np.ascontiguousarray(tiles.transpose(0, 3, 2, 4, 1)).reshape(-1)


def _padded(numbers: Array, width: int) -> Array:
    """Return numbers with zeros up to whole tiles of columns, and ``width`` of each."""
    made = np.zeros((-(-len(numbers) // COLUMNS) * COLUMNS, width), numbers.dtype)
    made[: len(numbers), : numbers.shape[1]] = numbers
    return made


def block_kernels(
    rows: int, columns: int, weights: BlockFormat, form: RowsForm, *, fast_math: bool, dtype: str = "float16"
) -> list[BlockRowsGemm]:
    """Return the kernel for so many rows of ``dtype`` and ``columns`` of such weights, if there is one."""
    together = blocks_of_unit(weights)
    kernels = (1, *ROWS) if has_row_kernel(weights.bits, together) else ROWS
    fitting = next((most for most in kernels if rows <= most), None)
    if fitting is None or form.out not in OUTPUTS.get(dtype, ()) or not together:
        return []
    made = partial(BlockRowsGemm, fitting, bits=weights.bits, blocks_of_unit=together, has_zeros=weights.has_zeros)
    return [made(fast_math=fast_math, dtype=dtype, warps=warps_for(columns, weights.depth), **vars(form))]
