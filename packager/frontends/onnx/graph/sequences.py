"""Replaces sequences by tensors: those whose elements are known one by one, and those of equal slices of a tensor.

ONNX operators SequenceConstruct, SequenceEmpty, SequenceInsert, SequenceErase, SequenceAt, SequenceLength (version 11),
SplitToSequence (24), ConcatFromSequence (11). A loop that only appends to an empty sequence gets a scan output instead:
lists of exporters that write loops as such (``torch.jit.script``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

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

# Since this version Split and Unsqueeze take sizes and axes as inputs.
BY_INPUTS = 13


@dataclass(frozen=True)
class _Listed:
    """A sequence of these tensors."""

    parts: tuple[str, ...]


@dataclass(frozen=True)
class _Slices:
    """A sequence of the slices of extent 1 of a tensor along an axis, which they have if it is ``kept``."""

    tensor: str
    axis: int
    kept: bool


_Known = dict[str, "_Listed | _Slices"]


def lower_sequences(model: onnx.ModelProto, inferred: Inferred, constants: Constants) -> bool:
    """Replace what reads sequences that are known, in loops and branches too; return whether there was any."""
    return _Lowering(model, inferred, constants).lower(model.graph, {})


class _Lowering:
    def __init__(self, model: onnx.ModelProto, inferred: Inferred, constants: Constants) -> None:
        self.inferred, self.constants = inferred, constants
        self.by_inputs = (standard_version(model) or 0) >= BY_INPUTS

    def lower(self, graph: onnx.GraphProto, known: _Known) -> bool:
        """Replace nodes of a graph; ``known`` are the sequences around it."""
        found, inner = dict(known), False

        def lowered(_index: int, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
            nonlocal inner
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    inner |= self.lower(attribute.g, found)
            if not is_standard(node):
                return None
            if (value := self._value(node, found)) is not None:
                found[node.output[0]] = value
            rule = _READERS.get(node.op_type)
            return None if rule is None else rule(self, node, found)

        return rewrite_nodes(graph, lowered) | inner

    def _number(self, name: str) -> int | None:
        return int(self.constants.array(name).reshape(-1)[0]) if name in self.constants else None

    def _value(self, node: onnx.NodeProto, found: _Known) -> _Listed | _Slices | None:
        """Return the sequence that a node makes, if it is known."""
        if node.op_type in ("SequenceConstruct", "SequenceEmpty"):
            return _Listed(tuple(node.input))
        attributes, first = attributes_of(node), found.get(node.input[0]) if node.input else None
        if node.op_type == "Identity":
            return first
        if node.op_type == "SplitToSequence":
            axis = attributes.get("axis", 0)
            if len(node.input) < 2 or not node.input[1]:
                return _Slices(node.input[0], axis, bool(attributes.get("keepdims", 1)))
            size = node.input[1]
            one = size in self.constants and self.constants.array(size).ndim == 0 and self._number(size) == 1
            return _Slices(node.input[0], axis, True) if one else None
        if not isinstance(first, _Listed) or node.op_type not in ("SequenceInsert", "SequenceErase"):
            return None
        parts, where = list(first.parts), node.input[2:3] if node.op_type == "SequenceInsert" else node.input[1:2]
        last = len(parts) if node.op_type == "SequenceInsert" else len(parts) - 1
        place = self._number(where[0]) if where and where[0] else last
        if place is None or not -len(parts) <= place <= last:
            return None
        if node.op_type == "SequenceInsert":
            parts.insert(place, node.input[1])
        else:
            del parts[place]
        return _Listed(tuple(parts))

    def split(self, node: onnx.NodeProto, found: _Known) -> list[onnx.NodeProto] | None:
        """Return a Split into constant parts, and their sequence."""
        if node.output[0] in found or node.input[1] not in self.constants:
            return None
        axis, given = attributes_of(node).get("axis", 0), self.constants.array(node.input[1])
        extents = self.inferred.extents.get(node.input[0])
        sizes = [int(size) for size in given.reshape(-1)]
        if given.ndim == 0:
            whole, step = None if extents is None else extents[axis], sizes[0]
            if whole is None or step < 1:
                return None
            sizes = [min(step, whole - begin) for begin in range(0, whole, step)]
        names = [f"{node.output[0]}.{number}" for number in range(len(sizes))]
        if not names:
            return None
        split = self._node(node, "Split", [node.input[0]], names, "split", sizes, axis=axis)
        return [split, helper.make_node("SequenceConstruct", names, node.output, node.name)]

    def at(self, node: onnx.NodeProto, found: _Known) -> list[onnx.NodeProto] | None:
        """Return the element of a sequence."""
        value = found.get(node.input[0])
        if isinstance(value, _Slices):
            output = f"{node.output[0]}.slice" if value.kept else node.output[0]
            taken = helper.make_node("Gather", [value.tensor, node.input[1]], [output], node.name, axis=value.axis)
            if not value.kept:
                return [taken]
            return [taken, self._node(node, "Unsqueeze", [output], node.output, "axes", [value.axis])]
        place = self._number(node.input[1])
        if value is None or place is None or not -len(value.parts) <= place < len(value.parts):
            return None
        return [helper.make_node("Identity", [value.parts[place]], node.output, node.name)]

    def length(self, node: onnx.NodeProto, found: _Known) -> list[onnx.NodeProto] | None:
        """Return the number of elements."""
        value = found.get(node.input[0])
        if value is None:
            return None
        if isinstance(value, _Listed):
            number = self._constant(node, f"length{len(value.parts)}", np.asarray(len(value.parts)))
            return [helper.make_node("Identity", [number], node.output, node.name)]
        shape, axis = f"{node.output[0]}.shape", self._constant(node, f"axis{value.axis}", np.asarray(value.axis))
        return [
            helper.make_node("Shape", [value.tensor], [shape], node.name),
            helper.make_node("Gather", [shape, axis], node.output, node.name, axis=0),
        ]

    def concat(self, node: onnx.NodeProto, found: _Known) -> list[onnx.NodeProto] | None:
        """Return the elements joined along an axis that they have, or along a new one."""
        value, attributes = found.get(node.input[0]), attributes_of(node)
        axis, new = attributes["axis"], bool(attributes.get("new_axis", 0))
        if isinstance(value, _Slices):
            return self._joined(node, value, axis, new)
        if value is None or not value.parts:
            return None
        parts, nodes = list(value.parts), []
        for number, part in enumerate(value.parts if new else ()):
            parts[number] = f"{node.output[0]}.{number}"
            nodes.append(self._node(node, "Unsqueeze", [part], [parts[number]], "axes", [axis]))
        return [*nodes, helper.make_node("Concat", parts, node.output, node.name, axis=axis)]

    def _joined(self, node: onnx.NodeProto, value: _Slices, axis: int, new: bool) -> list[onnx.NodeProto] | None:
        """Return slices joined: the tensor with their axis moved, and merged with the one to join along."""
        extents = self.inferred.extents.get(value.tensor)
        if extents is None:
            return None
        rank = len(extents)
        source = value.axis % rank
        others = [a for a in range(rank) if a != source]
        if value.kept:  # joined as they were split, or in ways that nobody writes
            same = not new and axis % rank == source
            return [helper.make_node("Identity", [value.tensor], node.output, node.name)] if same else None
        if new:
            order = [*others[: axis % rank], source, *others[axis % rank :]]
            return [helper.make_node("Transpose", [value.tensor], node.output, node.name, perm=order)]
        target = axis % (rank - 1)
        order = [*others[:target], source, *others[target:]]
        moved, before, after = (f"{node.output[0]}.{what}" for what in ("moved", "before", "after"))
        whole, shape = f"{node.output[0]}.whole", f"{node.output[0]}.shape"

        def bounds(name: str, begin: int, end: int) -> list[str]:
            return [
                self._constant(node, f"{name}.{begin}", np.asarray([begin], np.int64)),
                self._constant(node, f"{name}.{end}", np.asarray([end], np.int64)),
            ]

        rest = self._constant(node, "rest", np.asarray([-1], np.int64))
        return [
            helper.make_node("Transpose", [value.tensor], [moved], node.name, perm=order),
            helper.make_node("Shape", [moved], [whole], node.name),
            helper.make_node("Slice", [whole, *bounds("before", 0, target)], [before], node.name),
            helper.make_node("Slice", [whole, *bounds("after", target + 2, rank)], [after], node.name),
            helper.make_node("Concat", [before, rest, after], [shape], node.name, axis=0),
            helper.make_node("Reshape", [moved, shape], node.output, node.name),
        ]

    def _node(
        self, node: onnx.NodeProto, operator: str, inputs: list[str], outputs: Any, name: str, values: list[int],
        **attributes: Any,
    ) -> onnx.NodeProto:  # fmt: skip
        """Return a node with a list of integers as its last input, or as an attribute in early operator sets."""
        if self.by_inputs:
            inputs = [*inputs, self._constant(node, f"{name}{values}", np.asarray(values, np.int64))]
        else:
            attributes[name] = values
        return helper.make_node(operator, inputs, outputs, node.name, **attributes)

    def _constant(self, node: onnx.NodeProto, what: str, value: Any) -> str:
        name = f"{title_of(node)}.{node.output[0]}.{what}"
        if name not in self.constants:
            self.constants.add(name, value, None)
        return name


_READERS: dict[str, Callable[[_Lowering, onnx.NodeProto, _Known], list[onnx.NodeProto] | None]] = {
    "SplitToSequence": _Lowering.split,
    "SequenceAt": _Lowering.at,
    "SequenceLength": _Lowering.length,
    "ConcatFromSequence": _Lowering.concat,
}


def collect_sequences(graph: onnx.GraphProto) -> bool:
    """Give loops scan outputs in place of sequences that start empty and get one element in each iteration.

    Only for loops that are not unrolled: elements of a scan output have one shape. Returns whether there were any.
    """
    empty = {name for node in graph.node if is_standard(node, "SequenceEmpty") for name in node.output}

    def collected(_index: int, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        inner = [collect_sequences(attribute.g) for attribute in node.attribute if attribute.HasField("g")]
        made = [*_collected(node, empty)] if is_standard(node, "Loop") else []
        return [node, *made] if made or any(inner) else None

    return rewrite_nodes(graph, collected)


def _collected(node: onnx.NodeProto, empty: set[str]) -> Iterator[onnx.NodeProto]:
    body: onnx.GraphProto = next(attribute.g for attribute in node.attribute if attribute.name == "body")
    for place in reversed(range(len(node.input) - 2)):
        given, result = body.input[2 + place].name, body.output[1 + place].name
        appended = _appended(body, given, result)
        if node.input[2 + place] not in empty or appended is None:
            continue
        element = f"{result}.element"
        results = len(body.output) - 1
        body.node.append(helper.make_node("Identity", [appended.input[1]], [element], appended.name))
        body.node.remove(appended)
        for values in (body.input, body.output):
            index = 2 + place if values is body.input else 1 + place
            replace_all(values, [value for number, value in enumerate(values) if number != index])
        body.output.append(onnx.ValueInfoProto(name=element))
        old = node.output[place] if place < len(node.output) else ""
        outputs = [*node.output, *[""] * (results - len(node.output))]
        stacked = f"{old or element}.stacked"
        node.input[:] = [name for number, name in enumerate(node.input) if number != 2 + place]
        node.output[:] = [*(name for number, name in enumerate(outputs) if number != place), stacked]
        if old:
            yield helper.make_node("SplitToSequence", [stacked], [old], node.name, axis=0, keepdims=0)


def _appended(body: onnx.GraphProto, given: str, result: str) -> onnx.NodeProto | None:
    """Return the node that appends to a sequence, if nothing else reads it or the longer one."""
    readers = [part for part in body.node if given in all_inputs(part)]
    if len(readers) != 1 or not is_standard(readers[0], "SequenceInsert") or any(readers[0].input[2:]):
        return None
    (node,) = readers
    read = any(result in all_inputs(part) for part in body.node)
    return node if node.input[0] == given and node.output[0] == result and not read else None
