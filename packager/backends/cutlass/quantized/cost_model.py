"""Which kernel for which product or convolution of 8 bits, with no GPU to ask."""

from __future__ import annotations

from dataclasses import dataclass, replace

from packager.backends.cutlass.conv.cost_model import ConvShape
from packager.backends.cutlass.core.drafts import Ranking, rank
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.cost_model import (
    MARGIN,
    SM80_RATE,
    SM80_START,
    SM80_WAVE,
    SMS,
    GemmShape,
    ceil_div,
    microseconds,
)
from packager.backends.cutlass.gemm.kernels import Sm90Tile
from packager.backends.cutlass.quantized.kernels import LARGEST_WINDOW, QuantizedConfig, portfolio

# How much more an sm90 convolution reaches than one of the form for sm80.
_SM90_RATE = 1.6


@dataclass(frozen=True)
class QuantizedForm:
    """What all kernels for a problem have in common; see QuantizedConfig."""

    dtype: str
    out: str
    activation: str = "none"
    residual: bool = False

    def apply(self, kernels: tuple[QuantizedConfig, ...], *, fast_math: bool) -> list[QuantizedConfig]:
        """Return kernels with this epilogue."""
        own = {"activation": self.activation, "residual": self.residual, "fast_math": fast_math}
        return [replace(kernel, **own) for kernel in kernels]  # type: ignore[arg-type]

    def __str__(self) -> str:
        """The form as a part of a problem."""
        return f"{self.activation}{' residual' * self.residual}"


def rank_quantized_gemm(shape: GemmShape, form: QuantizedForm, options: CutlassOptions) -> Ranking:
    """Return the kernels for a product. Those of sm_90a that are estimated to be much slower are left out."""

    def time(kernel: QuantizedConfig) -> float:
        return microseconds(kernel.tile, shape, 1)

    def kernels(family: str) -> list[QuantizedConfig]:
        made = portfolio("gemm", family, form.dtype, form.out, shape.depth, shape.columns)
        return sorted(form.apply(made, fast_math=options.use_fast_math), key=time)

    newest = kernels("sm90")
    newest = [kernel for kernel in newest if time(kernel) <= MARGIN * time(newest[0])]
    problem = f"gemm {form.dtype}->{form.out} scaled {shape.rows}x{shape.columns}x{shape.depth} {form}"
    return rank(problem, options.arch, newest, kernels("sm80"))


def rank_quantized_conv(shape: ConvShape, form: QuantizedForm, options: CutlassOptions) -> Ranking:
    """Return the kernels for a convolution."""

    def kernels(family: str) -> list[QuantizedConfig]:
        if max(shape.window) > LARGEST_WINDOW or (family == "sm90" and not shape.fits_im2col):
            return []
        made = portfolio("conv", family, form.dtype, form.out, shape.channels, shape.filters)
        found = form.apply(made, fast_math=options.use_fast_math)
        return sorted(found, key=lambda kernel: _conv_microseconds(kernel, shape.product))

    problem = f"conv2d {form.dtype}->{form.out} scaled {shape} {form}"
    return rank(problem, options.arch, kernels("sm90"), kernels("sm80"))


def _conv_microseconds(kernel: QuantizedConfig, shape: GemmShape) -> float:
    m, n, k = kernel.tile.shape
    rate = 2 * SM80_RATE * (_SM90_RATE if isinstance(kernel.tile, Sm90Tile) else 1.0)
    waves = ceil_div(ceil_div(shape.rows, m) * ceil_div(shape.columns, n), SMS)
    return SM80_START + waves * (SM80_WAVE + ceil_div(shape.depth, k) * max(m * n * k / rate, 0.12))
