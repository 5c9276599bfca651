"""What searches ask of values in a graph, and the element types that kernels are for."""

from __future__ import annotations

from packager.graph.dataflow import in_order, only_last_is_read, same, scalar_of, shape_of

__all__ = ["FLOATS", "HALVES", "in_order", "only_last_is_read", "same", "scalar_of", "shape_of"]

HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32")
