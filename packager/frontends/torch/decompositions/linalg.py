"""Decompositions of linear algebra: Gauss-Jordan elimination and Cholesky's of small matrices, a step for each row.

Checks that a matrix is not singular are dropped: where torch raises an error, results are infinite or NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

_ATEN = torch.ops.aten
# Steps up to which the elimination is unrolled.
MAX_ORDER = 32


def _is_small(matrix: Any) -> bool:
    """Whether the order of a matrix is static and small, and its elements are real."""
    order = matrix.shape[-1]
    return isinstance(order, int) and order <= MAX_ORDER and not matrix.is_complex()


def _eliminate(matrix: Any, right: Any) -> tuple[Any, Any, Any]:
    """Solve ``matrix @ x = right`` with partial pivoting. Return x, the pivots [..., n], and the sign of the swaps."""
    order = matrix.shape[-1]
    rows = torch.arange(order)
    system = torch.cat([matrix, right], -1)
    sign = torch.ones_like(matrix[..., 0, 0])
    pivots = []
    for step in range(order):
        size = torch.where(rows < step, -1, system[..., step].abs())
        pivot = size.argmax(-1, keepdim=True)
        sign = torch.where(pivot[..., 0] == step, sign, -sign)
        swapped = torch.where(rows == step, pivot, torch.where(rows == pivot, step, rows))
        system = system.gather(-2, swapped[..., None].expand(system.shape))
        row = system[..., step : step + 1, :]
        value = row[..., step : step + 1]
        pivots.append(value[..., 0])
        row = row / value
        system = torch.where((rows == step)[:, None], row, system - system[..., step : step + 1] * row)
    return system[..., order:], torch.cat(pivots, -1), sign


def _factors(matrix: Any) -> tuple[Any, Any]:
    """Return the pivots, and the sign of the swaps; of a singular matrix a pivot is 0, those behind it are NaN."""
    _, pivots, sign = _eliminate(matrix, matrix[..., :0])
    return torch.where((pivots == 0).cumsum(-1) > 0, 0, pivots), sign


def _det(matrix: Any) -> Any:
    """Return the determinant; the factors, which torch has beside it, are for gradients."""
    if not _is_small(matrix):
        return NotImplemented
    pivots, sign = _factors(matrix)
    return sign * pivots.prod(-1), matrix, _no_pivots(matrix)


def _slogdet(matrix: Any) -> Any:
    if not _is_small(matrix):
        return NotImplemented
    pivots, sign = _factors(matrix)
    return sign * pivots.sign().prod(-1), pivots.abs().log().sum(-1), matrix, _no_pivots(matrix)


def _no_pivots(matrix: Any) -> Any:
    return torch.zeros_like(matrix[..., 0], dtype=torch.int32)


def _no_errors(matrix: Any) -> Any:
    return torch.zeros_like(matrix[..., 0, 0], dtype=torch.int32)


def _inverse(matrix: Any, **_checks: bool) -> Any:
    if not _is_small(matrix):
        return NotImplemented
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype).expand(matrix.shape)
    return _eliminate(matrix, identity)[0], _no_errors(matrix)


def _solve(matrix: Any, right: Any, *, left: bool = True, **_checks: bool) -> Any:
    if not _is_small(matrix):
        return NotImplemented
    is_vector = right.ndim == 1 or (right.ndim == matrix.ndim - 1 and right.shape == matrix.shape[:-1])
    columns = right[..., None] if is_vector else right
    result = _solve_either(matrix, columns, left=left or is_vector)
    return result[..., 0] if is_vector else result, matrix, _no_pivots(matrix), _no_errors(matrix)


def _solve_either(matrix: Any, right: Any, *, left: bool) -> Any:
    """Solve ``matrix @ x = right`` or ``x @ matrix = right``, of matrices whose other axes are broadcast."""
    if not left:
        return _solve_either(matrix.mT, right.mT, left=True).mT
    outer = torch.broadcast_shapes(matrix.shape[:-2], right.shape[:-2])
    matrix, right = (each.expand(*outer, *each.shape[-2:]) for each in (matrix, right))
    return _eliminate(matrix, right)[0]


def _solve_triangular(matrix: Any, right: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    if not _is_small(matrix):
        return NotImplemented
    matrix = matrix.triu() if upper else matrix.tril()
    if unitriangular:
        diagonal = torch.eye(matrix.shape[-1], dtype=torch.bool)
        matrix = torch.where(diagonal, 1, matrix)
    return _solve_either(matrix, right, left=left)


def _cholesky(matrix: Any, *, upper: bool = False, **_checks: bool) -> Any:
    """Compute a column of the factor after the other, from what the columns before leave."""
    if not _is_small(matrix):
        return NotImplemented
    order = matrix.shape[-1]
    rest = matrix.mT if upper else matrix
    rows, columns = torch.arange(order), []
    for step in range(order):
        pivot = rest[..., step : step + 1, step].sqrt()
        column = torch.where(rows < step, 0, rest[..., step] / pivot)
        columns.append(column)
        rest = rest - column[..., :, None] * column[..., None, :]
    factor = torch.stack(columns, -1)
    return factor.mT if upper else factor, _no_errors(matrix)


def _cholesky_solve(right: Any, factor: Any, upper: bool = False) -> Any:
    """Solve by both triangular factors, of which only the given half counts."""
    lower = factor.mT if upper else factor
    half = torch.linalg.solve_triangular(lower, right, upper=False)
    return torch.linalg.solve_triangular(lower.mT, half, upper=True)


def _cholesky_inverse(factor: Any, upper: bool = False) -> Any:
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype)
    return torch.cholesky_solve(identity.expand(factor.shape), factor, upper)


LINALG: Mapping[Any, Callable[..., Any]] = {
    _ATEN._linalg_det.default: _det,
    _ATEN._linalg_slogdet.default: _slogdet,
    _ATEN.linalg_inv_ex.default: _inverse,
    _ATEN._linalg_solve_ex.default: _solve,
    _ATEN.linalg_solve_triangular.default: _solve_triangular,
    _ATEN.linalg_cholesky_ex.default: _cholesky,
    _ATEN.cholesky.default: lambda matrix, upper=False: _cholesky(matrix, upper=upper)[0],
    _ATEN.cholesky_solve.default: _cholesky_solve,
    _ATEN.cholesky_inverse.default: _cholesky_inverse,
}
