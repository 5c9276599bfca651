"""Convolutions whose filters a run computes: whether it is worth that they are permuted, and packed, in each run."""

from __future__ import annotations

import math
from typing import Any

from packager.graph.dataflow import static_shape_of

# Filters of a group, and places of the result for each of them, from which on products are worth what packing costs.
LEAST_FILTERS, LEAST_PLACES = 16, 16


def is_worth_permuting(call: Any) -> bool:
    """Whether a convolution of any layout has weights that are worth being permuted and packed in each run."""
    weight, shape = static_shape_of(call.args[1]), static_shape_of(call)
    if weight is None or shape is None or str(call.ty.dtype) != "float32":
        return False
    groups = int(call.attrs.groups)
    filters, inner = weight[0] // groups, math.prod(weight[1:])
    places = math.prod(shape) // weight[0]
    return (groups == 1 or min(filters, inner) >= LEAST_FILTERS) and filters > 1 and places >= LEAST_PLACES
