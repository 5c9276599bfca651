"""Kernels of 8-bit data and weights, whose sums are scaled: from configurations of CUTLASS's templates to their source.

Integers are summed up in int32, and 8-bit floats in float32. ``cutlass/quantized/quantized.h`` says what becomes of the
sums; which of its vectors and numbers are there is the problem's. Weights are [columns, depth], with no batch. ``sm90``
kernels use TMA and warp-group instructions and need 16-byte alignment; ``sm80`` kernels are for integers alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from packager.backends.cutlass.core.kernel_source import KernelSource
from packager.backends.cutlass.gemm.kernels import (
    OUTPUTS,
    SCHEDULES,
    SM80_MEGABYTES,
    SM90_MEGABYTES,
    Sm80Tile,
    Sm90Tile,
    Tile,
    fits,
    functor,
    functor_mark,
)
from packager.backends.cutlass.gemm.tiles import SM90
from packager.codegen.templates import MARK, render

Operation = Literal["gemm", "conv"]


@dataclass(frozen=True)
class QuantizedType:
    """A type of data: CUTLASS's name and its weights', the short name, the types of results, and the type of sums."""

    cutlass: str
    weight: str
    short: str
    outputs: tuple[str, ...]
    accumulator: str
    sm80: bool


_FLOATS = ("float16", "bfloat16", "float32")
_INTEGERS = ("int8", "uint8", "int32", *_FLOATS)
QUANTIZED = {
    "int8": QuantizedType("int8_t", "int8_t", "s8", _INTEGERS, "int32_t", sm80=True),
    "uint8": QuantizedType("uint8_t", "int8_t", "u8", _INTEGERS, "int32_t", sm80=True),
    "float8_e4m3fn": QuantizedType(
        "cutlass::float_e4m3_t", "cutlass::float_e4m3_t", "e4m3", ("float8_e4m3fn", *_FLOATS), "float", sm80=False
    ),
}
FULL = 16  # elements
FLOAT8_DEPTH = 32  # of a matrix instruction, in elements
# Windows are at most so high and wide: kernels keep a bit for each row and column.
LARGEST_WINDOW = 32
# As many as fit twice into a thread's registers, beside the epilogue.
PROMOTED_ACCUMULATORS = 80
_SM80 = (Sm80Tile((64, 64, 64), (32, 32), 4), Sm80Tile((128, 128, 64), (64, 64), 3))
# Single bytes and pairs of them cannot be copied asynchronously.
_SM80_NARROW = (Sm80Tile((64, 64, 64), (32, 32), 2),)


@dataclass(frozen=True)
class QuantizedConfig:
    """A kernel. ``dtype`` (a key of QUANTIZED) is of data and weights, ``out`` of residual and result.

    ``alignment`` is how many elements of data and weights are accessed at a time: the depth (of a convolution: the
    channels) and leading dimensions are multiples of it. Residual, result and vectors are accessed ``out_alignment``
    elements at a time. ``residual`` is whether one is read. Of a convolution's tile M are places, N filters and K
    channels. Raises ValueError for what the templates cannot be.
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
            object.__setattr__(self, "out_alignment", full_of(self.out))
        wrong = self._wrong()
        if wrong:
            raise ValueError(f"no kernel {self.name}: {wrong}")

    def _wrong(self) -> str:
        element = QUANTIZED[self.dtype]
        if self.out not in element.outputs:
            return f"{self.dtype} makes {', '.join(element.outputs)}"
        if self.out == "int32" and (self.activation != "none" or self.residual):
            return "int32 is the sums alone"
        if isinstance(self.tile, Sm90Tile):
            if self.alignment != FULL or self.out_alignment != full_of(self.out):
                return "TMA takes 16 bytes"
            if self.tile.prefetch or (self.op == "conv" and (self.tile.swapped or self.tile.epilogue)):
                return "there is no such form"
            return "" if fits(self.tile, self.out) else f"the epilogue's tile has no layout of {self.out}"
        if not element.sm80:
            return f"sm80 kernels do not multiply {self.dtype}"
        if self.tile.slices != 1:
            return "sums are not split"
        if self.out_alignment > full_of(self.out):
            return f"{self.out_alignment} elements of {self.out} are more than 16 bytes"
        return "" if self.alignment >= 4 or self.tile.stages == 2 else f"{self.alignment} elements cannot be copied"

    @property
    def barrier_bytes(self) -> int:
        """How much of a problem's workspace is zero before a launch: there is none."""
        return 0

    @property
    def form(self) -> str:
        """The activation's functor."""
        return functor(self.activation, self.out, fast_math=self.fast_math)

    @property
    def name(self) -> str:
        """A C identifier that says all that the kernel's code depends on."""
        types = QUANTIZED[self.dtype].short, OUTPUTS[self.out][1]
        parts = [f"pk_{self.op}", self.tile.family, *types, "scaled", self.tile.name]
        parts += [f"a{self.alignment}x{self.out_alignment}"] if isinstance(self.tile, Sm80Tile) else []
        return "_".join([*parts, functor_mark(self.form)] + ["c"] * self.residual)

    def source(self, archs: tuple[str, ...]) -> KernelSource:
        """Return the kernel's file, for these architectures."""
        element = QUANTIZED[self.dtype]
        values = {
            "mark": MARK,
            "name": self.name,
            "product": self.op == "gemm",
            "element": element.cutlass,
            "weight": element.weight,
            "element_d": OUTPUTS[self.out][0],
            "accumulator": element.accumulator,
            "tile": self.tile.shape,
            "stages": self.tile.stages,
            "activation": self.form,
            "residual": self.residual,
        }
        if isinstance(self.tile, Sm80Tile):
            values |= {"warp": self.tile.warp, "alignment": self.alignment, "alignment_d": self.out_alignment}
            return KernelSource(
                self.name, render("cutlass/quantized/quantized_sm80.cu.j2", **values), archs, SM80_MEGABYTES
            )
        schedule, epilogue_schedule = SCHEDULES[self.tile.schedule]
        values |= {
            "cluster": self.tile.cluster,
            "schedule": schedule,
            "epilogue_schedule": epilogue_schedule,
            "epilogue_tile": self.tile.epilogue,
            "blocks": self.tile.blocks,
            "swapped": self.tile.swapped,
            "instructions": self.tile.shape[2] // FLOAT8_DEPTH if self.dtype == "float8_e4m3fn" else 0,
        }
        text = render(f"cutlass/quantized/quantized_{self.op}_sm90.cu.j2", **values)
        folders = ("tools/util/include",) if self.op == "conv" else ()
        return KernelSource(self.name, text, archs, SM90_MEGABYTES, folders=folders)


