"""Store tensors of narrow element types (4-bit integers, 4- and 8-bit floats) as bytes.

``store_narrow`` rewrites a graph so that only data movement operators use the bytes. ``NarrowDecode`` converts them to
float32, int8 or uint8, ``NarrowEncode`` back. float8_e4m3fn stays a type, since Relax has it and backends multiply it.

ONNX operators Cast (version 25), QuantizeLinear (25), DequantizeLinear (25).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from packager.bundle.dtypes import NARROW
from packager.errors import ModelError
from packager.frontends.onnx.graph.fold_constants import Constants
from packager.frontends.onnx.graph.nodes import NodeWriter, all_inputs, inner_graphs, is_standard, replace_all, title_of
from packager.graph.narrow_types import INTEGERS, NATIVE, widened

ELEMENT_TYPES = {
    name: TensorProto.DataType.Value(spelled.upper())
    for name in NARROW
    for spelled in [{"float8_e8m0fnu": "float8e8m0", "float4_e2m1fn": "float4e2m1"}.get(name, name.replace("_", ""))]
}
NAMES = {number: name for name, number in ELEMENT_TYPES.items()}
# Data movement operators, with the indices of further inputs of which they move elements.
MOVEMENT: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("Identity", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split"), (0,)),
    **dict.fromkeys(("Gather", "GatherND", "GatherElements", "Expand", "Tile"), (0,)),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth", "ReverseSequence"), (0,)),
    **dict.fromkeys(("Shape", "Size"), (0,)),
    **dict.fromkeys(("Pad", "ScatterND", "ScatterElements"), (0, 2)),
    "Where": (1, 2),
}
_EIGHT_BITS = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "float32": TensorProto.FLOAT}
_HALF_OR_SINGLE = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def store_narrow(graph: onnx.GraphProto, types: Mapping[str, int], constants: Constants) -> dict[str, str]:
    """Rewrite a graph in place to store narrow tensors as bytes; return the types of its narrow inputs and outputs.

    ``types`` are the known element types of values. Raises ModelError for nodes other than casts, quantization and data
    movement that use narrow tensors.
    """
    return _Rewriter(graph, types, constants).rewrite()


class _Rewriter(NodeWriter):
    def __init__(self, graph: onnx.GraphProto, types: Mapping[str, int], constants: Constants) -> None:
        super().__init__(graph)
        self.graph = graph
        self.types = types
        self.constants = constants
        self.narrow: dict[str, str] = {}  # narrow values, now bytes or NATIVE, and their types

    def rewrite(self) -> dict[str, str]:
        """Rewrite the graph."""
        for value in self.graph.input:
            self._note(value.name, NAMES.get(value.type.tensor_type.elem_type))
        for tensor in self.graph.initializer:
            self._note(tensor.name, NAMES.get(tensor.data_type))
        for node in self.graph.node:
            if is_standard(node):
                self._rewrite_node(node)
            else:
                self._keep(node)
        ends = {value.name for value in (*self.graph.input, *self.graph.output)}
        changed = {name: dtype for name, dtype in self.narrow.items() if dtype != NATIVE}
        for value in (*self.graph.input, *self.graph.output):
            if value.name in changed:
                value.type.tensor_type.elem_type = TensorProto.UINT8
        for tensor in self.graph.initializer:
            if tensor.name in changed:
                array = self.constants.array(tensor.name).view(np.uint8)
                self.constants.arrays[tensor.name] = array
                tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(array, order="C"), tensor.name))
        replace_all(self.graph.node, self.nodes)
        used = {name for node in self.nodes for name in node.input} | ends
        kept = [tensor for tensor in self.graph.initializer if tensor.name in used or tensor.name not in self.narrow]
        replace_all(self.graph.initializer, kept)
        return {name: dtype for name, dtype in changed.items() if name in ends}

    def _note(self, name: str, dtype: str | None) -> None:
        if dtype is not None and name:
            self.narrow[name] = dtype

    def _rewrite_node(self, node: onnx.NodeProto) -> None:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        operator = node.op_type
        if operator == "Cast":
            self._cast(node, NAMES.get(attributes["to"].i), attributes)
        elif operator == "QuantizeLinear":
            self._quantize(node, attributes)
        elif operator == "DequantizeLinear" and node.input[0] in self.narrow:
            self._dequantize(node, attributes)
        elif operator in ("IsNaN", "IsInf") and node.input[0] in self.narrow:
            node.input[0] = self._decoded(node, node.input[0])
            self.nodes.append(node)
        elif operator == "Constant" and "value" in attributes and attributes["value"].t.data_type in NAMES:
            tensor = attributes["value"].t
            self._note(node.output[0], NAMES[tensor.data_type])
            if tensor.data_type != ELEMENT_TYPES[NATIVE]:
                array = onnx.numpy_helper.to_array(tensor).view(np.uint8)
                tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(array, order="C"), tensor.name))
            self.nodes.append(node)
        else:
            self._move(node, attributes)

    def _move(self, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> None:
        moved = MOVEMENT.get(node.op_type, tuple(range(len(node.input))) if node.op_type == "Concat" else ())
        found = {self.narrow[node.input[index]] for index in moved if self._is_narrow(node, index)}
        if not found or "reduction" in attributes:
            self._keep(node)
            return
        if node.op_type not in ("Shape", "Size"):
            for name in node.output:
                self._note(name, next(iter(found)))
        self.nodes.append(node)

    def _is_narrow(self, node: onnx.NodeProto, index: int) -> bool:
        return index < len(node.input) and node.input[index] in self.narrow

    def _keep(self, node: onnx.NodeProto) -> None:
        """Keep a node. Raises ModelError if it reads or writes narrow tensors."""
        found = [self.narrow[name] for name in all_inputs(node) if name in self.narrow]
        found += [NAMES[number] for number in _inner_types(node) if number in NAMES]
        if found:
            raise ModelError(
                f"node {title_of(node)!r} of operator {node.op_type} computes with {found[0]}",
                hint="narrow types support only data movement, casts, quantization and dequantization: insert a Cast",
            )
        self.nodes.append(node)

    def _decoded(self, node: onnx.NodeProto, name: str, output: str | None = None) -> str:
        """Return a narrow value decoded to the type ``widened``; a constant is folded if that type has 8 bits."""
        dtype = self.narrow[name]
        if output is None and dtype in INTEGERS and name in self.constants:
            wide = f"{name}.{widened(dtype)}"
            if wide not in self.constants:
                array = onnx.numpy_helper.to_array(self.constants.tensors[name])
                self.constants.add(wide, array.astype(widened(dtype)), [name])
            return wide
        return self.emit(node, "NarrowDecode", [name], output or self.fresh(f"{name}.wide"), type=dtype)

    def _cast(self, node: onnx.NodeProto, target: str | None, attributes: Mapping[str, Any]) -> None:
        value, result = node.input[0], node.output[0]
        source = self.narrow.get(value)
        if source is None and target is None:
            self.nodes.append(node)
            return
        self._note(result, target)
        if source == target:
            self.emit(node, "Identity", [value], result)
            return
        if source == NATIVE and target is None and attributes["to"].i in _HALF_OR_SINGLE:
            self.nodes.append(node)  # a Relax cast, which backends match
            return
        given = self.types.get(value, 0)
        if source is not None:
            if target is None and attributes["to"].i == _EIGHT_BITS[widened(source)]:
                self._decoded(node, value, result)
                return
            value, given = self._decoded(node, value), _EIGHT_BITS[widened(source)]
        if target is None:
            self.emit(node, "Cast", [value], result, to=attributes["to"].i)
            return
        if given in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
            value = self.emit(node, "Cast", [value], self.fresh(f"{value}.wide"), to=TensorProto.FLOAT)
        saturate = attributes["saturate"].i if "saturate" in attributes else 1
        rounding = attributes["round_mode"].s.decode() if "round_mode" in attributes else "up"
        saturate = int(saturate and target not in INTEGERS)  # integers wrap around
        self.emit(node, "NarrowEncode", [value], result, type=target, saturate=saturate, round_mode=rounding)

    def _quantize(self, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> None:
        zero = node.input[2] if len(node.input) > 2 else ""
        asked = attributes["output_dtype"].i if "output_dtype" in attributes else 0
        target = self.narrow.get(zero) if zero else NAMES.get(asked)
        if target is None:
            self._keep(node)
            return
        self._note(node.output[0], target)
        kept = {name: attributes[name].i for name in ("axis", "block_size") if name in attributes}
        saturate = attributes["saturate"].i if "saturate" in attributes else 1
        if attributes.get("precision") is not None and attributes["precision"].i:
            raise ModelError(
                f"node {title_of(node)!r} of operator QuantizeLinear has the attribute precision",
                hint="it is not supported for narrow types",
            )
        if target == NATIVE and saturate and not kept.get("block_size"):
            self.nodes.append(node)
            return
        value = self.fresh(f"{node.output[0]}.wide")
        if target in INTEGERS:
            inputs = [*node.input[:2], *([self._decoded(node, zero)] if zero else [])]
            self.emit(node, "QuantizeLinear", inputs, value, output_dtype=_EIGHT_BITS[widened(target)], **kept)
            saturate = 1
        else:
            self.emit(node, "NarrowScale", node.input[:2], value, kind="divide", **kept)
            if zero and target == "float4_e2m1fn":  # other float zero points are 0
                origin = self._decoded(node, zero)
                value = self.emit(
                    node, "NarrowScale", [value, origin], self.fresh(f"{value}.moved"), kind="add", **kept
                )
        self.emit(node, "NarrowEncode", [value], node.output[0], type=target, saturate=saturate, round_mode="up")

    def _dequantize(self, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> None:
        source = self.narrow[node.input[0]]
        kept = {name: attributes[name].i for name in ("axis", "block_size") if name in attributes}
        if "output_dtype" in attributes and attributes["output_dtype"].i not in (0, self.types.get(node.input[1])):
            raise ModelError(
                f"node {title_of(node)!r} of operator DequantizeLinear changes the type of its scale",
                hint="cast the result instead",
            )
        if source == NATIVE and not kept.get("block_size"):
            self.nodes.append(node)
        elif source in INTEGERS:
            values = [self._decoded(node, node.input[0]), node.input[1]]
            if len(node.input) > 2 and node.input[2]:
                values.append(self._decoded(node, node.input[2]))
            self.emit(node, "DequantizeLinear", values, node.output[0], **kept)
        else:
            value = self._decoded(node, node.input[0])
            self.emit(node, "NarrowScale", [value, node.input[1]], node.output[0], kind="multiply", **kept)


def _inner_types(node: onnx.NodeProto) -> Iterator[int]:
    """Yield the element types named by the attributes of a node and its subgraphs."""
    graphs = list(inner_graphs(node))
    for part in (node, *(part for graph in graphs for part in graph.node)):
        for attribute in part.attribute:
            if attribute.HasField("t"):
                yield attribute.t.data_type
            if attribute.name in ("to", "output_dtype", "dtype") and attribute.type == onnx.AttributeProto.INT:
                yield attribute.i
    yield from (tensor.data_type for graph in graphs for tensor in graph.initializer)
