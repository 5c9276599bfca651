"""Convolution kernels: y = act(x * w + bias + residual) of NHWC data and OHWI weights, from configurations to source.

A configuration fixes types, tile and epilogue; extents, window, padding, strides and dilation are the problem's.
``sm90`` kernels with TMA need channels and filters that are multiples of 16 bytes; ``sm80`` kernels run on every GPU
from there on. Convolutions of one pixel without strides are matrix products and better solved as such.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

from packager.backends.cutlass.core.kernel_source import KernelSource
from packager.backends.cutlass.gemm.kernels import ACTIVATIONS, SCHEDULES, TYPES, functor, functor_mark
from packager.codegen.templates import MARK, render

SM90_MEGABYTES = 3500
SM80_MEGABYTES = 900

Family = Literal["sm90", "sm80"]
# tfloat32 is float32 in memory whose products are rounded, as for matrix products.
SM90_TYPES = ("float16", "bfloat16", "tfloat32")
# Channels that have kernels of their own: all places of a window are one row of products.
FIXED_CHANNELS = (4, 8)
# Windows of other kernels than those are at most so high and wide: they keep a bit for each row and column.
LARGEST_WINDOW = 32


@dataclass(frozen=True)
class Sm90ConvTile:
    """How an sm90 kernel divides the work: ``shape`` is (rows of y, filters, channels), ``cluster`` as of a GEMM.

    ``stages`` 0 is as many as fit.
    """

    shape: tuple[int, int, int]
    cluster: tuple[int, int] = (1, 1)
    schedule: str = "pingpong"
    stages: int = 0

    slices = 1

    @property
    def family(self) -> Family:
        """Which GPUs the kernel is for."""
        return "sm90"

    @property
    def name(self) -> str:
        """What it is, as a part of a kernel's name."""
        parts = ["x".join(map(str, self.shape)), f"c{self.cluster[0]}x{self.cluster[1]}", self.schedule]
        return "_".join(parts + [f"s{self.stages}"] * (self.stages > 0))


@dataclass(frozen=True)
class Sm80ConvTile:
    """How an sm80 kernel divides the work: ``shape`` is (rows of y, filters, channels), ``warp`` those of a warp.

    ``slices`` blocks share a tile, each with a part of the channels. They are a cluster: such a kernel is for sm90.
    """

    shape: tuple[int, int, int]
    warp: tuple[int, int]
    stages: int
    slices: int = 1

    @property
    def family(self) -> Family:
        """Which GPUs the kernel is for."""
        return "sm80" if self.slices == 1 else "sm90"

    @property
    def name(self) -> str:
        """What it is, as a part of a kernel's name."""
        shape, warp = "x".join(map(str, self.shape)), "x".join(map(str, self.warp))
        return "_".join([shape, f"w{warp}", f"s{self.stages}"] + [f"k{self.slices}"] * (self.slices != 1))


ConvTile = Sm90ConvTile | Sm80ConvTile


