"""Kernels of 8-bit data and weights with scaled accumulators: from configurations of templates to their source.

Integers accumulate in int32, 8-bit floats in float32. ``cutlass/quantized/quantized.h`` has the epilogue; which of its
vectors and scalars are present is the problem's. Weights are [columns, depth], without batch. ``sm90`` kernels use TMA
and warp-group instructions and need 16-byte alignment; ``sm80`` kernels are for integers alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from packager.backends.cutlass.core.element_types import ELEMENTS, FLOAT8, vector_of
from packager.backends.cutlass.core.kernel import KernelSource
from packager.backends.cutlass.gemm.kernels import TiledConfig
from packager.backends.cutlass.gemm.tiles import SM90
from packager.backends.cutlass.gemm.tilings import Sm80Tile, Sm90Tile, Tile, fits
from packager.bundle.dtypes import FLOATS

Operation = Literal["gemm", "conv"]

# The types of data, and those of their results.
OUTPUTS = {
    "int8": ("int8", "uint8", "int32", *FLOATS),
    "uint8": ("int8", "uint8", "int32", *FLOATS),
    FLOAT8: (FLOAT8, *FLOATS),
}
FULL = 16  # elements
FLOAT8_DEPTH = 32  # of a matrix instruction, in elements
# Accumulators that fit twice into a thread's registers, besides the epilogue.
PROMOTED_ACCUMULATORS = 80
_SM80 = (Sm80Tile((64, 64, 64), (32, 32), 4), Sm80Tile((128, 128, 64), (64, 64), 3))
# Asynchronous copies are of 4 bytes or more.
_SM80_NARROW = (Sm80Tile((64, 64, 64), (32, 32), 2),)


@dataclass(frozen=True)
class QuantizedConfig(TiledConfig):
    """A kernel. ``dtype`` (a key of OUTPUTS) is of data and weights, ``out`` of residual and result.

    ``alignment`` is the number of elements per access of data and weights: the depth (of a convolution: the channels)
    and leading dimensions are multiples of it. Residual, result and vectors are accessed ``out_alignment`` elements at
    a time. ``residual`` is whether one is read. Raises ValueError for what the templates do not support.
    """

    op: Operation
    tile: Tile
    dtype: str
    out: str
    alignment: int = FULL
    out_alignment: int = 0
    activation: str = "none"
    residual: bool = False
    fast_math: bool = False

    def __post_init__(self) -> None:
        if not self.out_alignment:
            object.__setattr__(self, "out_alignment", vector_of(self.out))
        super().__post_init__()

    def _wrong(self) -> str:
        if self.out not in OUTPUTS[self.dtype]:
            return f"{self.dtype} makes {', '.join(OUTPUTS[self.dtype])}"
        if self.out == "int32" and (self.activation != "none" or self.residual):
            return "int32 is the sums alone"
        if isinstance(self.tile, Sm90Tile):
            if self.alignment != FULL or self.out_alignment != vector_of(self.out):
                return "TMA takes 16 bytes"
            if self.op == "conv" and (self.tile.swapped or self.tile.epilogue):
                return "there is no such form"
            return "" if fits(self.tile, self.out) else f"the epilogue's tile has no layout of {self.out}"
        if self.dtype == FLOAT8:
            return f"sm80 kernels do not multiply {self.dtype}"
        if self.tile.slices != 1:
            return "sums are not split"
        if self.out_alignment > vector_of(self.out):
            return f"{self.out_alignment} elements of {self.out} are more than 16 bytes"
        return "" if self.alignment >= 4 or self.tile.stages == 2 else f"{self.alignment} elements cannot be copied"

    @property
    def form(self) -> str:
        """The functor of the activation."""
        return self.functor(self.out)

    @property
    def name(self) -> str:
        """A C identifier that encodes everything that the kernel's code depends on."""
        types = ELEMENTS[self.dtype].short, ELEMENTS[self.out].short
        parts = [f"pk_{self.op}", self.tile.family, *types, "scaled", self.tile.name]
        parts += [f"a{self.alignment}x{self.out_alignment}"] if isinstance(self.tile, Sm80Tile) else []
        return "_".join([*parts, self.form_name] + ["c"] * self.residual)

    def source(self, archs: tuple[str, ...]) -> KernelSource:
        """Render the kernel's source file for these architectures."""
        is_float = self.dtype == FLOAT8
        return self.render(
            f"quantized/quantized_{self.op}_sm90" if isinstance(self.tile, Sm90Tile) else "quantized/quantized_sm80",
            archs,
            product=self.op == "gemm",
            element=ELEMENTS[self.dtype].cutlass,
            weight=ELEMENTS[FLOAT8 if is_float else "int8"].cutlass,
            element_d=ELEMENTS[self.out].cutlass,
            accumulator="float" if is_float else "int32_t",
            alignment=self.alignment,
            alignment_d=self.out_alignment,
            instructions=self.tile.shape[2] // FLOAT8_DEPTH if is_float else 0,
        )


def portfolio(
    op: Operation, family: str, dtype: str, out: str, depth: int, columns: int
) -> tuple[QuantizedConfig, ...]:
    """Return the kernels for a size, without epilogue; may be empty.

    ``depth`` is K of a product or the channels of a convolution; a divisor of either extent will do.
    """
    if family == "sm90":
        if depth % FULL or columns % (vector_of(out) if op == "gemm" else FULL):
            return ()
        found = _sm90_products(dtype, out) if op == "gemm" else _sm90_convolutions(depth, columns)
        return tuple(QuantizedConfig(op, tile, dtype, out) for tile in found)
    if dtype == FLOAT8:
        return ()
    alignment, out_alignment = _alignment(depth, FULL), _alignment(columns, vector_of(out))
    tiles = _SM80 if alignment >= 4 else _SM80_NARROW
    return tuple(QuantizedConfig(op, tile, dtype, out, alignment, out_alignment) for tile in tiles)


def _alignment(extent: int, full: int) -> int:
    return next(width for width in (16, 8, 4, 2, 1) if width <= full and extent % width == 0)


def _sm90_products(dtype: str, out: str) -> Iterator[Tile]:
    for tile in SM90:
        made = replace(tile, shape=(*tile.shape[:2], 2 * tile.shape[2]))
        if dtype == FLOAT8:  # threads hold accumulators twice, to promote them to float32
            made = replace(made, schedule="cooperative") if made.shape[:2] == (128, 128) else made
            if _accumulators(made) > PROMOTED_ACCUMULATORS:
                continue
        if fits(made, out):
            yield made


def _accumulators(tile: Sm90Tile) -> int:
    """Return the accumulators per thread of the math warp groups."""
    return tile.shape[0] * tile.shape[1] // (256 if tile.schedule == "cooperative" else 128)


def _sm90_convolutions(channels: int, filters: int) -> Iterator[Tile]:
    """Yield tiles of 128 or 64 channels; the smaller ones are for few pixels."""
    step = 64 if 0 < channels % 128 <= 64 else 128
    yield Sm90Tile((64, 64, step))
    yield Sm90Tile((128, 64, step)) if filters <= 64 else Sm90Tile((64, 128, step))
    if filters > 64:
        yield Sm90Tile((128, 128, step))
