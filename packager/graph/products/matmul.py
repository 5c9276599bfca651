"""Read a matmul with its epilogue: extents, types, and whether its matrix is a constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packager.bundle.dtypes import FLOATS
from packager.graph.dataflow import Dataflow, same, shape_of
from packager.graph.products.epilogues import Chain

if TYPE_CHECKING:
    from packager.bundle.arrays import Array


@dataclass(frozen=True)
class Product:
    """``a`` [batch, rows, depth] times ``b`` [batch, depth, columns], with the epilogue of ``chain``.

    ``batch`` and ``rows`` are extents to multiply; ``batch`` is empty if all rows share one matrix.
    """

    a: Any
    b: Any
    chain: Chain
    dtype: str
    out: str
    batch: tuple[Any, ...]
    rows: tuple[Any, ...]
    columns: Any
    depth: Any

    @property
    def repeats(self) -> bool:
        """Whether a is one matrix [rows, depth] for all of b: weights of tokens, as in an MLP-Mixer."""
        return bool(self.batch) and all(same(extent, 1) for extent in (shape_of(self.a) or ())[:-2])

    @property
    def batch_a(self) -> Any:
        """The elements between matrices of a: extents to multiply, or 0."""
        return 0 if self.repeats else (*self.rows, self.depth)


@dataclass(frozen=True)
class MatmulProblem(Product):
    """A matmul; ``constant`` is whether b is a constant with known extents."""

    constant: bool


def read_matmul(flow: Dataflow, chain: Chain) -> MatmulProblem | None:
    """Return the problem of a chain of floats, or None if it is no product of matrices of one type."""
    a, b = flow.value(chain.anchor).args
    left, right, result = shape_of(a), shape_of(b), shape_of(chain.result)
    dtype, out = str(a.ty.dtype), str(chain.result.ty.dtype)
    if not left or not right or not result or len(left) < 2 or len(right) < 2 or str(b.ty.dtype) != dtype:
        return None
    if dtype not in FLOATS:
        return None
    shared = all(same(extent, 1) for extent in right[:-2])
    repeats = all(same(extent, 1) for extent in left[:-2])
    if not shared and not repeats and not same(left[:-2], right[:-2]):
        return None
    if chain.residual is not None and str(chain.residual.ty.dtype) != out:
        return None
    if not bias_fits(flow, chain, out):
        return None
    if any(isinstance(extent, int) and extent == 0 for extent in (*left, *right)):
        return None
    rows = left[:-1] if shared else left[-2:-1]
    constant = flow.is_constant(b) and all(isinstance(extent, int) for extent in right) and shared
    batch = () if shared else right[:-2]
    return MatmulProblem(a, b, chain, dtype, out, batch, rows, right[-1], left[-1], constant)


def bias_fits(flow: Dataflow, chain: Chain, dtype: str) -> bool:
    """Return whether a bias has the type of the result, or is a constant, which is converted at build time."""
    return chain.bias is None or str(chain.bias.ty.dtype) == dtype or flow.is_constant(chain.bias)


def pack_columns(array: Array) -> Array:
    """Return [k, n] as [n, k], the layout ``nk`` of constant matrices."""
    return array.reshape(array.shape[-2:]).transpose()
