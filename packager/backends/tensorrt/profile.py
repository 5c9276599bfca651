"""The sizes of inputs that an engine is built for: an optimization profile, from the bounds of a partition's dims."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from packager.errors import ModelError
from packager.graph.dataflow import shape_of
from packager.graph.identity import IdentityMap
from packager.graph.symbolic import bounded_dims, extent_interval, shape_variables, to_extent
from packager.ir.primitives import Partition
from packager.ir.shapes import Extent


def make_profile(
    partition: Partition, inputs: Sequence[int], names: Sequence[str], optimum: str
) -> dict[str, list[list[int]]]:
    """Return the least, the best and the greatest extents of each of the arguments ``inputs`` that has symbolic ones.

    ``names`` are those of the arguments in the engine. An engine is never called for tensors without elements, so no
    extent is 0. Raises ModelError where an extent shrinks as a dim grows: the library wants the least of all inputs to
    be the sizes of one call.
    """
    parameters = partition.function.params
    variables = shape_variables(parameters)
    bounds = [(max(low, 1), max(high, 1)) for low, high in partition.bounds]
    symbols, dims = bounded_dims(variables, bounds)
    calls: list[IdentityMap[Extent]] = [
        IdentityMap((variable, size(low, high)) for variable, (low, high) in zip(variables, bounds, strict=True))
        for size in (min, _best(optimum), max)
    ]
    profile = {}
    for name, index in zip(names, inputs, strict=True):
        shape = shape_of(parameters[index]) or ()
        if all(isinstance(extent, int) for extent in shape):
            continue
        for extent in shape:
            ends = tuple(to_extent(extent, sizes) for sizes in (calls[0], calls[-1]))
            if ends != extent_interval(to_extent(extent, symbols), dims):
                raise ModelError(f"extent {extent} of an input does not grow with the dims, as a profile's have to")
        profile[name] = [[int(to_extent(extent, sizes)) for extent in shape] for sizes in calls]
    return profile


def _best(optimum: str) -> Callable[[int, int], int]:
    ways: dict[str, Callable[[int, int], int]] = {"largest": max, "middle": _middle, "smallest": min}
    return ways[optimum]


def _middle(low: int, high: int) -> int:
    return round(math.sqrt(low * high))
