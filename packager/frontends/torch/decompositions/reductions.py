"""Decompositions of reductions and scans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

_ATEN = torch.ops.aten


def _with_mean(spread: Any) -> Callable[..., Any]:
    """Return a decomposition of ``var_mean`` or ``std_mean``."""

    def both(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        axes = list(dim) if dim else list(range(x.ndim))
        return spread(x, axes, correction=correction, keepdim=keepdim), _ATEN.mean.dim(x, axes, keepdim)

    return both


def prefixes(x: Any, dim: int, other: Any) -> Any:
    """Return the elements up to each along ``dim``, ``other`` after it: [..., n, n], the axis moved to the end."""
    rows = x.movedim(dim, -1)
    places = torch.arange(rows.shape[-1])
    return torch.where(places <= places[:, None], rows[..., None, :], other)


def _running(largest: bool) -> Callable[[Any, int], Any]:
    """Return a decomposition of ``cummax`` or ``cummin``: of equal elements torch has the last, of NaN as well."""

    def scan(x: Any, dim: int) -> Any:
        if not x.ndim:
            return x.clone(), torch.zeros_like(x, dtype=torch.int64)
        wide = x.to(torch.uint8) if x.dtype is torch.bool else x
        limits = torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(wide.dtype)
        worst = -torch.inf if x.is_floating_point() else limits.min
        if not largest:
            worst = torch.inf if x.is_floating_point() else limits.max
        before = prefixes(wide, dim, worst)
        values = before.amax(-1) if largest else before.amin(-1)
        places = torch.arange(before.shape[-1])
        same = before == values[..., None]
        if x.is_floating_point():
            unknown = torch.isnan(before)
            values = torch.where(unknown.any(-1), torch.nan, values)
            same = torch.where(unknown.any(-1, keepdim=True), unknown, same)
        indices = torch.where(same & (places <= places[:, None]), places, -1).amax(-1)
        return values.to(x.dtype).movedim(-1, dim), indices.movedim(-1, dim)

    return scan


def _logcumsumexp(x: Any, dim: int) -> Any:
    if not x.ndim:
        return x.clone()
    return torch.logsumexp(prefixes(x, dim, -torch.inf), -1).movedim(-1, dim)


def _histogram(x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:  # noqa: A002  (torch's names)
    """Count in bins of equal width, the last of which is closed; without bounds they are those of the data."""
    x = x.flatten()
    low, high = (x.amin(), x.amax()) if min == max else (torch.full_like(x[:1], bound) for bound in (min, max))
    low, high = torch.where(low == high, low - 1, low), torch.where(low == high, high + 1, high)
    place = torch.where(x == high, bins - 1, torch.floor((x - low) / (high - low) * bins))
    inside = (x >= low) & (x <= high)
    hits = inside[:, None] & (place[:, None] == torch.arange(bins))
    return hits.sum(0).to(x.dtype)


REDUCTIONS: Mapping[Any, Callable[..., Any]] = {
    _ATEN.var_mean.correction: _with_mean(_ATEN.var.correction),
    _ATEN.std_mean.correction: _with_mean(_ATEN.std.correction),
    _ATEN.cummax.default: _running(largest=True),
    _ATEN.cummin.default: _running(largest=False),
    _ATEN.logcumsumexp.default: _logcumsumexp,
    _ATEN.histc.default: _histogram,
}
