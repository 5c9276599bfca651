"""Prepares loops that a run ends: bodies are simplified like the graph, and Scan becomes Loop.

Values of a body get names of their own, so that the body can be imported into the graph. ONNX operators Loop (version
25) and Scan (9 to 25).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from packager.errors import ModelError
from packager.frontends.onnx.graph.expand_functions import renamed_node
from packager.frontends.onnx.graph.fold_constants import Constants
from packager.frontends.onnx.graph.infer_shapes import Inferred
from packager.frontends.onnx.graph.nodes import (
    all_inputs,
    attributes_of,
    is_standard,
    replace_all,
    rewrite_nodes,
    standard_version,
    title_of,
)

Simplify = Callable[[onnx.ModelProto, dict[str, Any]], tuple[Inferred, Constants]]
MARK = "packager.prepared"
# Before operator set 9 Scan runs over batches.
FIRST_SCAN = 9


def prepare_loops(model: onnx.ModelProto, inferred: Inferred, constants: Constants, simplify: Simplify) -> bool:
    """Prepare each Loop and Scan that is left in place; return whether there were any that were not yet."""

    def prepared(index: int, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        if node.op_type == "Scan" and (standard_version(model) or FIRST_SCAN) < FIRST_SCAN:
            return None
        if not is_standard(node, "Loop", "Scan") or any(entry.key == MARK for entry in node.metadata_props):
            return None
        nodes = [*_as_loop(node, inferred, constants)] if node.op_type == "Scan" else [node]
        for loop in nodes:
            if loop.op_type == "Loop":
                _prepare(model, loop, f"{title_of(loop)}.{index}:", inferred, constants, simplify)
                loop.metadata_props.add(key=MARK, value="1")
        return nodes

    return rewrite_nodes(model.graph, prepared)


def _prepare(
    model: onnx.ModelProto,
    node: onnx.NodeProto,
    prefix: str,
    inferred: Inferred,
    constants: Constants,
    simplify: Simplify,
) -> None:
    body: onnx.GraphProto = next(attribute.g for attribute in node.attribute if attribute.name == "body")
    _name_apart(body, prefix)
    _declare_inputs(node, body, inferred)
    inner = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    inner.graph.CopyFrom(body)
    own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    own |= {name for part in body.node for name in part.output}
    captured = dict.fromkeys(
        name
        for name in (*(name for part in body.node for name in all_inputs(part)), *(value.name for value in body.output))
        if name and name not in own
    )
    arrays = {}
    for name in captured:
        if name in constants:
            arrays[name] = constants.array(name)
            inner.graph.initializer.append(constants.tensors[name])
        else:
            proto = inferred.protos.get(name)
            inner.graph.input.append(
                onnx.ValueInfoProto(name=name) if proto is None else onnx.ValueInfoProto(name=name, type=proto)
            )
    types, found = simplify(inner, arrays)
    for name, proto in types.protos.items():
        if name not in captured and name not in constants:
            model.graph.value_info.append(onnx.ValueInfoProto(name=name, type=proto))
    for tensor in inner.graph.initializer:
        if tensor.name not in constants:
            constants.add(tensor.name, found.array(tensor.name), None)
    replace_all(inner.graph.input, [value for value in inner.graph.input if value.name not in captured])
    del inner.graph.initializer[:]
    body.CopyFrom(inner.graph)


def _name_apart(body: onnx.GraphProto, prefix: str) -> None:
    """Prefix the names of all values of a body."""
    own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    own |= {name for part in body.node for name in part.output if name}

    def rename(name: str) -> str:
        return prefix + name if name in own else name

    for value in (*body.input, *body.output, *body.value_info, *body.initializer):
        value.name = rename(value.name)
    named = [renamed_node(part, rename, None, None) for part in body.node]
    for number, part in enumerate(named):
        part.name = f"{prefix}{number}.{part.name}"
    replace_all(body.node, named)


def _declare_inputs(node: onnx.NodeProto, body: onnx.GraphProto, inferred: Inferred) -> None:
    """Declare the types of a body's inputs where the file does not."""
    kinds = [TensorProto.INT64, TensorProto.BOOL, *(inferred.types.get(name, 0) for name in node.input[2:])]
    for place, (value, kind) in enumerate(zip(body.input, kinds, strict=False)):
        if not value.type.tensor_type.elem_type and kind:
            value.type.tensor_type.elem_type = kind
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_value") and dim.dim_value == 0:
                dim.Clear()  # exporters write the shape that a state starts with
        if place < 2:
            value.type.tensor_type.shape.Clear()
            value.type.tensor_type.shape.SetInParent()


