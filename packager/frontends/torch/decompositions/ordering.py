"""Decompositions of selections by order: into sorts, or comparisons with all elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

_ATEN = torch.ops.aten


def _select(x: Any, place: Any, dim: int, keepdim: bool) -> Any:
    """Return the element of sorted ``x`` at ``place``, an integer or a tensor that has ``dim``, and its index."""
    results = torch.sort(x, dim)
    if isinstance(place, torch.Tensor):
        chosen = tuple(each.gather(dim, place) for each in results)
    else:
        chosen = tuple(each.narrow(dim, place, 1) for each in results)
    return chosen if keepdim else tuple(each.squeeze(dim) for each in chosen)


def _kth_value(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    return _select(x, k - 1, dim, keepdim) if x.ndim else (x.clone(), torch.zeros_like(x, dtype=torch.int64))


def _median(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """The lower of the two in the middle; the first NaN if there is one, which are sorted to the end."""
    if not x.ndim:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    count = x.shape[dim]
    if not x.is_floating_point():
        return _select(x, (count - 1) // 2, dim, keepdim)
    unknown = torch.isnan(x).sum(dim, keepdim=True)
    return _select(x, torch.where(unknown > 0, count - unknown, (count - 1) // 2), dim, keepdim)


def _known_median(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    if not x.is_floating_point():
        return _median(x, dim, keepdim)
    if not x.ndim:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    known = (~torch.isnan(x)).sum(dim, keepdim=True)
    return _select(x, torch.clamp((known - 1) // 2, min=0), dim, keepdim)


def _of_all(function: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda x: function(x.flatten())[0]


def _mode(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """Count the elements that equal each; the smallest of the most frequent ones, where it is last."""
    if not x.ndim:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    rows = x.movedim(dim, -1)
    counts = (rows[..., :, None] == rows[..., None, :]).sum(-1)
    rows = rows.to(torch.uint8) if x.dtype is torch.bool else rows
    most = torch.inf if x.is_floating_point() else torch.iinfo(rows.dtype).max
    values = torch.where(counts == counts.amax(-1, keepdim=True), rows, most).amin(-1, keepdim=True)
    places = torch.where(rows == values, torch.arange(rows.shape[-1]), -1).amax(-1, keepdim=True)
    results = values.to(x.dtype).movedim(-1, dim), places.movedim(-1, dim)
    return results if keepdim else tuple(each.squeeze(dim) for each in results)


def _search(
    sequence: Any, x: Any, *, out_int32: bool = False, right: bool = False, side: Any = None, sorter: Any = None
) -> Any:
    """Count the elements of a sorted sequence before each of ``x``, after all where that is NaN."""
    x = _tensor(x)
    if sorter is not None:
        sequence = sequence.gather(-1, sorter)
    rows = sequence if sequence.ndim == 1 else sequence[..., None, :]
    before = rows <= x[..., None] if right or side == "right" else rows < x[..., None]
    if x.is_floating_point():
        before = before | torch.isnan(x)[..., None]
    return before.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def _bucketize(x: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    return _search(boundaries, x, out_int32=out_int32, right=right)


def _is_in(elements: Any, candidates: Any, *, invert: bool = False, **_hints: bool) -> Any:
    """Compare with each candidate; that they are unique only makes torch faster."""
    found = (_tensor(elements)[..., None] == _tensor(candidates).flatten()).any(-1)
    return ~found if invert else found


def _tensor(x: Any) -> Any:
    return x if isinstance(x, torch.Tensor) else torch.full((), x)


ORDERING: Mapping[Any, Callable[..., Any]] = {
    _ATEN.kthvalue.default: _kth_value,
    _ATEN.median.dim: _median,
    _ATEN.median.default: _of_all(_median),
    _ATEN.nanmedian.dim: _known_median,
    _ATEN.nanmedian.default: _of_all(_known_median),
    _ATEN.mode.default: _mode,
    _ATEN.searchsorted.Tensor: _search,
    _ATEN.searchsorted.Scalar: _search,
    _ATEN.bucketize.Tensor: _bucketize,
    _ATEN.bucketize.Scalar: _bucketize,
    _ATEN.isin.Tensor_Tensor: _is_in,
    _ATEN.isin.Tensor_Scalar: _is_in,
    _ATEN.isin.Scalar_Tensor: _is_in,
}
