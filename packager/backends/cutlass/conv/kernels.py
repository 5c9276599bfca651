"""Convolution kernels: y = act(x * w + bias + residual) of NHWC data and OHWI weights, from configurations to source.

Those of volumes are of NDHWC data and ODHWI weights. A configuration fixes types, tile and epilogue; extents, window,
padding, strides and dilation are the problem's. ``sm90`` kernels with TMA need channels and filters that are multiples
of 16 bytes; ``sm80`` kernels run on every GPU from there on. Convolutions of one pixel without strides are matrix
products and better solved as such.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from packager.backends.cutlass.conv.groups import group_width
from packager.backends.cutlass.core.element_types import ELEMENTS, vector_of
from packager.backends.cutlass.core.kernel import KernelSource
from packager.backends.cutlass.gemm.kernels import TYPES, TiledConfig
from packager.backends.cutlass.gemm.tilings import Family, Sm80Tile, Sm90Tile, Tile

# tfloat32 is float32 in memory whose products are rounded, as for GEMM.
SM90_TYPES = ("float16", "bfloat16", "tfloat32")
# Channel counts with kernels of their own, which take the whole window as one reduction axis.
FIXED_CHANNELS = (4, 8)
# The maximum number of channels of kernels by rows; with more, windows are read pixel by pixel.
LARGEST_PIXEL = 16
VECTOR_BYTES = 16
# The bytes of channels per step that fill a row of shared memory.
FULL_STEP = 128
# Tiles of TMA's kernels, of full steps of 16-bit elements: one wave of 132 SMs for the widths of common models.
SM90 = (
    Sm90Tile((64, 64, 64)),
    Sm90Tile((128, 64, 64)),
    Sm90Tile((128, 16, 64)),
    Sm90Tile((64, 32, 64)),
    Sm90Tile((128, 32, 64), (2, 1)),
    Sm90Tile((128, 96, 64)),
    Sm90Tile((64, 80, 64), (2, 1)),
    Sm90Tile((64, 128, 64)),
    Sm90Tile((64, 128, 64), (1, 2)),
    Sm90Tile((128, 128, 64)),
    Sm90Tile((64, 160, 64)),
    Sm90Tile((128, 160, 64), schedule="cooperative"),
    Sm90Tile((128, 192, 64), schedule="cooperative"),
)
# Channels of a group from which on matrix instructions pay.
LEAST_GROUP = 4
# The maximum height and width of windows, but of TMA's kernels: others keep a bit for each row and column.
LARGEST_WINDOW = 32
# How far elements and padding of a window of three axes may be from its first element: TMA has five bits for each axis.
VOLUME_REACH = 15


@dataclass(frozen=True)
class ConvConfig(TiledConfig):
    """A convolution kernel. ``dtype`` (a key of TYPES) is of all tensors.

    ``alignment`` is the number of elements per access of x and w: the channels are a multiple of it; the filters are
    one of ``out_alignment``, that of bias, residual and y. Pointers are aligned alike. ``fixed`` says that the channels
    are exactly ``alignment``. ``residual`` is whether one is added, before the activation. Raises ValueError for what
    the templates do not support.

    Kernels by ``rows`` are for few channels: they take a row of the window as the channels of one pixel. x and w are
    padded with zeros so that a row of the window and a step along the width are multiples of 16 bytes; x also contains
    the padding along the width.

    Kernels for ``groups`` multiply each tile of filters by the channels that these have (``part_channels``), of which
    most are those of other groups where these are small.

    Kernels for ``volumes`` have windows of three axes, of NDHWC data and ODHWI weights.
    """

    tile: Tile
    dtype: str
    alignment: int
    out_alignment: int
    fixed: bool = False
    rows: bool = False
    groups: bool = False
    volumes: bool = False
    activation: str = "none"
    residual: bool = False
    fast_math: bool = False

    def _wrong(self) -> str:
        full = vector_of(self.dtype)
        if not {self.alignment, self.out_alignment} <= {full >> shift for shift in range(4)}:
            return "there is no such alignment"
        if isinstance(self.tile, Sm90Tile):
            if self.groups and (self.rows or self.tile.cluster[1] > 1):
                return "a tile reads the channels of its own groups"
            if self.volumes and (self.rows or self.groups):
                return "windows of volumes are read pixel by pixel, of all channels"
            if self.dtype not in SM90_TYPES or self.fixed:
                return "sm90 kernels multiply neither float32 nor a fixed number of channels"
            return "" if self.alignment == self.out_alignment == full else "TMA takes 16 bytes"
        if self.tile.stages > 2 and self.alignment * ELEMENTS[self.dtype].size < 4:
            return f"{self.alignment} elements cannot be copied"
        if self.tile.slices != 1 and (self.fixed or self.out_alignment % 4 != 0):
            return "slices need 4 filters at a time"
        return "there are no such sm80 kernels" if self.rows or self.groups or self.volumes else ""

    @property
    def family(self) -> Family:
        """The GPUs of the kernel; slices are a cluster, which needs sm90."""
        return "sm80" if isinstance(self.tile, Sm80Tile) and self.tile.slices == 1 else "sm90"

    @property
    def form(self) -> str:
        """The functor of the activation."""
        return self.functor(self.dtype)

    @property
    def name(self) -> str:
        """A C identifier that encodes everything that the kernel's code depends on."""
        parts = ["pk_conv3d" if self.volumes else "pk_conv", self.family, ELEMENTS[self.dtype].short, self.tile.name]
        if isinstance(self.tile, Sm80Tile):
            parts += [f"a{self.alignment}x{self.out_alignment}"] + ["fixed"] * self.fixed
        parts += ["rows"] * self.rows + ["groups"] * self.groups
        return "_".join([*parts, self.form_name] + ["r"] * self.residual)

    def source(self, archs: tuple[str, ...]) -> KernelSource:
        """Render the kernel's source file for these architectures."""
        element = ELEMENTS[self.dtype]
        return self.render(
            "conv/conv3d_sm90" if self.volumes else f"conv/conv_{self.tile.family}",
            archs,
            element=element.cutlass,
            rows=self.rows,
            groups=self.groups,
            instruction=(16, 8, 32 // element.size),
            alignment=self.alignment,
            alignment_d=self.out_alignment,
            algorithm="kFixedChannels" if self.fixed else "kOptimized",
            math=TYPES[self.dtype].math,
        )


def portfolio(
    family: Family, dtype: str, channels: int, filters: int, window: tuple[int, ...]
) -> tuple[ConvConfig, ...]:
    """Return the kernels for a convolution, without epilogue; empty if none supports it.

    The ``sm90`` kernels complement the ``sm80`` ones: some problems only the latter support, and some they solve
    faster.
    """
    large = max(window) > LARGEST_WINDOW
    if dtype not in TYPES or (large and family == "sm80"):
        return ()
    full = vector_of(dtype)
    alignment, out_alignment = _alignment(channels, full), _alignment(filters, full)
    make = partial(ConvConfig, dtype=dtype, alignment=alignment, out_alignment=out_alignment)
    if family == "sm80":
        fixed = alignment == channels and channels in FIXED_CHANNELS
        return tuple(make(tile, fixed=fixed) for tile in _sm80_tiles(dtype, channels, filters, alignment))
    if alignment < full or out_alignment < full:
        return ()
    tma = dtype in SM90_TYPES and channels > full
    whole = _sm90_tiles(dtype, channels, filters) if tma else ()
    return tuple(map(make, (*whole, *(() if large else _sliced_tiles(dtype, channels)))))


def volume_portfolio(dtype: str, channels: int, filters: int) -> tuple[ConvConfig, ...]:
    """Return the kernels for a 3-D convolution, without epilogue; empty if none supports it."""
    full = vector_of(dtype)
    if dtype not in SM90_TYPES or channels % full or filters % full:
        return ()
    tiles = _sm90_tiles(dtype, channels, filters)
    return tuple(ConvConfig(tile, dtype, full, full, volumes=True) for tile in tiles)


def group_portfolio(dtype: str, channels: int, filters: int, groups: int) -> tuple[ConvConfig, ...]:
    """Return the kernels for a convolution of ``groups``, without epilogue; empty if none supports it.

    All have tiles of as many filters: the weights are packed for it.
    """
    full = vector_of(dtype)
    if dtype not in SM90_TYPES or channels % full or filters % full or channels // groups < LEAST_GROUP:
        return ()
    width = group_width(channels, filters, groups)
    step = FULL_STEP // ELEMENTS[dtype].size
    tiles = (Sm90Tile((height, width, step)) for height in (64, 128))
    return tuple(ConvConfig(tile, dtype, full, full, groups=True) for tile in tiles)


def row_portfolio(dtype: str, row: int, filters: int) -> tuple[ConvConfig, ...]:
    """Return the kernels by rows, without epilogue, for windows with rows of ``row`` elements; empty if none fits."""
    full = vector_of(dtype)
    if dtype not in SM90_TYPES or filters % full:
        return ()
    step = next((step for step in (full * 2, full * 4) if row <= step), full * 8)
    narrow, middle = Sm90Tile((128, 32, step), (2, 1)), Sm90Tile((128, 64, step))
    wide = Sm90Tile((256, 64, step), (2, 1), "cooperative")
    tiles = (narrow,) if filters <= 32 else (middle, wide)
    return tuple(ConvConfig(tile, dtype, full, full, rows=True) for tile in tiles)


def _alignment(extent: int, full: int) -> int:
    return next(width for width in (8, 4, 2, 1) if width <= full and extent % width == 0)


def _step(dtype: str, channels: int) -> int:
    """Return the channels per step: 128 bytes, or 64 where the rest would be padding; 32 where these are all."""
    full = FULL_STEP // ELEMENTS[dtype].size
    if channels <= full // 4:
        return full // 4
    return full // 2 if 0 < channels % full <= full // 2 else full


def _sm90_tiles(dtype: str, channels: int, filters: int) -> tuple[Sm90Tile, ...]:
    """Return the tiles that compute few filters that there are not; a cluster's are all of some that there are."""
    step = _step(dtype, channels)

    def suits(tile: Sm90Tile) -> bool:
        height, width, _ = tile.shape
        count = -(-filters // width)
        if width <= 32 or (height, width) == (128, 64):
            return count == 1 and (2 * filters > width or width == 16)
        fills = filters > 32 and (width <= 64 or 4 * count * width <= 5 * filters)
        return fills and count % tile.cluster[1] == 0

    return tuple(replace(tile, shape=(*tile.shape[:2], step)) for tile in SM90 if suits(tile))


def _sm80_tiles(dtype: str, channels: int, filters: int, alignment: int) -> tuple[Sm80Tile, ...]:
    if ELEMENTS[dtype].size == 4:
        return Sm80Tile((64, 64, 16), (32, 32), 4), Sm80Tile((128, 64, 16), (64, 32), 3)
    if alignment == 1:
        return (Sm80Tile((64, 64, 32), (32, 32), 2),)
    if channels == 4 or (channels > 8 and _step(dtype, channels) == 32):
        small, large = Sm80Tile((64, 64, 32), (32, 32), 5), Sm80Tile((128, 64, 32), (64, 32), 4)
    else:
        small, large = Sm80Tile((64, 64, 64), (32, 32), 4), Sm80Tile((128, 64, 64), (64, 32), 3)
    return small, large if filters <= 64 else Sm80Tile((128, 128, 32), (64, 64), 4)


def _sliced_tiles(dtype: str, channels: int) -> tuple[Sm80Tile, ...]:
    """Return split-K tiles, for so few rows of y that there are less tiles than SMs; a slice has a step of channels."""
    if ELEMENTS[dtype].size == 4:
        return (Sm80Tile((64, 64, 16), (32, 32), 8, 8),) if channels >= 128 else ()
    return (Sm80Tile((64, 64, 64), (32, 32), 8, 8),) if channels >= 512 else ()