def _as_loop(node: onnx.NodeProto, inferred: Inferred, constants: Constants) -> Iterator[onnx.NodeProto]:
    """Yield a Loop over the slices of a Scan's inputs, and what its scan outputs need before and after."""
    attributes = attributes_of(node)
    body: onnx.GraphProto = attributes["body"]
    scanned = attributes["num_scan_inputs"]
    states, inputs = list(node.input[: len(node.input) - scanned]), list(node.input[len(node.input) - scanned :])
    axes = attributes.get("scan_input_axes", [0] * scanned)
    backwards = attributes.get("scan_input_directions", [0] * scanned)
    outputs = len(body.output) - len(states)
    directions = attributes.get("scan_output_directions", [0] * outputs)
    out_axes = attributes.get("scan_output_axes", [0] * outputs)
    title = title_of(node)

    def constant(name: str, value: Any) -> str:
        full = f"{title}.{name}"
        if full not in constants:
            constants.add(full, np.asarray(value, np.int64), None)
        return full

    shape, trip = f"{title}.shape", f"{title}.trip"
    yield helper.make_node("Shape", inputs[:1], [shape], name=title)
    yield helper.make_node("Gather", [shape, constant("axis", axes[0])], [trip], name=title, axis=0)
    inner = onnx.GraphProto(name=body.name, initializer=body.initializer, value_info=body.value_info)
    number, flag = f"{title}.number", f"{title}.flag"
    inner.input.append(helper.make_tensor_value_info(number, TensorProto.INT64, []))
    inner.input.append(helper.make_tensor_value_info(flag, TensorProto.BOOL, []))
    inner.input.extend(body.input[: len(states)])
    for value, name, axis, reverse in zip(body.input[len(states) :], inputs, axes, backwards, strict=True):
        index = number
        if reverse:
            last, index = f"{value.name}.last", f"{value.name}.index"
            inner.node.append(helper.make_node("Sub", [trip, constant("one", 1)], [last]))
            inner.node.append(helper.make_node("Sub", [last, number], [index]))
        inner.node.append(helper.make_node("Gather", [name, index], [value.name], axis=axis))
    inner.node.extend(body.node)
    again = f"{title}.again"
    inner.node.append(helper.make_node("Identity", [flag], [again]))
    inner.output.append(helper.make_tensor_value_info(again, TensorProto.BOOL, []))
    inner.output.extend(body.output)
    collected = [f"{name}.collected" if name else "" for name in node.output[len(states) :]]
    results = [*node.output[: len(states)], *collected]
    yield helper.make_node("Loop", [trip, "", *states], results, name=title, body=inner)
    for room, name, axis, reverse in zip(collected, node.output[len(states) :], out_axes, directions, strict=False):
        rank = len(inferred.extents.get(name, ()))
        if axis and not rank:
            raise ModelError(f"node {title!r} of operator Scan: the rank of {name!r} is unknown")
        yield from _placed(room, name, axis, reverse, rank, title, trip, constant)


def _placed(
    room: str, name: str, axis: int, reverse: int, rank: int, title: str, trip: str, constant: Callable[[str, Any], str]
) -> Iterator[onnx.NodeProto]:
    """Yield the nodes that bring a scan output into its order and axis."""
    if not name:
        return
    if reverse:
        turned, order, rising, last = f"{room}.turned", f"{room}.order", f"{room}.rising", f"{room}.last"
        bounds = [constant("zero", 0), trip, constant("one", 1)]
        yield helper.make_node("Range", bounds, [rising], name=title)
        yield helper.make_node("Sub", [trip, constant("one", 1)], [last], name=title)
        yield helper.make_node("Sub", [last, rising], [order], name=title)
        yield helper.make_node("Gather", [room, order], [turned], name=title, axis=0)
        room = turned
    if not axis:
        yield helper.make_node("Identity", [room], [name], name=title)
        return
    axis %= rank
    order_of_axes = [*range(1, axis + 1), 0, *range(axis + 1, rank)]
    yield helper.make_node("Transpose", [room], [name], name=title, perm=order_of_axes)
