"""Analytical cost model of products and convolutions of 8 bits: rank tiles without a GPU."""

from __future__ import annotations

from packager.backends.cutlass.conv.cost_model import ConvShape
from packager.backends.cutlass.conv.kernels import LARGEST_WINDOW
from packager.backends.cutlass.core.drafts import Ranking, rank
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.cost_model import (
    MARGIN,
    SM80_RATE,
    SM80_START,
    SM80_WAVE,
    SMS,
    GemmForm,
    GemmShape,
    ceil_div,
    fastest,
    microseconds,
)
from packager.backends.cutlass.gemm.kernels import Sm90Tile
from packager.backends.cutlass.quantized.kernels import QuantizedConfig, portfolio

# Throughput of sm90 convolutions relative to those of sm80.
_SM90_RATE = 1.6


def rank_quantized_gemm(shape: GemmShape, form: GemmForm, options: CutlassOptions) -> Ranking:
    """Rank the kernels for a product. Those of sm_90a that are estimated to be much slower are left out."""
    newest, plain = (
        fastest(
            form.apply(portfolio("gemm", family, form.dtype, form.out, shape.depth, shape.columns), options),
            lambda config: microseconds(config.tile, shape, 1),
            margin,
        )
        for family, margin in (("sm90", MARGIN), ("sm80", float("inf")))
    )
    problem = f"gemm {form.dtype}->{form.out} scaled {shape.rows}x{shape.columns}x{shape.depth} {form.epilogue}"
    return rank(problem, options.arch, newest, plain)


def rank_quantized_conv(shape: ConvShape, form: GemmForm, options: CutlassOptions) -> Ranking:
    """Rank the kernels for a convolution."""

    def kernels(family: str) -> list[QuantizedConfig]:
        if max(shape.window) > LARGEST_WINDOW or (family == "sm90" and not shape.fits_im2col):
            return []
        made = portfolio("conv", family, form.dtype, form.out, shape.channels, shape.filters)
        return fastest(form.apply(made, options), lambda config: _conv_microseconds(config, shape.product))

    problem = f"conv2d {form.dtype}->{form.out} scaled {shape} {form.epilogue}"
    return rank(problem, options.arch, kernels("sm90"), kernels("sm80"))


def _conv_microseconds(kernel: QuantizedConfig, shape: GemmShape) -> float:
    m, n, k = kernel.tile.shape
    rate = 2 * SM80_RATE * (_SM90_RATE if isinstance(kernel.tile, Sm90Tile) else 1.0)
    waves = ceil_div(ceil_div(shape.rows, m) * ceil_div(shape.columns, n), SMS)
    return SM80_START + waves * (SM80_WAVE + ceil_div(shape.depth, k) * max(m * n * k / rate, 0.12))
