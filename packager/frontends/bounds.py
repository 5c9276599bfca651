"""Bounds of dims that are expressions over other dims."""

from __future__ import annotations

from collections.abc import Mapping

from packager.bundle import shape_expr
from packager.bundle.manifest import Dim
from packager.errors import ModelError
from packager.frontends.dims import DimRequest
from packager.graph.symbolic import extent_interval


def bound_expressions(requests: Mapping[str, DimRequest], expressions: Mapping[str, str]) -> dict[str, DimRequest]:
    """Return the requests, and the bounds that follow from them for dims which are expressions over others."""
    bounds = dict(requests)
    for name, text in expressions.items():
        inside = shape_expr.names(text)
        if name in bounds or not inside <= bounds.keys():
            continue
        dims = {dim: Dim(dim, bounds[dim].min, bounds[dim].max) for dim in inside}
        try:
            low, high = extent_interval(text, dims)
        except ModelError:  # a division by what can be zero
            continue
        if low >= 1:
            bounds[name] = DimRequest(low, high)
    return bounds
