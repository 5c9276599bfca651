"""Converters of sort and topk. Elements that are equal stay in order; NaN is greater than all numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tvm import relax

from packager.frontends.ordering import emit_top_k
from packager.frontends.torch.ops.program import argument

# An upper bound of all extents.
_LARGEST = 2**31 - 1


def _sort(importer: Any, node: Any) -> Any:
    axis, descending = int(argument(node, 1, "dim", -1)), bool(argument(node, 2, "descending", False))
    return _best(importer, node, None, axis, largest=descending)


def _top_k(importer: Any, node: Any) -> Any:
    axis, largest = int(argument(node, 2, "dim", -1)), bool(argument(node, 3, "largest", True))
    return _best(importer, node, importer.value(node.args[1]), axis, largest=largest)


def _best(importer: Any, node: Any, k: Any, axis: int, *, largest: bool) -> Any:
    """Return the ``k`` best elements along an axis, or all, and their indices."""
    data, given = importer.tensor(node.args[0]), node.args[0].meta["val"]
    if not given.ndim:
        return relax.Tuple([data, relax.const(0, "int64")])
    axis %= given.ndim
    k = importer.shape(node.args[0])[axis] if k is None else k
    if isinstance(k, int) and k < 1:
        raise ValueError("no elements are to be returned")
    return relax.Tuple(emit_top_k(importer.emit, data, k, axis, _bound(given.shape[axis]), largest=largest))


def _bound(extent: Any) -> int:
    """Return an upper bound of an extent, from the bounds of the program's dims."""
    if not isinstance(extent, torch.SymInt):
        return int(extent)
    upper = extent.node.shape_env.bound_sympy(extent.node.expr).upper
    return int(upper) if upper.is_finite and upper < _LARGEST else _LARGEST


ORDERING: Mapping[str, Callable[[Any, Any], Any]] = {
    "sort.default": _sort,
    "sort.stable": _sort,
    "topk.default": _top_k,
}
