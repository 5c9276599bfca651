"""Constant folding of ONNX graphs with numpy: from initializers and static shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from packager.bundle.arrays import Array
from packager.frontends.onnx.graph.external_data import LARGE_BYTES, declaration
from packager.frontends.onnx.graph.nodes import attributes_of, blamed, evaluator, is_standard, replace_all
from packager.graph.array_views import take
from packager.graph.lift_constants import stays_inline

# Operators that are not pure functions of their inputs, have subgraphs, or are folded later.
NOT_FOLDABLE = {
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"),
    *("If", "Loop", "Scan", "SequenceMap"),
    # Keeps weights at 8 bits for ``packager.transforms.quantize.quantize``.
    "DequantizeLinear",
}
# Operators that onnx's reference computes otherwise than the standard says, for some attributes, ranks or types. They
# are folded only if an input has no elements.
REFERENCE_DIFFERS = {
    *("RNN", "LSTM", "GRU", "LpNormalization", "LRN", "Hardmax", "TopK", "Shrink", "Upsample", "Resize", "GridSample"),
    *("RoiAlign", "MaxRoiPool", "Conv", "ConvTranspose", "DeformConv", "MaxPool", "AveragePool", "LpPool", "MaxUnpool"),
    *("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool", "MeanVarianceNormalization", "BatchNormalization"),
    *("InstanceNormalization", "GroupNormalization", "LayerNormalization", "RMSNormalization", "Softmax", "LogSoftmax"),
    *("Attention", "RotaryEmbedding", "QLinearConv", "QLinearMatMul", "ConvInteger", "AffineGrid"),
}
# Larger results, such as a ConstantOfShape of gigabytes, are not folded.
MAX_FOLDED_BYTES = 1 << 28


# The shape of a value; unknown extents are None.
Extents = tuple[int | None, ...]


class Constants:
    """The initializers of a graph as arrays, and the provenance of folded ones.

    ``sources`` maps each folded initializer to those of the file that it was computed from, without small ones, which
    become part of the code. An array that only moves elements of its source is a view of it. ``arrays`` holds those
    whose data are not in the graph.
    """

    def __init__(self, graph: onnx.GraphProto, arrays: Mapping[str, Array]) -> None:
        self.graph = graph
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}
        self.arrays = dict(arrays)
        self.sources: dict[str, tuple[str, ...]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def array(self, name: str) -> Array:
        """Return the value of an initializer."""
        if name not in self.arrays:
            self.arrays[name] = numpy_helper.to_array(self.tensors[name])
        return self.arrays[name]

    def add(self, name: str, array: Array, inputs: Iterable[str] | None) -> None:
        """Add an initializer computed from ``inputs``; None: a Constant node of the file."""
        self.arrays[name] = array
        if array.nbytes > LARGE_BYTES:
            data_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            self.tensors[name] = declaration(name, data_type, array.shape)
        else:
            self.tensors[name] = numpy_helper.from_array(np.asarray(array, order="C"), name)
        self.graph.initializer.append(self.tensors[name])
        if inputs is not None:
            self.sources[name] = tuple(dict.fromkeys(source for i in inputs for source in self._sources_of(i)))

    def _sources_of(self, name: str) -> tuple[str, ...]:
        return self.sources.get(name, () if stays_inline(self.array(name)) else (name,))


def fold_constants(model: onnx.ModelProto, extents: Mapping[str, Extents], constants: Constants) -> int:
    """Replace nodes with constant results by initializers; return how many were other than Constant nodes.

    ``extents`` are those of values by name. Outputs of the graph are not folded.
    """
    graph = model.graph
    outputs = {value.name for value in graph.output}
    shapes_of: dict[str, Extents] = {}
    remaining, folded = [], 0
    for node in graph.node:
        values: list[Array] | None = None
        if not is_standard(node):
            pass
        elif outputs.intersection(node.output):
            if node.op_type not in ("Identity", *NOT_FOLDABLE) and _must_fold(node, constants):
                values = _evaluate(model, node, {name: constants.array(name) for name in node.input if name})
            if values is not None:  # an output of the graph must be produced by a node
                for index, name in enumerate(node.output):
                    if name in outputs:
                        node.output[index] = f"{name}.value"
                        remaining.append(onnx.helper.make_node("Identity", [node.output[index]], [name]))
        elif (known := _known_shape(node, extents, shapes_of, constants)) is not None:
            values = [known]
        elif node.op_type not in NOT_FOLDABLE and _is_constant(node, constants):
            values = _evaluate(model, node, {name: constants.array(name) for name in node.input if name})
            if values is not None and node.op_type == "Gather":
                values = [_gather(node, constants.array(node.input[0]), constants.array(node.input[1]), values[0])]
        if values is None:
            remaining.append(node)
            continue
        folded += node.op_type != "Constant"
        for name, value in zip(node.output, values, strict=False):
            if name:
                inputs = [i for i in node.input if i in constants]
                constants.add(name, value, None if node.op_type == "Constant" else inputs)
    replace_all(graph.node, remaining)
    return folded


def _is_constant(node: onnx.NodeProto, constants: Constants) -> bool:
    """Tell whether all inputs of a node are constant, and onnx's reference computes it as the standard says."""
    names = [name for name in node.input if name]
    if not all(name in constants for name in names):
        return False
    return node.op_type not in REFERENCE_DIFFERS or any(constants.array(name).size == 0 for name in names)


