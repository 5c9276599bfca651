"""Analytical cost model of products and convolutions of 8 bits: rank tiles without a GPU."""

from __future__ import annotations

from packager.backends.cutlass.conv.cost_model import ConvShape, untuned_microseconds
from packager.backends.cutlass.conv.kernels import LARGEST_WINDOW
from packager.backends.cutlass.core.drafts import Ranking, rank
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.cost_model import MARGIN, GemmForm, GemmShape, fastest, microseconds
from packager.backends.cutlass.quantized.kernels import QuantizedConfig, portfolio


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
        return fastest(form.apply(made, options), lambda config: untuned_microseconds(config.tile, shape.product, 2))

    problem = f"conv2d {form.dtype}->{form.out} scaled {shape} {form.epilogue}"
    return rank(problem, options.arch, kernels("sm90"), kernels("sm80"))