@dataclass(frozen=True)
class ConvConfig:
    """A convolution kernel. ``dtype`` (a key of gemm_kernels.TYPES) is of all tensors.

    ``alignment`` is how many elements of x and w are accessed at a time: the channels are a multiple of it; the
    filters are one of ``out_alignment``, that of bias, residual and y. Pointers are aligned alike. ``fixed`` says that
    the channels are exactly ``alignment``. ``residual`` is whether one is added, before the activation.

    Kernels by ``rows`` are for few channels: all that lies in a row of the window is taken as channels of one pixel.
    See row_form for what the problem must be like.
    """

    tile: ConvTile
    dtype: str
    alignment: int
    out_alignment: int
    fixed: bool = False
    rows: bool = False
    activation: str = "none"
    residual: bool = False
    fast_math: bool = False

    def __post_init__(self) -> None:
        full = 16 // TYPES[self.dtype].size
        assert self.activation in ACTIVATIONS, self.activation
        for alignment in (self.alignment, self.out_alignment):
            assert alignment in (full >> shift for shift in range(4)), alignment
        if isinstance(self.tile, Sm90ConvTile):
            assert self.dtype in SM90_TYPES, self.dtype
            assert self.alignment == self.out_alignment == full, "TMA takes 16 bytes"
            assert not self.fixed
        else:
            assert not self.rows
            assert self.tile.stages == 2 or self.alignment * TYPES[self.dtype].size >= 4, "copies take 4 bytes or more"
            assert self.tile.slices == 1 or (not self.fixed and self.out_alignment % 4 == 0)

    @property
    def barrier_bytes(self) -> int:
        """How much of a problem's workspace is zero before a launch: there is none."""
        return 0

    @property
    def form(self) -> str:
        """The activation's functor."""
        return functor(self.activation, self.dtype, fast_math=self.fast_math)

    @property
    def name(self) -> str:
        """A C identifier that says all that the kernel's code depends on."""
        parts = ["pk_conv", self.tile.family, TYPES[self.dtype].short, self.tile.name]
        if isinstance(self.tile, Sm80ConvTile):
            parts += [f"a{self.alignment}x{self.out_alignment}"] + ["fixed"] * self.fixed
        return "_".join([*parts, *(["rows"] * self.rows), functor_mark(self.form)] + ["r"] * self.residual)

    def source(self, archs: tuple[str, ...]) -> KernelSource:
        """Return the kernel's file."""
        element = TYPES[self.dtype]
        make = partial(
            render,
            mark=MARK,
            name=self.name,
            element=element.cutlass,
            tile=self.tile.shape,
            stages=self.tile.stages,
            activation=self.form,
            residual=self.residual,
        )
        if isinstance(self.tile, Sm90ConvTile):
            schedule, epilogue_schedule = SCHEDULES[self.tile.schedule]
            text = make(
                "cutlass/conv/conv_sm90.cu.j2",
                cluster=self.tile.cluster,
                schedule=schedule,
                epilogue_schedule=epilogue_schedule,
                rows=self.rows,
            )
            return KernelSource(self.name, text, archs, SM90_MEGABYTES, folders=("tools/util/include",))
        text = make(
            "cutlass/conv/conv_sm80.cu.j2",
            warp=self.tile.warp,
            slices=self.tile.slices,
            instruction=(16, 8, 16) if element.size == 2 else (16, 8, 8),
            alignment=self.alignment,
            alignment_d=self.out_alignment,
            algorithm="kFixedChannels" if self.fixed else "kOptimized",
            math=element.math,
        )
        return KernelSource(self.name, text, archs, SM80_MEGABYTES)


def portfolio(
    family: Family,
    dtype: str,
    channels: int,
    filters: int,
    window: tuple[int, int],
    *,
    activation: str = "none",
    residual: bool = False,
    fast_math: bool = False,
) -> tuple[ConvConfig, ...]:
    """Return the kernels worth having for a convolution, empty where there is none.

    Those of ``sm90`` come beside those of ``sm80``: some problems only the latter take, and some they solve faster.
    """
    if dtype not in TYPES or max(window) > LARGEST_WINDOW:
        return ()
    full = 16 // TYPES[dtype].size
    alignment, out_alignment = _alignment(channels, full), _alignment(filters, full)
    make = partial(ConvConfig, dtype=dtype, alignment=alignment, out_alignment=out_alignment)
    make = partial(make, activation=activation, residual=residual, fast_math=fast_math)
    if family == "sm80":
        fixed = alignment == channels and channels in FIXED_CHANNELS
        return tuple(make(tile, fixed=fixed) for tile in _sm80_tiles(dtype, channels, filters, alignment))
    if alignment < full or out_alignment < full:
        return ()
    tma = dtype in SM90_TYPES and channels > full
    kernels = [make(tile) for tile in _sm90_tiles(dtype, channels, filters)] if tma else []
    return (*kernels, *(make(tile) for tile in _sliced_tiles(dtype, channels)))


