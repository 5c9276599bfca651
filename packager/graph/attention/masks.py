"""Recognizes constant masks: none, or causal."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import GenericConst

from packager.graph.dataflow import Dataflow, shape_of
from packager.graph.evaluate import evaluate_call
from packager.graph.identity import IdentityMap

LARGEST_MASK = 2**26  # elements
MASKED = -1e3  # scores below it are masked out: their softmax weight is 0 in every element type


def read_mask(flow: Dataflow, mask: Any, queries: Any, keys: Any) -> tuple[Any, bool]:
    """Return the mask to add at run time, None if there is none, and whether it is causal instead."""
    array = None if mask is None else known_mask(flow, mask)
    if array is None:
        return mask, False
    causal = _is_causal(array, queries, keys)
    return (None if causal or not array.any() else mask), causal


def known_mask(flow: Dataflow, variable: Any) -> NDArray[Any] | None:
    """Return the value of a constant mask, if its shape is static and not too large."""
    values: IdentityMap[NDArray[Any]] = IdentityMap()

    def visit(expr: Any) -> bool:
        if expr in values or not isinstance(expr, relax.Var):
            return True
        extents = shape_of(expr)
        if extents is None or not all(isinstance(e, int) for e in extents) or math.prod(extents) > LARGEST_MASK:
            return False
        array, call = flow.array(expr), flow.value(expr)
        if array is None and isinstance(call, relax.Call) and all(visit(a) for a in call.args):
            array = evaluate_call(call, values)
        if array is not None:
            values[expr] = array
        return array is not None

    if isinstance(variable, GenericConst):
        return np.asarray(variable.value.numpy())
    return values[variable] if visit(variable) else None


def _is_causal(array: NDArray[Any], queries: Any, keys: Any) -> bool:
    """Whether each query attends exactly to the keys up to its own position."""
    shape = array.shape
    if len(shape) < 2 or shape[-2:] != (queries, keys):
        return False
    later = np.triu(np.ones(shape[-2:], dtype=bool), 1)
    return bool((array[..., ~later] == 0).all() and (array[..., later] < MASKED).all())