def _must_fold(node: onnx.NodeProto, constants: Constants) -> bool:
    """Tell whether all inputs of a node are constant, and no converter evaluates it."""
    names = [name for name in node.input if name]
    known = all(name in constants for name in names)
    return known and (node.op_type == "MelWeightMatrix" or any(constants.array(name).size == 0 for name in names))


def _known_shape(
    node: onnx.NodeProto, extents: Mapping[str, Extents], shapes_of: dict[str, Extents], constants: Constants
) -> Array | None:
    with blamed(node):
        return _shape_value(node, extents, shapes_of, constants)


def _shape_value(
    node: onnx.NodeProto, extents: Mapping[str, Extents], shapes_of: dict[str, Extents], constants: Constants
) -> Array | None:
    """Return the value of a Shape, or of a Slice or Gather of a shape, if the extents that it needs are known.

    A partially known shape is recorded in ``shapes_of``.
    """
    first = node.input[0] if node.input else ""
    if node.op_type in ("Shape", "Size") and first in extents:
        known: Extents = extents[first]
        if node.op_type == "Shape":
            attributes = attributes_of(node)
            known = known[attributes.get("start", 0) : attributes.get("end")]
        if None not in known:
            array = np.array(known, np.int64)
            return array if node.op_type == "Shape" else np.asarray(array.prod(dtype=np.int64))
        if node.op_type == "Shape":
            shapes_of[node.output[0]] = known
    elif first in shapes_of and all(name in constants for name in node.input[1:] if name):
        positions = np.arange(len(shapes_of[first]))
        if node.op_type == "Gather":
            positions = positions[constants.array(node.input[1])]
        elif node.op_type == "Slice" and len(node.input) >= 3:
            start, end = (int(constants.array(name)[0]) for name in node.input[1:3])
            step = int(constants.array(node.input[4])[0]) if len(node.input) > 4 else 1
            positions = positions[start:end:step]
        else:
            return None
        taken = [shapes_of[first][index] for index in positions.reshape(-1)]
        if None not in taken:
            return np.array(taken, np.int64).reshape(positions.shape)
    return None


def _gather(node: onnx.NodeProto, data: Array, indices: Array, value: Array) -> Array:
    """Return the value of a Gather as a view of its data if possible, else ``value``."""
    taken = take(data, indices, attributes_of(node).get("axis", 0))
    return value if taken is None else taken


def _evaluate(model: onnx.ModelProto, node: onnx.NodeProto, feeds: dict[str, Array]) -> list[Array] | None:
    """Return the outputs of a node, or None if it cannot or should not be folded."""
    if node.op_type == "ConstantOfShape" and np.prod(next(iter(feeds.values())), dtype=float) * 8 > MAX_FOLDED_BYTES:
        return None
    try:
        values: Sequence[Any] = evaluator(model, [node], feeds, node.output).run(None, feeds)
    except Exception:  # not supported by onnx's reference evaluator: the importer decides
        return None
    if not all(isinstance(value, np.ndarray | np.generic) for value in values):
        return None
    if sum(value.nbytes for value in values) > MAX_FOLDED_BYTES + sum(feed.nbytes for feed in feeds.values()):
        return None
    return [np.asarray(value) for value in values]
