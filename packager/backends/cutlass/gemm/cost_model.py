"""Analytical cost model of GEMM: rank tiles without a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from packager.backends.cutlass.core.drafts import Ranking, rank
from packager.backends.cutlass.core.element_types import ELEMENTS, vector_of
from packager.backends.cutlass.core.kernel import KernelConfig
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.core.row_ranges import rank_by_rows
from packager.backends.cutlass.gemm.few_rows import EIGHT, RowsForm, few_rows_kernels
from packager.backends.cutlass.gemm.kernels import SMS, GemmConfig, TiledConfig
from packager.backends.cutlass.gemm.tiles import portfolio as tiles_of
from packager.backends.cutlass.gemm.tilings import Sm80Tile, Sm90Tile, Tile, has_gates


@dataclass(frozen=True)
class GemmShape:
    """The size of a product, with the upper bounds of symbolic dims; ``has_fixed_rows`` if the rows are none."""

    rows: int
    columns: int
    depth: int
    batch: int
    has_fixed_rows: bool = False


Config = TypeVar("Config", bound=TiledConfig)

# So many rows go by the kernel of few rows, and up to twice as many of short sums: measured on an H200 with 1 and 16.
FEW_ROWS, SHORT_DEPTH = 8, 1024
MOST_SMS = 192  # of any GPU that kernels which split K run on
# Microseconds of each sm90 tile on an H200: per launch, per wave of blocks, per 128 bytes of K in a wave, and per
# megabyte of operands and result, a lower bound of all waves. Fitted to 74 sizes of 16-bit products, linear and
# batched, from 1 to 100352 rows (benchmarks/cutlass/fp16.py, all tiles): over these the choice is 0.9 % slower than the
# best one (geometric mean; at most 9 %).
TIMES = {
    "64x128x64_c2x1_pingpong": (2.04, 0.831, 0.2102, 0.307),
    "128x128x64_c2x1_pingpong": (2.99, 0.277, 0.3461, 0.294),
    "128x128x64_c2x1_cooperative": (2.99, 0.277, 0.3461, 0.294),  # of 8-bit floats alone; not measured
    "64x64x128_c1x1_pingpong": (1.87, 0.714, 0.1404, 0.274),
    "256x128x64_c1x2_cooperative": (1.19, 2.188, 0.7112, 0.299),
    "128x256x64_c2x1_cooperative": (1.15, 2.510, 0.7827, 0.314),
    "64x16x128_c1x1_pingpong_t": (2.40, 0.410, 0.0719, 0.252),
    "64x32x128_c1x1_pingpong_t": (1.99, 0.547, 0.0887, 0.274),
    "64x96x64_c1x1_plain": (0.00, 2.436, 0.1790, 0.337),
    "64x96x128_c1x1_plain": (0.00, 2.576, 0.1848, 0.357),
    "128x144x64_c1x1_cooperative_e128x48": (1.52, 1.825, 0.4492, 0.349),
    "64x192x64_c1x1_plain_s3_b2": (2.47, 0.495, 0.3738, 0.452),
    "128x192x64_c1x1_cooperative": (1.48, 1.967, 0.5794, 0.369),
    "256x96x64_c1x1_cooperative": (1.81, 1.754, 0.5961, 0.310),
}
# Of SM90_FEW, for 17 to 512 rows: per launch, per wave of blocks, per 128 bytes of K in a wave, per 128 bytes of K in
# as many blocks as there are SMs, per megabyte of operands and result, and per 128 bytes of K in as many blocks that
# only fill up clusters. Fitted to 115 sizes of 64 to 2,048 rows on an H100, and to the 74: over the 90 of at most 512
# rows the choice is 2.9 % slower than the best of 68 tiles (geometric mean; at most 20 %). Fitted to 68 of the 115 it
# is 4.1 % over the 47 others, of other models. Of more rows BERT-base was slower by these, so that they keep TIMES.
FEW_TIMES = {
    "64x32x128_c2x1_pingpong": (0.0, 2.679, 0.0576, 0.064, 0.0, 0.1322),
    "64x64x128_c2x1_pingpong": (0.0, 2.811, 0.077, 0.0496, 0.1516, 0.0757),
    "64x96x128_c1x1_plain": (0.7407, 1.865, 0.103, 0.0996, 0.1589, 0.0),
    "64x128x64_c2x1_pingpong": (2.585, 0.4253, 0.1116, 0.1187, 0.0912, 0.1233),
    "64x192x64_c2x1_pingpong": (3.247, 0.2605, 0.2063, 0.1076, 0.1013, 0.1745),
    "128x96x64_c2x1_cooperative": (1.863, 1.533, 0.1507, 0.1888, 0.0141, 0.2054),
    "128x128x64_c1x2_pingpong": (2.828, 0.2395, 0.256, 0.0727, 0.1742, 0.6185),
    "128x128x64_c2x1_pingpong": (2.54, 0.8044, 0.2515, 0.1095, 0.0731, 0.2032),
    "128x160x64_c1x1_cooperative": (0.0134, 3.079, 0.3021, 0.135, 0.1567, 0.0),
    "128x192x64_c1x2_cooperative": (0.9663, 2.313, 0.2744, 0.2589, 0.1464, 1.155),
    "256x96x64_c1x1_cooperative": (2.05, 1.163, 0.3762, 0.2199, 0.1047, 0.0),
    "256x128x64_c1x2_cooperative": (1.834, 1.698, 0.5495, 0.2184, 0.0518, 0.0),
    "256x160x64_c1x2_cooperative": (0.0, 3.576, 0.8609, 0.1453, 0.0018, 0.0),
    "64x16x128_c1x1_pingpong_t": (2.276, 0.19, 0.0362, 0.0718, 0.1256, 0.0),
    "64x32x128_c1x1_pingpong_t": (2.317, 0.1764, 0.042, 0.0883, 0.1236, 0.0),
    "64x64x128_c2x1_pingpong_t": (0.6911, 1.876, 0.0763, 0.05, 0.2024, 0.0),
}
ROWS_OF_FEW = range(17, 513)
# Kernels whose estimate exceeds the best one by this factor are not compiled. The best of the others is 0.3 % slower
# than the best of all over the same sizes, at most 7 %; two kernels remain on average.
MARGIN = 1.1
# Of other kernels: microseconds per launch and per wave, and elements of a tile times K per microsecond of an SM.
SM80_START, SM80_WAVE, SM80_RATE = 2.0, 1.0, 1.8e6


@dataclass(frozen=True)
class GemmForm:
    """What all kernels for a product or a convolution have in common; see GemmConfig.

    ``constant``: b of a product is a constant of the bundle, which no kernel computes. ``gated``: half of the columns
    are gates of the others. ``normed``: rows are divided by their root mean square, by kernels of few rows.
    """

    dtype: str
    out: str
    b_rows: bool = False
    activation: str = "none"
    residual: bool = False
    constant: bool = False
    gated: bool = False
    normed: bool = False

    @property
    def rows(self) -> RowsForm:
        """What a kernel of few rows does beside multiplying."""
        return RowsForm(self.out, self.activation, self.residual, self.gated, self.normed)

    @property
    def epilogue(self) -> str:
        """The epilogue as a part of the key of tuning records."""
        return self.rows.epilogue

    def describe(self, shape: GemmShape, divisor: int) -> str:
        """Return the key of tuning records of a product: everything that decides which kernel is the fastest."""
        layout = "nn" if self.b_rows else "nt"
        size = f"{shape.rows}x{shape.columns}x{shape.depth} batch {shape.batch} aligned {divisor}"
        return f"gemm {self.dtype}->{self.out} {layout} {size} {self.epilogue}"

    def apply(self, kernels: Iterable[Config], options: CutlassOptions) -> list[Config]:
        """Return kernels with this epilogue."""
        make = partial(replace, activation=self.activation, residual=self.residual, fast_math=options.use_fast_math)
        if self.gated:
            make, kernels = partial(make, gated=True), (kernel for kernel in kernels if has_gates(kernel.tile))
        return list(map(make, kernels))


def fastest(kernels: Iterable[Config], time: Callable[[Config], float], margin: float = math.inf) -> list[Config]:
    """Sort kernels by their estimated time; leave out those that take ``margin`` times that of the first or more."""
    ranked = sorted(kernels, key=time)
    return [kernel for kernel in ranked if time(kernel) <= margin * time(ranked[0])]


def rank_gemm(
    shape: GemmShape, form: GemmForm, divisors: tuple[int, int], options: CutlassOptions, *, margin: float = MARGIN
) -> Ranking:
    """Rank the kernels for a product. ``divisors`` divide the extents along which operands and results are contiguous.

    Kernels for sm_90a whose estimate is more than ``margin`` times the best one are left out.
    """
    dtype = multiplied(form.dtype, options)
    size = ELEMENTS[dtype].size
    alignment, out_alignment = (math.gcd(each, 16 // size) for each in divisors)
    narrower = [width for width in (4, 2, 1) if width < alignment] if options.profile_all_alignments else []

    fewer = shape.batch == 1 and shape.rows in ROWS_OF_FEW and not form.b_rows

    def time(config: GemmConfig) -> float:
        return (few_microseconds if fewer else microseconds)(config.tile, shape, size)

    def kernels(family: str, alignment: int, margin: float = math.inf) -> list[GemmConfig]:
        tiles = tiles_of(family, dtype, form.out, alignment=alignment, b_rows=form.b_rows, few=fewer)
        made = (GemmConfig(tile, dtype, form.out, alignment, form.b_rows) for tile in tiles if tile.slices == 1)
        if out_alignment < min(alignment, vector_of(form.out)):
            made = (replace(config, narrow=out_alignment) for config in made)
        if form.constant and family == "sm90":
            made = (replace(config, early=True) for config in made)
        return fastest(form.apply(made, options), time, margin)

    plain = [config for width in (alignment, *narrower) for config in kernels("sm80", width)]
    aligned = alignment * size == 16 and divisors[1] % vector_of(form.out) == 0
    newest: list[KernelConfig] = [*(kernels("sm90", alignment, margin) if aligned else ())]
    newest += plain if newest and options.profile_all_alignments else []
    problem = form.describe(shape, alignment)
    if alignment * size == 16 and shape.batch == 1 and shape.has_fixed_rows and form.constant and not form.gated:
        few = few_rows_kernels(
            (shape.rows, shape.columns, shape.depth), dtype, form.rows, fast_math=options.use_fast_math
        )
        place = 0 if shape.rows <= FEW_ROWS or shape.depth <= SHORT_DEPTH else 1
        newest[place:place] = few if newest else []
        if options.split_k_slices == 1:
            return rank(problem, options.arch, newest, [*few, *plain], None if few else time)
    if options.split_k_slices == 1 or shape.batch != 1 or not plain:
        return rank(problem, options.arch, newest, plain, time)
    # Second, so that it is shipped: it was asked for to be measured. The cost model does not estimate it.
    whole = plain[0].tile
    assert isinstance(whole, Sm80Tile)
    sliced = replace(plain[0], tile=replace(whole, slices=options.split_k_slices))
    ranking = rank(problem, options.arch, _with_second(newest, sliced), _with_second(plain, sliced))
    return replace(ranking, workspace=sliced.workspace_bytes(MOST_SMS))


def rank_rows(shape: GemmShape, least: int, rank: Callable[[GemmShape], Ranking]) -> Ranking:
    """Rank the kernels for a product of ``least`` rows or more by those that ``rank`` returns, for ranges of rows."""
    if shape.has_fixed_rows:
        return rank(shape)
    most = shape.rows
    # A range has an end, which may be so few rows that these have kernels of their own.
    return rank_by_rows(lambda rows: rank(replace(shape, rows=rows, has_fixed_rows=rows < most)), least, most)


def rank_few_rows(shape: GemmShape, form: GemmForm, options: CutlassOptions) -> Ranking:
    """Return the kernel of few rows for a product with a constant matrix, if there is one.

    ``columns`` are those of the matrix, of gates and of what they gate.
    """
    kernels: list[KernelConfig] = []
    if shape.depth % EIGHT == 0 and form.out in (form.dtype, "float32"):
        size = (shape.rows, shape.columns, shape.depth)
        kernels += few_rows_kernels(size, form.dtype, form.rows, fast_math=options.use_fast_math)
    return rank(form.describe(shape, EIGHT), options.arch, [], kernels)


def _with_second(kernels: Sequence[KernelConfig], second: GemmConfig) -> list[KernelConfig]:
    return [*kernels[:1], second, *kernels[1:]] if kernels else []


def multiplied(dtype: str, options: CutlassOptions) -> str:
    """Return the type that operands are multiplied as, a key of TYPES."""
    return "tfloat32" if dtype == "float32" and not options.use_3xtf32 else dtype


def estimate(times: tuple[float, float, float, float], waves: int, steps: float, nbytes: int) -> float:
    """Return microseconds by a row of TIMES: ``waves`` of ``steps`` of 128 bytes of K, and ``nbytes`` of traffic."""
    start, wave, step, megabyte = times
    return start + max(waves * (wave + step * steps), megabyte * nbytes / 1e6)


def microseconds(tile: Tile, shape: GemmShape, itemsize: int) -> float:
    """Estimate the time of a product with a tile: waves of blocks, each with steps along K."""
    m, n, _ = tile.shape
    if isinstance(tile, Sm80Tile):
        waves = ceil_div(ceil_div(shape.rows, m) * ceil_div(shape.columns, n) * shape.batch, SMS)
        # Narrow tiles read more bytes per multiplication.
        rate = SM80_RATE * min(m, n, 64) / 64 * 2 / itemsize
        return SM80_START + waves * (SM80_WAVE + m * n * shape.depth / rate)
    blocks, _ = _blocks(tile, shape)
    waves = ceil_div(blocks, SMS * tile.blocks) * tile.blocks if blocks > SMS else 1
    return estimate(TIMES[_wide(tile, itemsize)], waves, shape.depth * itemsize / 128, _nbytes(shape, itemsize))


def few_microseconds(tile: Tile, shape: GemmShape, itemsize: int) -> float:
    """Estimate the time of a product of few rows with a tile of SM90_FEW, or one for other GPUs."""
    if isinstance(tile, Sm80Tile):
        return microseconds(tile, shape, itemsize)
    start, wave, step, load, megabyte, idle = FEW_TIMES[_wide(tile, itemsize)]
    blocks, used = _blocks(tile, shape)
    waves, steps = ceil_div(blocks, SMS), shape.depth * itemsize / 128
    per_step = waves * step + (blocks * load + (blocks - used) * idle) / SMS
    return start + waves * wave + steps * per_step + megabyte * _nbytes(shape, itemsize) / 1e6


def _blocks(tile: Sm90Tile, shape: GemmShape) -> tuple[int, int]:
    """Return the number of blocks of whole clusters, and of those that have something to compute."""
    (m, n, _), (cm, cn) = tile.shape, tile.cluster
    if tile.swapped:
        m, n, cm, cn = n, m, cn, cm
    rows, columns = ceil_div(shape.rows, m), ceil_div(shape.columns, n)
    return ceil_div(rows, cm) * cm * ceil_div(columns, cn) * cn * shape.batch, rows * columns * shape.batch


def _wide(tile: Sm90Tile, itemsize: int) -> str:
    """Return the name of a tile in TIMES, whose K is of 16-bit types."""
    return replace(tile, shape=(*tile.shape[:2], tile.shape[2] * itemsize // 2)).name


def _nbytes(shape: GemmShape, itemsize: int) -> int:
    m, n, k = shape.rows, shape.columns, shape.depth
    return shape.batch * (m * k + n * k + m * n) * itemsize


def ceil_div(a: int, b: int) -> int:
    """Return ``a / b``, rounded up."""
    return -(-a // b)
