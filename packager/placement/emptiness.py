"""Finds calls with elements that follow from no elements: the sum over an axis of extent 0.

Code for loops that run at least once does not expect that. Extents that may be 0 are those that a run computes, and
expressions over dims such as ``n // 2``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from tvm import tirx
from tvm_ffi import structural_equal

from packager.bundle import shape_expr
from packager.bundle.manifest import Dim
from packager.errors import ModelError
from packager.graph.identity import IdentityMap
from packager.graph.symbolic import extent_interval, to_extent
from packager.ir.shapes import Extent

# Up to this many combinations of dims are tried.
MAX_TRIED = 4096


class Emptiness:
    """Tells whether tensors have elements; ``names`` maps shape variables to dims, ``dims`` are their bounds."""

    def __init__(self, names: IdentityMap[Extent], dims: Mapping[str, Dim]) -> None:
        self.names = names
        self.dims = dims
        self.vanishes = cache(self._vanishes)

    def follows(self, operands: Sequence[Sequence[Any]], result: Sequence[Any]) -> bool:
        """Tell whether a result may have elements where an operand has none; both are given by their extents."""
        parts = [factor for extent in result for factor in _factors(extent)]
        for factor in (factor for operand in operands for extent in operand for factor in _factors(extent)):
            if isinstance(factor, int | tirx.IntImm) or any(structural_equal(factor, part) for part in parts):
                continue
            try:
                text = to_extent(factor, self.names)
                others = tuple(str(to_extent(part, self.names)) for part in parts)
                if extent_interval(text, self.dims)[0] < 1 and not self.vanishes(str(text), others):
                    return True
            except (ModelError, shape_expr.ShapeExpressionError):  # nothing is known of it
                return True
        return False

    def _vanishes(self, extent: str, results: tuple[str, ...]) -> bool:
        """Tell whether one of the results is known to be 0 whenever an extent is; all are texts over dims."""
        names = sorted(shape_expr.names(extent))
        fitting = [result for result in results if shape_expr.names(result) <= {*names}]
        sizes = [range(self.dims[name].min, self.dims[name].max + 1) for name in names]
        if not fitting or math.prod(map(len, sizes)) > MAX_TRIED:
            return False
        for values in itertools.product(*sizes):
            dims = dict(zip(names, values, strict=True))
            if shape_expr.evaluate(extent, dims) <= 0 and all(shape_expr.evaluate(r, dims) > 0 for r in fitting):
                return False
        return True


def _factors(extent: Any) -> Iterator[Any]:
    """Yield the factors of an extent, which is 0 if one of them is."""
    if isinstance(extent, tirx.Mul):
        yield from _factors(extent.a)
        yield from _factors(extent.b)
    else:
        yield extent