def row_form(dtype: str, channels: int, window: int, stride: int) -> tuple[int, int] | None:
    """Return (channels, columns of the window) of the problem that kernels by rows solve, None if they cannot.

    For convolutions of few channels without dilation along the width. Both are at least what is given: x and w are
    filled up with zeros. The problem has no padding along the width: it is part of x, and so are zeros up to a width
    that is a multiple of row_width. The stride along the height is at most 8, as for all that TMA loads.
    """
    if dtype not in SM90_TYPES:
        return None
    size = TYPES[dtype].size
    for wider in range(channels, channels + 16):
        if wider * stride * size % 16 == 0:
            return wider, next(columns for columns in range(window, window + 16) if columns * wider * size % 16 == 0)
    return None


def row_width(dtype: str, channels: int) -> int:
    """Return what the width of x is a multiple of, with that many channels, for kernels by rows."""
    return 16 // math.gcd(16, channels * TYPES[dtype].size)


def row_portfolio(
    dtype: str,
    channels: int,
    filters: int,
    columns: int,
    *,
    activation: str = "none",
    residual: bool = False,
    fast_math: bool = False,
) -> tuple[ConvConfig, ...]:
    """Return the ``sm90`` kernels for a problem in row_form, empty where there is none."""
    full = 16 // TYPES[dtype].size if dtype in SM90_TYPES else 0
    if not full or filters % full or channels * columns % full:
        return ()
    make = partial(ConvConfig, dtype=dtype, alignment=full, out_alignment=full, rows=True)
    make = partial(make, activation=activation, residual=residual, fast_math=fast_math)
    return tuple(make(tile) for tile in _sm90_tiles(dtype, channels * columns, filters))


def _alignment(extent: int, full: int) -> int:
    return next(width for width in (8, 4, 2, 1) if width <= full and extent % width == 0)


def _step(dtype: str, channels: int) -> int:
    """How many channels are taken at a time: 128 bytes, or 64 where the rest would be multiplied in vain."""
    full = 128 // TYPES[dtype].size
    return full // 2 if 0 < channels % full <= full // 2 else full


def _sm90_tiles(dtype: str, channels: int, filters: int) -> tuple[Sm90ConvTile, ...]:
    """The smaller tiles are for few rows of y. Where two blocks of a cluster share x, it is loaded once."""
    step = _step(dtype, channels)
    if filters <= 64:
        return Sm90ConvTile((64, 64, step)), Sm90ConvTile((128, 64, step))
    middle = Sm90ConvTile((64, 128, step), (1, 2) if filters >= 256 else (1, 1))
    return Sm90ConvTile((64, 64, step)), middle, Sm90ConvTile((128, 128, step))


def _sm80_tiles(dtype: str, channels: int, filters: int, alignment: int) -> tuple[Sm80ConvTile, ...]:
    if TYPES[dtype].size == 4:
        return Sm80ConvTile((64, 64, 16), (32, 32), 4), Sm80ConvTile((128, 64, 16), (64, 32), 3)
    if alignment == 1:
        return (Sm80ConvTile((64, 64, 32), (32, 32), 2),)
    if channels == 4 or (channels > 8 and _step(dtype, channels) == 32):
        small, large = Sm80ConvTile((64, 64, 32), (32, 32), 5), Sm80ConvTile((128, 64, 32), (64, 32), 4)
    else:
        small, large = Sm80ConvTile((64, 64, 64), (32, 32), 4), Sm80ConvTile((128, 64, 64), (64, 32), 3)
    return small, large if filters <= 64 else Sm80ConvTile((128, 128, 32), (64, 64), 4)


def _sliced_tiles(dtype: str, channels: int) -> tuple[Sm80ConvTile, ...]:
    """For few rows of y, which are less tiles than the GPU has multiprocessors; each slice has a step of channels."""
    if TYPES[dtype].size == 4:
        return (Sm80ConvTile((64, 64, 16), (32, 32), 8, 8),) if channels >= 128 else ()
    return (Sm80ConvTile((64, 64, 64), (32, 32), 8, 8),) if channels >= 512 else ()
