"""Rewrites the ONNX graph of an engine into what TensorRT has fused kernels for.

A partition has the layout and the types that packager chose for its own kernels. Transposes around every convolution,
also of its weights, and float32 between halves keep TensorRT from convolutions with bias and ReLU in one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

from packager.backends.tensorrt.rewrite.depth_to_space import find_depth_to_space
from packager.backends.tensorrt.rewrite.graph import read_graph, write_graph
from packager.backends.tensorrt.rewrite.halves import add_biases, narrow
from packager.backends.tensorrt.rewrite.layout import remove_transposes
from packager.bundle.gpu.engine_graphs import Form
from packager.emit.onnx import WrittenModel


def rewrite(written: WrittenModel, *, rounds: bool) -> tuple[WrittenModel, Mapping[str, Form]]:
    """Return a model that computes the same, and what of it are forms of constants that the source model gave.

    With ``rounds`` constants of float32 between halves are rounded to half.
    """
    graph = read_graph(written)
    if graph is None:
        return written, {}
    find_depth_to_space(graph)
    remove_transposes(graph)
    narrow(graph, rounds=rounds)
    add_biases(graph)
    return write_graph(graph, written)
