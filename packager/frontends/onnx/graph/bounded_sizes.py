"""Tracks outputs whose size depends on data: which nodes produce them, and how the valid count propagates.

Operators in ``DATA_DEPENDENT`` return tensors allocated at their upper bound, and valid counts. Other nodes propagate
the bounded axis by ``bounded_size_rules``; reductions along it get an input whose undefined part is filled with the
identity of the reduction. A bounded output of the model is zero beyond its count, which becomes an output too.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper

from packager.errors import ModelError
from packager.frontends.onnx.graph.bounded_size_rules import BoundedAxis, CannotPropagateError, Operands, propagated
from packager.frontends.onnx.graph.fold_constants import Constants
from packager.frontends.onnx.graph.infer_shapes import Inferred
from packager.frontends.onnx.graph.nodes import NodeWriter, all_inputs, is_standard, replace_all, title_of

# Operator -> its number of outputs, and the indices of those whose size depends on data.
DATA_DEPENDENT: Mapping[str, tuple[int, tuple[int, ...]]] = {
    "NonZero": (1, (0,)),
    "Compress": (1, (0,)),
    "NonMaxSuppression": (1, (0,)),
    "Unique": (4, (0, 1, 3)),
}
COUNT = ".count"
# Reductions, and the fill of their undefined input elements.
FILLS = {
    **dict.fromkeys(("ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2"), "zero"),
    "ReduceProd": "one",
    **dict.fromkeys(("ReduceMax", "ArgMax"), "lowest"),
    **dict.fromkeys(("ReduceMin", "ArgMin"), "highest"),
}
MEANS = ("ReduceMean", "ReduceLogSum", "ReduceLogSumExp")


def bound_sizes(graph: onnx.GraphProto, inferred: Inferred, constants: Constants) -> None:
    """Rewrite a graph in place to compute all counts. Raises ModelError for a node that cannot propagate one."""
    if any(is_standard(node, *DATA_DEPENDENT) for node in graph.node):
        _Propagation(graph, inferred, constants).rewrite()


class _Propagation(NodeWriter):
    def __init__(self, graph: onnx.GraphProto, inferred: Inferred, constants: Constants) -> None:
        super().__init__(graph, constants.tensors)
        self.graph, self.inferred, self.constants = graph, inferred, constants
        self.outputs = {value.name: value for value in graph.output}
        self.bounded: dict[str, BoundedAxis] = {}

    def rewrite(self) -> None:
        """Rewrite the graph."""
        for node in self.graph.node:
            try:
                if is_standard(node, *DATA_DEPENDENT):
                    self._count(node)
                elif any(name in self.bounded for name in all_inputs(node)):
                    self._propagate(node)
                else:
                    self.nodes.append(node)
            except CannotPropagateError as why:
                value = next(name for name in all_inputs(node) if name in self.bounded)
                raise ModelError(
                    f"node {title_of(node)!r} of operator {node.op_type} takes {value!r}, whose size "
                    f"depends on data: {why}",
                    hint="cut the model there: values of data-dependent size may be outputs",
                ) from None
        replace_all(self.graph.node, self.nodes)

    def _filled(self, node: onnx.NodeProto, index: int, fill: str) -> str:
        """Return an input of a node with its undefined elements filled."""
        name = str(node.input[index])
        bounded = self.bounded.get(name)
        if bounded is None:
            return name
        output = self.fresh(f"{name}.filled")
        self.emit(node, "FillBeyond", [name, bounded.count], output, axis=bounded.axis, fill=fill)
        return output

    def _count(self, node: onnx.NodeProto) -> None:
        """Give a DATA_DEPENDENT node all outputs of its operator, followed by a count for each bounded one."""
        given = self._operands(node)
        if node.op_type == "NonZero" and given.bounded[0] is not None:
            node.input[0] = self._filled(node, 0, "zero")
        elif node.op_type == "Compress" and any(given.bounded):
            self._filter(node, given)
        elif any(given.bounded):
            raise CannotPropagateError("it needs its whole input")
        number, bounded = DATA_DEPENDENT[node.op_type]
        names = [*node.output, *[""] * (number - len(node.output))]
        wanted = [names[position] for position in bounded if names[position]]
        counts = [self._count_name(names[position], node) if names[position] else "" for position in bounded]
        self.nodes.append(node)
        for name in wanted:
            axis = 0
            if node.op_type == "NonZero":
                axis = 1
            elif node.op_type in ("Compress", "Unique") and name == names[0] and "axis" in given.attributes:
                axis = given.axis("axis", 0, given.rank(0))
            self.bounded[name] = BoundedAxis(axis, next(filter(None, counts)))
            if name in self.outputs:
                self._add_output(name, counts[[names[position] for position in bounded].index(name)])
        node.output[:] = [*names, *counts]

    def _count_name(self, name: str, node: onnx.NodeProto) -> str:
        """Return the name of a value's count, an output name if the value is an output."""
        if name in self.outputs and f"{name}{COUNT}" in self.taken:
            raise ModelError(f"the value name {f'{name}{COUNT}'!r} is reserved for a count of {node.op_type}")
        return self.fresh(f"{name}{COUNT}")

    def _add_output(self, name: str, count: str) -> None:
        self.outputs[name].type.tensor_type.ClearField("shape")
        self.graph.output.append(helper.make_tensor_value_info(count, onnx.TensorProto.INT64, []))

    def _filter(self, node: onnx.NodeProto, given: Operands) -> None:
        """Fill the condition of a bounded Compress with false; data and condition must have the same count."""
        data, condition = given.bounded
        axis = given.axis("axis", 0, given.rank(0)) if "axis" in given.attributes else None
        if condition is None or data is None or axis != data.axis or data.count != condition.count:
            flat = axis is None and data is not None and given.rank(0) == 1
            if not flat or condition is None or data is None or data.count != condition.count:
                raise CannotPropagateError("its data and its condition have different sizes")
        node.input[1] = self._filled(node, 1, "zero")

    def _operands(self, node: onnx.NodeProto) -> Operands:
        return Operands(node, self.bounded, self.inferred, self.constants)

    def _propagate(self, node: onnx.NodeProto) -> None:
        given = self._operands(node)
        if not is_standard(node) or not any(given.bounded):
            raise CannotPropagateError("it is not known to keep the axis")
        if node.op_type == "Shape":
            self._shape(node, given)
            return
        if node.op_type == "Slice":
            bounded: BoundedAxis | None = self._slice(node, given)
        else:
            bounded = self._reduce(node, given) if node.op_type in (*FILLS, *MEANS) else propagated(given)
        if bounded is None:
            self.nodes.append(node)
            return
        given_out = {}
        for index, name in enumerate(node.output):
            self.bounded[name] = bounded
            if name in self.outputs:
                node.output[index] = given_out[name] = self.fresh(f"{name}.room")
        self.nodes.append(node)
        for name, inner in given_out.items():
            self._add_filled_output(node, inner, name, bounded)

    def _add_filled_output(self, node: onnx.NodeProto, inner: str, outer: str, bounded: BoundedAxis) -> None:
        self.emit(node, "FillBeyond", [inner, bounded.count], outer, axis=bounded.axis, fill="zero")
        count = self.emit(node, "Identity", [bounded.count], self._count_name(outer, node))
        self._add_output(outer, count)

    def _shape(self, node: onnx.NodeProto, given: Operands) -> None:
        """Replace Shape by its extents, one of which is the count."""
        bounded, extents = given.one(), given.extents(0)
        start, end = given.attributes.get("start", 0), given.attributes.get("end")
        wanted = list(range(len(extents)))[start:end]
        if not wanted or any(extents[axis] is None for axis in wanted if axis != bounded.axis):
            raise CannotPropagateError("extents of its input are unknown")
        parts = []
        one = self.fresh(f"{node.output[0]}.one")
        self.constants.add(one, np.array([1], np.int64), None)
        for axis in wanted:
            part = self.fresh(f"{node.output[0]}.{axis}")
            if axis == bounded.axis:
                self.emit(node, "Reshape", [bounded.count, one], part)
            else:
                self.constants.add(part, np.array([extents[axis]], np.int64), None)
            parts.append(part)
        self.emit(node, "Concat", parts, node.output[0], axis=0)

    def _slice(self, node: onnx.NodeProto, given: Operands) -> BoundedAxis:
        """Return the bounded axis of a Slice: of the first n slices, min(n, count) are valid."""
        bounded, rank = given.one(), given.rank(0)
        starts, ends = given.integers(1, "starts"), given.integers(2, "ends")
        axes = given.integers(3, "axes", range(len(starts)))
        steps = given.integers(4, "steps", [1] * len(starts))
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            if axis % rank != bounded.axis:
                continue
            if (start, step) != (0, 1) or end < 0:
                raise CannotPropagateError("it does more than truncate the axis")
            most = self.fresh(f"{node.output[0]}.most")
            self.constants.add(most, np.array(end, np.int64), None)
            count = self.emit(node, "Min", [bounded.count, most], self.fresh(f"{node.output[0]}.size"))
            return BoundedAxis(bounded.axis, count)
        return bounded

    def _reduce(self, node: onnx.NodeProto, given: Operands) -> BoundedAxis | None:
        """Return the bounded axis of a reduction; None if it reduces that axis, after filling its input."""
        bounded, rank = given.one(), given.rank(0)
        if node.op_type.startswith("Arg"):
            axes = [given.axis("axis", 0, rank)]
        else:
            named = given.integers(1, "axes", ())
            if not named and given.attributes.get("noop_with_empty_axes", 0):
                return bounded
            axes = [axis % rank for axis in named] or list(range(rank))
        if bounded.axis not in axes:
            dropped = 0 if given.attributes.get("keepdims", 1) else sum(axis < bounded.axis for axis in axes)
            return BoundedAxis(bounded.axis - dropped, bounded.count)
        fill = FILLS.get(node.op_type)
        if fill is None or given.attributes.get("select_last_index", 0):
            raise CannotPropagateError("it works along the axis")
        node.input[0] = self._filled(node, 0, fill)
        return None