def full_of(out: str) -> int:
    """Return how many elements of a type are 16 bytes."""
    return 16 // OUTPUTS[out][2]


def portfolio(
    op: Operation, family: str, dtype: str, out: str, depth: int, columns: int
) -> tuple[QuantizedConfig, ...]:
    """Return the kernels worth having, without an epilogue's choices; none where there are none.

    ``depth`` is what rows of data and weights are made of, a convolution's channels; for either a divisor will do.
    """
    if family == "sm90":
        if depth % FULL or columns % (full_of(out) if op == "gemm" else FULL):
            return ()
        found = _sm90_products(dtype, out) if op == "gemm" else _sm90_convolutions(depth, columns)
        return tuple(QuantizedConfig(op, tile, dtype, out) for tile in found)
    if not QUANTIZED[dtype].sm80:
        return ()
    alignment, out_alignment = _alignment(depth, FULL), _alignment(columns, full_of(out))
    tiles = _SM80 if alignment >= 4 else _SM80_NARROW
    return tuple(QuantizedConfig(op, tile, dtype, out, alignment, out_alignment) for tile in tiles)


def _alignment(extent: int, full: int) -> int:
    return next(width for width in (16, 8, 4, 2, 1) if width <= full and extent % width == 0)


def _sm90_products(dtype: str, out: str) -> Iterator[Tile]:
    for tile in SM90:
        made = replace(tile, shape=(*tile.shape[:2], 2 * tile.shape[2]))
        if dtype == "float8_e4m3fn":  # threads keep accumulators twice, and add them up in float32
            made = replace(made, schedule="cooperative") if made.shape[:2] == (128, 128) else made
            if _accumulators(made) > PROMOTED_ACCUMULATORS:
                continue
        if fits(made, out):
            yield made


def _accumulators(tile: Sm90Tile) -> int:
    """Return how many elements of its tile a thread of the warp groups that multiply has."""
    return tile.shape[0] * tile.shape[1] // (256 if tile.schedule == "cooperative" else 128)


def _sm90_convolutions(channels: int, filters: int) -> Iterator[Tile]:
    """The smaller tiles are for few places. 128 channels are taken at a time, or half of them."""
    step = 64 if 0 < channels % 128 <= 64 else 128
    yield Sm90Tile((64, 64, step))
    yield Sm90Tile((128, 64, step)) if filters <= 64 else Sm90Tile((64, 128, step))
    if filters > 64:
        yield Sm90Tile((128, 128, step))
