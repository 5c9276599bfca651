"""GEMM kernels for at most 16 rows, whose time is that of reading the weights once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from packager.backends.cutlass.core.element_types import ELEMENTS, WARP_TYPES
from packager.backends.cutlass.core.kernel import KernelConfig, KernelSource
from packager.backends.cutlass.gemm.kernels import IDENTITY, SMS, form_name, functor
from packager.bundle.dtypes import HALVES
from packager.codegen.templates import MARK, render

MEGABYTES = 500
# Rows of a kernel, and its columns in sixteens: more rows need more loads of the data for each of a weight.
TILES = {8: 1, 16: 2}
MOST_ROWS = max(TILES)
# Elements of a load: extents along which memory is contiguous are multiples.
EIGHT = 8
# Of a block, which share the depth. Twice as many where there are no more tiles than multiprocessors, and more than
# AT_ONCE of the depth, which is under way at once; not of wide tiles, whose sums 48 KB of shared memory do not hold.
WARPS, AT_ONCE = 8, 2048


class RowsKernel(KernelConfig):
    """What kernels of few rows have in common: ``out`` is the type of results, of which ``activation`` is."""

    out: str
    activation: str
    residual: bool
    fast_math: bool
    gated: bool
    normed: bool
    warps: int

    @property
    def form(self) -> str:
        """The functor of the activation, as in kernels' names."""
        return functor(self.activation, self.out, fast_math=self.fast_math)

    @property
    def functor(self) -> str:
        """The C++ functor of the activation, applied to a float32."""
        return "pk::Unchanged" if self.form == IDENTITY else f"{self.form}<float>"

    @property
    def parts(self) -> list[str]:
        """What it does beside multiplying, as parts of kernels' names."""
        forms = ["c"] * self.residual + ["gated"] * self.gated + ["normed"] * self.normed
        return [form_name(self.form), *forms] + [f"w{self.warps}"] * (self.warps != WARPS)


@dataclass(frozen=True)
class FewRowsGemm(RowsKernel):
    """A kernel for ``rows`` rows or fewer; ``dtype`` is of a and b [n, k], ``out`` of bias, c and d.

    K and the leading dimensions are multiples of 8. ``residual`` is whether c is read. ``gated``: half of the columns
    are gates of the others, as of GemmConfig. ``normed``: rows are divided by their root mean square. A block has
    ``warps``. Raises ValueError for what the template has no form for.
    """

    rows: int
    dtype: str
    out: str
    activation: str = "none"
    residual: bool = False
    fast_math: bool = False
    gated: bool = False
    normed: bool = False
    warps: int = WARPS

    def __post_init__(self) -> None:
        fits = self.rows in TILES and self.warps in (WARPS, 2 * WARPS) and self.warps * TILES[self.rows] <= 2 * WARPS
        if not fits or (self.gated and self.residual):
            both = " with gates and a residual" * self.gated
            raise ValueError(f"there is no kernel of {self.rows} rows and {self.warps} warps{both}")

    @property
    def name(self) -> str:
        """A C identifier that encodes everything that the kernel's code depends on."""
        types = ELEMENTS[self.dtype].short, ELEMENTS[self.out].short
        return "_".join(["pk_gemm_rows", *types, str(self.rows), *self.parts])

    def source(self, archs: tuple[str, ...]) -> KernelSource:
        """Render the kernel's source file for these architectures."""
        text = render(
            "cutlass/gemm/gemm_rows.cu.j2",
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
            tiles=TILES[self.rows],
        )
        return KernelSource(self.name, text, archs, MEGABYTES)


@dataclass(frozen=True)
class RowsForm:
    """What a kernel of few rows does beside multiplying; see FewRowsGemm."""

    out: str
    activation: str = "none"
    residual: bool = False
    gated: bool = False
    normed: bool = False

    @property
    def epilogue(self) -> str:
        """As a part of the key of tuning records."""
        return f"{self.activation}{' residual' * self.residual}{' gated' * self.gated}{' normed' * self.normed}"


def has_few_rows(rows: Sequence[Any]) -> bool:
    """Whether the product of extents is known, and few rows."""
    return all(isinstance(extent, int) for extent in rows) and math.prod(rows) <= MOST_ROWS


def warps_for(columns: int, depth: int) -> int:
    """Return the warps of a block for a matrix of [columns, depth], of which it has sixteen columns at a time."""
    return 2 * WARPS if columns <= 16 * SMS and depth > AT_ONCE else WARPS


def few_rows_kernels(size: tuple[int, int, int], dtype: str, form: RowsForm, *, fast_math: bool) -> list[FewRowsGemm]:
    """Return the kernel for a product of rows x columns x depth of aligned data, if there is one."""
    rows, columns, depth = size
    fitting = next((most for most in TILES if rows <= most), None)
    if dtype not in HALVES or fitting is None:
        return []
    warps = warps_for(columns, depth) if TILES[fitting] == 1 else WARPS
    return [FewRowsGemm(fitting, dtype, warps=warps, fast_math=fast_math, **vars(form))]
