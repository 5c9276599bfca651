"""Counts of results that have as many elements as the data say: where they come from, and which nodes pass them on.

An operator of ``SIZED`` gives what has room for the most that there can be, and how much of it counts. Other nodes take
such values as far as ``onnx_carry`` says; sums, maxima and the like along the axis take them with what does not count
filled by what changes nothing. An output of the model that has a count is zero beyond it, and gets an output for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from packager.custom_ops.domains import STANDARD_DOMAINS
from packager.errors import ModelError
from packager.frontends.onnx.graph.bounded_size_rules import CannotCarryError, Operands, Sized, carried
from packager.frontends.onnx.graph.fold_constants import Constants
from packager.frontends.onnx.graph.infer_shapes import Inferred

# Operator -> how many outputs it has, and which of them have a size that depends on data.
SIZED: Mapping[str, tuple[int, tuple[int, ...]]] = {
    "NonZero": (1, (0,)),
    "Compress": (1, (0,)),
    "NonMaxSuppression": (1, (0,)),
    "Unique": (4, (0, 1, 3)),
}
COUNT = ".count"
# Reductions, and what may stand beyond the count in what they take.
FILLS = {
    **dict.fromkeys(("ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2"), "zero"),
    "ReduceProd": "one",
    **dict.fromkeys(("ReduceMax", "ArgMax"), "lowest"),
    **dict.fromkeys(("ReduceMin", "ArgMin"), "highest"),
}
MEANS = ("ReduceMean", "ReduceLogSum", "ReduceLogSumExp")


def add_counts(graph: onnx.GraphProto, inferred: Inferred, constants: Constants) -> None:
    """Rewrite a graph in place so that all counts are computed. Raises ModelError for nodes that cannot pass one on."""
    if any(node.op_type in SIZED and node.domain in STANDARD_DOMAINS for node in graph.node):
        _Counter(graph, inferred, constants).rewrite()


class _Counter:
    def __init__(self, graph: onnx.GraphProto, inferred: Inferred, constants: Constants) -> None:
        self.graph, self.inferred, self.constants = graph, inferred, constants
        self.outputs = {value.name: value for value in graph.output}
        self.taken = {name for node in graph.node for name in (*node.input, *node.output)} | constants.tensors.keys()
        self.used = {name for node in graph.node for name in node.input} | self.outputs.keys()
        self.sized: dict[str, Sized] = {}
        self.nodes: list[onnx.NodeProto] = []

    def rewrite(self) -> None:
        """Rewrite the graph."""
        for node in self.graph.node:
            standard = node.domain in STANDARD_DOMAINS
            try:
                if standard and node.op_type in SIZED:
                    self._count(node)
                elif any(name in self.sized for name in (*node.input, *_inner_inputs(node))):
                    self._carry(node, standard)
                else:
                    self.nodes.append(node)
            except CannotCarryError as why:
                value = next(name for name in (*node.input, *_inner_inputs(node)) if name in self.sized)
                raise ModelError(
                    f"node {node.name or node.output[0]!r} of operator {node.op_type} takes {value!r}, whose size "
                    f"depends on data: {why}",
                    hint="cut the model there: such a value may be an output",
                ) from None
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)

    def _emit(
        self, like: onnx.NodeProto, operator: str, inputs: Sequence[str], output: str, **attributes: int | str
    ) -> str:
        name = like.name or next(filter(None, like.output), "")
        self.nodes.append(helper.make_node(operator, inputs, [output], name=name, **attributes))
        return output

    def _fresh(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def _filled(self, node: onnx.NodeProto, place: int, fill: str) -> str:
        """Return an input of a node with what is beyond its count filled."""
        name = str(node.input[place])
        sized = self.sized.get(name)
        if sized is None:
            return name
        output = self._fresh(f"{name}.filled")
        self._emit(node, "FillBeyond", [name, sized.count], output, axis=sized.axis, fill=fill)
        return output

    def _count(self, node: onnx.NodeProto) -> None:
        """Give a node of SIZED all outputs of its operator, followed by one count for each that has a size."""
        given = self._operands(node)
        if node.op_type == "NonZero" and given.sized[0] is not None:
            node.input[0] = self._filled(node, 0, "zero")
        elif node.op_type == "Compress" and any(given.sized):
            self._filter(node, given)
        elif any(given.sized):
            raise CannotCarryError("it needs all of its input")
        number, sized = SIZED[node.op_type]
        names = [*node.output, *[""] * (number - len(node.output))]
        wanted = [names[position] for position in sized if names[position]]
        counts = [self._count_name(names[position], node) if names[position] else "" for position in sized]
        self.nodes.append(node)
        for name in wanted:
            axis = 0
            if node.op_type == "NonZero":
                axis = 1
            elif node.op_type in ("Compress", "Unique") and name == names[0] and "axis" in given.attributes:
                axis = given.axis("axis", 0, given.rank(0))
            self.sized[name] = Sized(axis, next(filter(None, counts)))
            if name in self.outputs:
                self._add_output(name, counts[[names[position] for position in sized].index(name)])
        node.output[:] = [*names, *counts]

    def _count_name(self, name: str, node: onnx.NodeProto) -> str:
        """Return the name of a value's count, which is an output's name if the value is one."""
        if name in self.outputs and f"{name}{COUNT}" in self.taken:
            raise ModelError(
                f"the model has a value {f'{name}{COUNT}'!r}, which is the name of a count of {node.op_type}"
            )
        return self._fresh(f"{name}{COUNT}")

    def _add_output(self, name: str, count: str) -> None:
        self.outputs[name].type.tensor_type.ClearField("shape")
        self.graph.output.append(helper.make_tensor_value_info(count, onnx.TensorProto.INT64, []))

    def _filter(self, node: onnx.NodeProto, given: Operands) -> None:
        """Compress of data with a count, by a condition with the same: what is beyond it does not fulfil it."""
        data, condition = given.sized
        axis = given.axis("axis", 0, given.rank(0)) if "axis" in given.attributes else None
        if condition is None or data is None or axis != data.axis or data.count != condition.count:
            flat = axis is None and data is not None and given.rank(0) == 1
            if not flat or condition is None or data is None or data.count != condition.count:
                raise CannotCarryError("its data and its condition have different sizes")
        node.input[1] = self._filled(node, 1, "zero")

    def _operands(self, node: onnx.NodeProto) -> Operands:
        return Operands(node, self.sized, self.inferred, self.constants)

    def _carry(self, node: onnx.NodeProto, standard: bool) -> None:
        given = self._operands(node)
        if not standard or not any(given.sized):
            raise CannotCarryError("it is not known to keep the axis")
        if node.op_type == "Shape":
            self._shape(node, given)
            return
        if node.op_type == "Slice":
            sized: Sized | None = self._cut(node, given)
        else:
            sized = self._reduce(node, given) if node.op_type in (*FILLS, *MEANS) else carried(given)
        if sized is None:
            self.nodes.append(node)
            return
        given_out = {}
        for place, name in enumerate(node.output):
            self.sized[name] = sized
            if name in self.outputs:
                node.output[place] = given_out[name] = self._fresh(f"{name}.room")
        self.nodes.append(node)
        for name, inner in given_out.items():
            self._give(node, inner, name, sized)

    def _give(self, node: onnx.NodeProto, inner: str, outer: str, sized: Sized) -> None:
        self._emit(node, "FillBeyond", [inner, sized.count], outer, axis=sized.axis, fill="zero")
        count = self._emit(node, "Identity", [sized.count], self._count_name(outer, node))
        self._add_output(outer, count)

    def _shape(self, node: onnx.NodeProto, given: Operands) -> None:
        """Write Shape as its extents, of which one is the count."""
        sized, extents = given.one(), given.extents(0)
        start, end = given.attributes.get("start", 0), given.attributes.get("end")
        wanted = list(range(len(extents)))[start:end]
        if not wanted or any(extents[axis] is None for axis in wanted if axis != sized.axis):
            raise CannotCarryError("extents of its input are not known")
        parts = []
        one = self._fresh(f"{node.output[0]}.one")
        self.constants.add(one, np.array([1], np.int64), None)
        for axis in wanted:
            part = self._fresh(f"{node.output[0]}.{axis}")
            if axis == sized.axis:
                self._emit(node, "Reshape", [sized.count, one], part)
            else:
                self.constants.add(part, np.array([extents[axis]], np.int64), None)
            parts.append(part)
        self._emit(node, "Concat", parts, node.output[0], axis=0)

    def _cut(self, node: onnx.NodeProto, given: Operands) -> Sized:
        """Return where a slice's result has a count: the first n slices are at most n of those that count."""
        sized, rank = given.one(), given.rank(0)
        starts, ends = given.integers(1, "starts"), given.integers(2, "ends")
        axes = given.integers(3, "axes", range(len(starts)))
        steps = given.integers(4, "steps", [1] * len(starts))
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            if axis % rank != sized.axis:
                continue
            if (start, step) != (0, 1) or end < 0:
                raise CannotCarryError("it cuts the axis elsewhere than at its end")
            most = self._fresh(f"{node.output[0]}.most")
            self.constants.add(most, np.array(end, np.int64), None)
            count = self._emit(node, "Min", [sized.count, most], self._fresh(f"{node.output[0]}.size"))
            return Sized(sized.axis, count)
        return sized

    def _reduce(self, node: onnx.NodeProto, given: Operands) -> Sized | None:
        """Return where a reduction's result has the count; None if it reduces that axis, whose input is then filled."""
        sized, rank = given.one(), given.rank(0)
        if node.op_type.startswith("Arg"):
            axes = [given.axis("axis", 0, rank)]
        else:
            named = given.integers(1, "axes", ())
            if not named and given.attributes.get("noop_with_empty_axes", 0):
                return sized
            axes = [axis % rank for axis in named] or list(range(rank))
        if sized.axis not in axes:
            dropped = 0 if given.attributes.get("keepdims", 1) else sum(axis < sized.axis for axis in axes)
            return Sized(sized.axis - dropped, sized.count)
        fill = FILLS.get(node.op_type)
        if fill is None or given.attributes.get("select_last_index", 0):
            raise CannotCarryError("it works along the axis")
        node.input[0] = self._filled(node, 0, fill)
        return None


def _inner_inputs(node: onnx.NodeProto) -> Iterator[str]:
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            for part in graph.node:
                yield from part.input
                yield from _inner_inputs(part)
