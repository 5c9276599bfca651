"""Collects the nodes and initializers of an ONNX graph, and computes shapes in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from tvm import tirx

from packager.bundle.arrays import Array
from packager.bundle.dtypes import storage_dtype
from packager.emit.errors import CannotWriteError
from packager.graph.identity import IdentityMap

BASE_OPSET = 17
"""The newest opset that TensorRT 8.6 reads. A graph with operators that are newer has the oldest that has them all."""

# What the elements of ONNX tensors are called here.
ELEMENT_TYPES: Mapping[str, int] = {
    "bool": TensorProto.BOOL,
    "int8": TensorProto.INT8,
    "int16": TensorProto.INT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8,
    "uint16": TensorProto.UINT16,
    "uint32": TensorProto.UINT32,
    "uint64": TensorProto.UINT64,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
}
# Reductions whose axes became an input in opset 18 (that of ReduceSum in 13).
_AXES_AS_INPUT_SINCE_18 = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd")
_GRID_MODES_SINCE_20 = {b"bilinear": b"linear", b"bicubic": b"cubic"}

_ARITHMETIC = {
    tirx.Add: "Add",
    tirx.Sub: "Sub",
    tirx.Mul: "Mul",
    tirx.FloorDiv: "Div",  # extents are not negative
    tirx.Div: "Div",
    tirx.FloorMod: "Mod",
    tirx.Mod: "Mod",
    tirx.Min: "Min",
    tirx.Max: "Max",
}


def element_type(dtype: str) -> int:
    """Return the ONNX element type of a Relax one. Raises CannotWriteError."""
    if dtype not in ELEMENT_TYPES:
        raise CannotWriteError(f"its element type {dtype} is not written")
    return ELEMENT_TYPES[dtype]


def nodes_for(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> list[onnx.NodeProto]:
    """Return the nodes, in order, that these outputs need."""
    read, kept = set(outputs), []
    for node in reversed(nodes):
        if read.intersection(node.output):
            kept.append(node)
            read.update(node.input)
    return kept[::-1]


class GraphWriter:
    """The nodes and initializers so far. Values are known by their names.

    ``extent_values`` maps each shape variable to the input and axis whose extent it is.
    """

    def __init__(self, taken: Iterable[str], extent_values: IdentityMap[tuple[str, int]]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, Array] = {}
        self.opset = BASE_OPSET
        self.source = ""  # of the nodes that are added: the source graph's node
        self._names, self._node_names = _Names(taken), _Names()
        self._outputs: set[str] = set()
        self._extent_values = extent_values
        self._extents: IdentityMap[str] = IdentityMap()
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def unique(self, wanted: str) -> str:
        """Return ``wanted``, with a number if another value has this name."""
        return self._names.unique(wanted)

    def node(self, operator: str, inputs: Sequence[str], *, since: int = 0, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node and return the name of its output, or the names if it has several.

        ``since`` is the opset that has the operator, or this use of it; attributes of None are left out.
        """
        self.opset = max(self.opset, since)
        names = [self.unique(operator.lower()) for _ in range(outputs)]
        given = {name: value for name, value in attributes.items() if value is not None}
        title = self._node_names.unique(self.source or operator.lower())
        self.nodes.append(helper.make_node(operator, list(inputs), names, name=title, **given))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, dtype: str | None = None, name: str = "constant") -> str:
        """Return the name of a constant; small ones of equal value are one."""
        array = np.asarray(value, None if dtype is None else storage_dtype(dtype))
        key = (str(array.dtype), array.shape, array.tobytes()) if array.size <= 64 else None
        if key in self._constants:
            return self._constants[key]
        stored = self.unique(name)
        self.initializers[stored] = array
        if key is not None:
            self._constants[key] = stored
        return stored

    def integers(self, values: Iterable[int]) -> str:
        """Return a vector of int64."""
        return self.constant(np.array(list(values), np.int64))

    def shape(self, extents: Sequence[Any]) -> str:
        """Return a vector of int64 with these extents, computed from the inputs where they are symbolic."""
        known = [_static(extent) for extent in extents]
        if None not in known:
            return self.integers(extent for extent in known if extent is not None)
        parts = [self.extent(extent) for extent in extents]
        return parts[0] if len(parts) == 1 else str(self.node("Concat", parts, axis=0))

    def extent(self, expr: Any) -> str:
        """Return a vector of int64 with one element, the value of an integer expression. Raises CannotWriteError."""
        known = _static(expr)
        if known is not None:
            return self.integers([known])
        if expr not in self._extents:
            self._extents[expr] = self._compute(expr)
        return self._extents[expr]

    def _compute(self, expr: Any) -> str:
        if isinstance(expr, tirx.Cast):
            return self.extent(expr.value)
        if isinstance(expr, tirx.Var):
            if expr not in self._extent_values:
                raise CannotWriteError(f"its shape depends on {expr.name}, which is not an extent of an input")
            data, axis = self._extent_values[expr]
            return str(self.node("Gather", [self.node("Shape", [data]), self.integers([axis])], axis=0))
        if type(expr) not in _ARITHMETIC:
            raise CannotWriteError(f"its shape is computed by {expr}")
        return str(self.node(_ARITHMETIC[type(expr)], [self.extent(expr.a), self.extent(expr.b)]))

    def scalar(self, expr: Any, dtype: str = "int64") -> str:
        """Return a scalar with the value of an integer or floating-point expression."""
        known = _number(expr)
        if known is not None:
            return self.constant(known, dtype)
        vector = self.extent(expr)
        value = str(self.node("Squeeze", [vector, self.integers([0])]))
        return value if dtype == "int64" else self.cast(value, dtype)

    def cast(self, value: str, dtype: str) -> str:
        """Return the value converted to an element type."""
        return str(self.node("Cast", [value], to=element_type(dtype), since=19 if dtype.startswith("float8") else 0))

    def reshape(self, value: str, extents: Sequence[Any]) -> str:
        """Return the value in another shape."""
        empty = any(_static(extent) == 0 for extent in extents)
        return str(self.node("Reshape", [value, self.shape(extents)], allowzero=1 if empty else None))

    def transpose(self, value: str, axes: Sequence[int]) -> str:
        """Return the value with its axes in another order; the value itself if that is the one it has."""
        return value if list(axes) == sorted(axes) else str(self.node("Transpose", [value], perm=list(axes)))

    def output(self, value: str, name: str) -> None:
        """Make ``name`` an output that is this value."""
        self.nodes.append(helper.make_node("Identity", [value], [name], name=self._node_names.unique(name)))
        self._outputs.add(name)

    def producer(self, value: str) -> onnx.NodeProto | None:
        """Return the node that computes a value, None for an input or a constant."""
        return next((node for node in reversed(self.nodes) if value in node.output), None)

    def known(self, value: str) -> Array | None:
        """Return the array of a constant, None for a value that is computed or an input."""
        return self.initializers.get(value)

    def finished_nodes(self) -> list[onnx.NodeProto]:
        """Return the nodes that are read, in the form of the final opset, with the outputs under their names."""
        self.nodes = nodes_for(self.nodes, self._outputs)
        self._rename_outputs()
        if self.opset < 18:
            return self.nodes
        for node in self.nodes:
            axes = [attribute for attribute in node.attribute if attribute.name == "axes"]
            if node.op_type in _AXES_AS_INPUT_SINCE_18 and axes:
                node.input.append(self.integers(axes[0].ints))
                node.attribute.remove(axes[0])
            for attribute in node.attribute if node.op_type == "GridSample" and self.opset >= 20 else ():
                if attribute.name == "mode":
                    attribute.s = _GRID_MODES_SINCE_20.get(attribute.s, attribute.s)
        return self.nodes

    def _rename_outputs(self) -> None:
        """Name a node's output as the graph's instead of copying it, if it is not an output under two names."""
        made = {name: (node, place) for node in self.nodes for place, name in enumerate(node.output)}
        renamed: dict[str, str] = {}
        kept = []
        for node in self.nodes:
            source = node.input[0] if node.op_type == "Identity" else ""
            if source in made and source not in renamed and made[source][0].op_type != "Identity":
                producer, place = made[source]
                producer.output[place] = renamed[source] = node.output[0]
            else:
                kept.append(node)
        for node in kept:
            for place, name in enumerate(node.input):
                node.input[place] = renamed.get(name, name)
        self.nodes = kept


class _Names:
    """Hands out names that differ; a number makes them so."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._last: dict[str, int] = {}

    def unique(self, wanted: str) -> str:
        name, number = wanted, self._last.get(wanted, 0)
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        self._last[wanted] = number
        return name


def _static(extent: Any) -> int | None:
    value = _number(extent)
    return None if value is None else int(value)


def _number(expr: Any) -> int | float | None:
    if isinstance(expr, int | float):
        return expr
    return expr.value if isinstance(expr, tirx.IntImm | tirx.FloatImm) else None
