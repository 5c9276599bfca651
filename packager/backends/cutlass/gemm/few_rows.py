"""GEMM kernels for at most 16 rows, whose time is that of reading the weights once."""

from __future__ import annotations

from dataclasses import dataclass

from packager.backends.cutlass.core.element_types import ELEMENTS, WARP_TYPES
from packager.backends.cutlass.core.kernel import KernelConfig, KernelSource
from packager.backends.cutlass.gemm.kernels import IDENTITY, form_name, functor
from packager.bundle.dtypes import HALVES
from packager.codegen.templates import MARK, render

MEGABYTES = 500
# Rows of a kernel, and its columns in sixteens: more rows need more loads of the data for each of a weight.
TILES = {8: 1, 16: 2}


class RowsKernel(KernelConfig):
    """What kernels of few rows have in common: ``out`` is the type of results, of which ``activation`` is."""

    out: str
    activation: str
    fast_math: bool

    @property
    def form(self) -> str:
        """The functor of the activation, as in kernels' names."""
        return functor(self.activation, self.out, fast_math=self.fast_math)

    @property
    def functor(self) -> str:
        """The C++ functor of the activation, applied to a float32."""
        return "pk::Unchanged" if self.form == IDENTITY else f"{self.form}<float>"


@dataclass(frozen=True)
class FewRowsGemm(RowsKernel):
    """A kernel for ``rows`` rows or fewer; ``dtype`` is of a and b [n, k], ``out`` of bias, c and d.

    K and the leading dimensions are multiples of 8. ``residual`` is whether c is read. Raises ValueError for rows that
    the template has no form for.
    """

    rows: int
    dtype: str
    out: str
    activation: str = "none"
    residual: bool = False
    fast_math: bool = False

    def __post_init__(self) -> None:
        if self.rows not in TILES:
            raise ValueError(f"there is no kernel of {self.rows} rows")

    @property
    def name(self) -> str:
        """A C identifier that encodes everything that the kernel's code depends on."""
        types = ELEMENTS[self.dtype].short, ELEMENTS[self.out].short
        parts = ["pk_gemm_rows", *types, str(self.rows), form_name(self.form)]
        return "_".join(parts + ["c"] * self.residual)

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
            rows=self.rows,
            tiles=TILES[self.rows],
            blocks=2,
        )
        return KernelSource(self.name, text, archs, MEGABYTES)


def few_rows_kernels(
    rows: int, dtype: str, out: str, activation: str, residual: bool, *, fast_math: bool
) -> list[FewRowsGemm]:
    """Return the kernel for so many rows of aligned data, if there is one."""
    fitting = next((most for most in TILES if rows <= most), None)
    if dtype not in HALVES or fitting is None:
        return []
    return [FewRowsGemm(fitting, dtype, out, activation, residual, fast_math)]
