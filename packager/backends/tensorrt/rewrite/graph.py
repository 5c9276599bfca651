"""A graph that is being rewritten: its nodes, the types and shapes of its values, and the forms of its constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from packager.bundle.arrays import Array
from packager.bundle.gpu.engine_graphs import Form, Step
from packager.emit.graph_writer import nodes_for
from packager.emit.onnx import WrittenModel

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16


@dataclass
class Graph:
    """Nodes in order; ``types`` and ``shapes`` of all values that are known, constants included.

    ``forms`` are constants that are made of others, ``arrays`` those that are not.
    """

    nodes: list[onnx.NodeProto]
    arrays: dict[str, Array]
    outputs: tuple[str, ...]
    types: dict[str, int]
    shapes: dict[str, tuple[Any, ...]]
    forms: dict[str, Form] = field(default_factory=dict)

    def is_constant(self, name: str) -> bool:
        """Whether a value is a constant, of any form."""
        return name in self.arrays or name in self.forms

    def producers(self) -> dict[str, onnx.NodeProto]:
        """Return the node that each value is from."""
        return {name: node for node in self.nodes for name in node.output}

    def formed(self, name: str, *steps: Step) -> str:
        """Return the constant that is made of another one by these steps."""
        source = self.forms.get(name, Form(name, ()))
        form = Form(source.source, (*source.steps, *steps))
        made = next((known for known, other in self.forms.items() if other == form), None)
        if made is None:
            made = self.unused(f"{form.source}.form")
            self.forms[made] = form
            array = self.arrays[form.source]
            self.shapes[made] = form.apply(np.broadcast_to(np.zeros((), array.dtype), array.shape)).shape
            casts = any(step[0] == "cast" for step in steps)
            self.types[made] = HALF if casts else self.types[name]
        return made

    def value(self, name: str) -> Array:
        """Return a constant's value."""
        form = self.forms.get(name)
        return form.apply(self.arrays[form.source]) if form else self.arrays[name]

    def readers(self) -> dict[str, list[onnx.NodeProto]]:
        """Return the nodes that read each value."""
        found: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.input):
                found.setdefault(name, []).append(node)
        return found

    def prune(self) -> None:
        """Remove nodes that nothing reads."""
        self.nodes = nodes_for(self.nodes, self.outputs)

    def array(self, array: Array) -> str:
        """Return the name of a new constant."""
        name = self.unused("constant")
        self.arrays[name], self.shapes[name] = array, array.shape
        self.types[name] = helper.np_dtype_to_tensor_dtype(array.dtype)
        return name

    def unused(self, name: str) -> str:
        """Return a name that no value has."""
        number = 0
        while f"{name}{number or ''}" in self.types:
            number += 1
        return f"{name}{number or ''}"

    def recomputed(self, name: str, type_: int, shape: Sequence[Any] | None) -> str:
        """Return the name of a value that takes the place of another: its own, but for an output's."""
        made = self.unused(f"{name}.rewritten") if name in self.outputs else name
        self.types[made] = type_
        self.shapes.pop(made, None)
        if shape is not None:
            self.shapes[made] = tuple(shape)
        return made


def read_graph(written: WrittenModel) -> Graph | None:
    """Return the graph of a model; None if a node has graphs inside, or onnx cannot say what types values have."""
    graph = written.proto.graph
    if any(
        attribute.type in (attribute.GRAPH, attribute.GRAPHS) for node in graph.node for attribute in node.attribute
    ):
        return None
    known = onnx.ModelProto()
    known.CopyFrom(written.proto)
    for name, array in written.arrays.items():
        if array.dtype == np.int64:  # extents and axes, which shapes depend on
            known.graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
            continue
        kind = TensorProto.BFLOAT16 if array.dtype == np.uint16 else helper.np_dtype_to_tensor_dtype(array.dtype)
        known.graph.input.append(helper.make_tensor_value_info(name, kind, array.shape))
    try:
        inferred = onnx.shape_inference.infer_shapes(known, data_prop=True).graph
    except onnx.shape_inference.InferenceError:
        return None
    types = {name: TensorProto.INT64 for name, array in written.arrays.items() if array.dtype == np.int64}
    shapes: dict[str, tuple[Any, ...]] = {name: written.arrays[name].shape for name in types}
    for info in (*inferred.input, *inferred.value_info, *inferred.output):
        tensor = info.type.tensor_type
        types[info.name] = tensor.elem_type
        if tensor.HasField("shape"):
            shapes[info.name] = tuple(dim.dim_param or dim.dim_value for dim in tensor.shape.dim)
    if any(name not in types for node in graph.node for name in node.output if name):
        return None
    return Graph(list(graph.node), dict(written.arrays), tuple(one.name for one in graph.output), types, shapes)


def write_graph(graph: Graph, written: WrittenModel) -> tuple[WrittenModel, dict[str, Form]]:
    """Return the model of a rewritten graph, and the forms of constants that the source model gave.

    Forms of others are arrays of the model. What nothing reads is left out.
    """
    graph.prune()
    needed = {name for node in graph.nodes for name in node.input}
    proto = onnx.ModelProto()
    proto.CopyFrom(written.proto)
    del proto.graph.node[:], proto.graph.value_info[:]
    proto.graph.node.extend(graph.nodes)
    forms = {name: form for name, form in graph.forms.items() if name in needed}
    kept = {name: form for name, form in forms.items() if form.source in written.constants}
    arrays = {name: array for name, array in graph.arrays.items() if name in needed}
    arrays |= {form.source: graph.arrays[form.source] for form in kept.values()}
    arrays |= {name: form.apply(graph.arrays[form.source]) for name, form in forms.items() if name not in kept}
    constants = tuple(name for name in written.constants if name in arrays)
    return replace(written, proto=proto, arrays=arrays, constants=constants), kept
