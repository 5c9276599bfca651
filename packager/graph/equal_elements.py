"""Tells which tensors have equal elements: zeros that a sum begins with, ones that are counted, masks of nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from packager.graph.dataflow import Dataflow, operator_of

_VIEWS = ("broadcast_to", "reshape", "expand_dims", "squeeze", "permute_dims", "strided_slice", "astype")


def equal_elements(flow: Dataflow, tensor: Any) -> Any | None:
    """Return the scalar that all elements of a tensor are, of its type; None if they differ, or are unknown."""
    dtype = str(tensor.ty.dtype)
    value = flow.value(tensor)
    name = operator_of(value)
    if name in _VIEWS:
        inner = equal_elements(flow, value.args[0])
        return None if inner is None else relax.const(inner.value.numpy().astype(_numpy_type(dtype)), dtype)
    if name in ("zeros", "ones"):
        return relax.const(int(name == "ones"), dtype)
    if name == "full":
        return equal_elements(flow, value.args[1])
    array = flow.array(tensor) if isinstance(tensor, relax.Var) else tensor.value.numpy()
    if array is None or not array.size:
        return None
    elements = np.asarray(array).reshape(-1)
    return relax.const(elements[0], dtype) if (elements == elements[0]).all() else None


def _numpy_type(dtype: str) -> Any:
    return relax.const(0, dtype).value.numpy().dtype
