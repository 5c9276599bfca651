"""Range analysis: upper bounds on magnitudes.

Values known to fit in int32 are clipped as integers after rounding, for which CPUs have better instructions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax

from packager.graph.dataflow import operator_of, shape_of

ONE = frozenset(("erf", "tanh", "sigmoid", "sin", "cos", "nn.softmax"))
# Their result is no larger than the first operand.
NO_LARGER = frozenset(
    (
        *("nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "abs", "negative", "mean", "max", "min"),
        *("nn.avg_pool2d", "nn.adaptive_avg_pool2d", "nn.max_pool2d", "nn.pad"),
        *("reshape", "permute_dims", "expand_dims", "squeeze", "broadcast_to", "strided_slice", "take", "flatten"),
    )
)


def limit_of(call: relax.Call, limit: Callable[[Any], float], least: Callable[[Any], float]) -> float:
    """Return an upper bound on the result's magnitude, or infinity.

    ``limit`` returns an upper bound, ``least`` a lower bound on the magnitude of an operand's elements.
    """
    name = operator_of(call)
    if name in ONE:
        return 1.0
    if name in NO_LARGER:
        return limit(call.args[0])
    if name in ("add", "subtract"):
        return limit(call.args[0]) + limit(call.args[1])
    if name in ("maximum", "minimum"):
        return max(map(limit, call.args))
    if name == "concat" and isinstance(call.args[0], relax.Tuple):
        return max(map(limit, call.args[0].fields))
    if name == "multiply":
        return _finite(limit(call.args[0]) * limit(call.args[1]))
    if name == "divide" and least(call.args[1]) > 0:
        return _finite(limit(call.args[0]) / least(call.args[1]))
    if name == "nn.layer_norm" and (shape := shape_of(call)) is not None:
        extents = [shape[int(axis)] for axis in call.attrs.axes]
        if all(isinstance(extent, int) for extent in extents):
            width = math.prod(extents)
            return _finite(math.sqrt(width) * limit(call.args[1]) + limit(call.args[2]))
    return math.inf


def _finite(number: float) -> float:
    return math.inf if math.isnan(number) else number
