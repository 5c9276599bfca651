"""Decompositions of distances between rows, and of products that are summed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import torch

_ATEN = torch.ops.aten
# More rows than this torch compares by a matrix product, unless it is told not to.
_FEW_ROWS = 25


def _pairs(x: Any, y: Any, p: float, compute_mode: int | None) -> Any:
    """Return the distances of all rows of two matrices."""
    many = any(isinstance(rows, torch.SymInt) or rows > _FEW_ROWS for rows in (x.shape[-2], y.shape[-2]))
    if p == 2 and (compute_mode == 1 or (many and not compute_mode)):
        return _ATEN._euclidean_dist.default(x, y)
    return torch.linalg.vector_norm(x[..., :, None, :] - y[..., None, :, :], p, -1)


def _all_pairs(x: Any, p: float = 2) -> Any:
    """Return the distances of each two rows of a matrix, as many as its extent says, which must be known."""
    if isinstance(x.shape[0], torch.SymInt):
        return NotImplemented
    first, second = torch.triu_indices(x.shape[0], x.shape[0], 1)
    return torch.linalg.vector_norm(x[first] - x[second], p, -1)


def _trilinear(
    first: Any, second: Any, third: Any, axes1: Any, axes2: Any, axes3: Any, summed: Any, _unroll: int = 1
) -> Any:
    """Sum a product of three over axes, the operands expanded by their own ones."""
    wide = []
    for operand, axes in zip((first, second, third), (axes1, axes2, axes3), strict=True):
        wide.append(reduce(torch.unsqueeze, sorted(axes), operand))
    product = wide[0] * wide[1] * wide[2]
    return product.sum(list(summed)) if summed else product


def _add_product(x: Any, matrix: Any, vector: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    product = torch.mv(matrix, vector)
    product = product if alpha == 1 else alpha * product
    return (x if beta == 1 else beta * x) + product if beta else product


DISTANCES: Mapping[Any, Callable[..., Any]] = {
    _ATEN._cdist_forward.default: _pairs,
    _ATEN._pdist_forward.default: _all_pairs,
    _ATEN.addmv.default: _add_product,
    _ATEN._trilinear.default: _trilinear,
}
