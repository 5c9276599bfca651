"""Writes a Relax function with its constants as an ONNX model."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import helper
from tvm import relax, tirx

from packager.bundle.arrays import Array
from packager.bundle.dtypes import NARROW
from packager.emit.function_writer import FunctionWriter, write_bindings
from packager.emit.graph_writer import ELEMENT_TYPES
from packager.emit.ops.rules import RULES
from packager.errors import ModelError, listed
from packager.graph.dataflow import shape_of
from packager.graph.identity import IdentityMap
from packager.graph.run_time_extents import results_of
from packager.graph.symbolic import to_extent
from packager.ir.model import ImportedModel
from packager.ir.shapes import Extent
from packager.version import __version__

PRODUCER = "packager"
DIM_KEY = "packager.dim."
"""Prefix of metadata keys: the bounds ``MIN:MAX`` of a symbolic dim."""


@dataclass(frozen=True)
class WrittenModel:
    """A model without the data of its initializers, which are in ``arrays`` by name.

    ``constants`` are the names among them that the source model gave.
    """

    proto: onnx.ModelProto
    arrays: Mapping[str, Array]
    constants: tuple[str, ...]


@dataclass(frozen=True)
class Interface:
    """The names of a function's parameters and results, and the arrays of the parameters that are constants.

    ``nodes`` maps names of Relax variables to the source graph's nodes, which become names of nodes.
    """

    name: str
    inputs: Sequence[str]
    constants: Mapping[str, Array]
    outputs: Sequence[str]
    nodes: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


def write_model(model: ImportedModel) -> WrittenModel:
    """Write an imported model. Raises ModelError for what ONNX does not have, or what is not written."""
    signature = model.signature
    if signature.entries or signature.sizes:
        raise ModelError("a bundle of several graphs is not one ONNX model", hint="export one model, without buckets")
    if signature.extents:
        names = listed(extent.node for extent in signature.extents)
        raise ModelError(
            f"extents are computed from data, by {names}: this is not written",
            hint="export the part of the model whose shapes are known from the inputs",
        )
    narrow = [spec.name for spec in signature.inputs if spec.dtype in NARROW]
    narrow += [name for name, dtype in zip(signature.output_names, signature.output_dtypes, strict=False) if dtype]
    if narrow:
        raise ModelError(f"{listed(narrow)}: tensors of fewer than 8 bits, or of 8-bit floats, are not written")
    interface = Interface(
        name=signature.source.name,
        inputs=[spec.name for spec in signature.inputs],
        constants=model.weights,
        outputs=signature.output_names,
        nodes=model.nodes,
        metadata={f"{DIM_KEY}{dim.name}": f"{dim.min}:{dim.max}" for dim in signature.dims},
    )
    return write_function(model.module["main"], interface)


def write_function(function: relax.Function, interface: Interface) -> WrittenModel:
    """Write a function: the first parameters are the inputs, the others the constants. Raises ModelError."""
    names = [*interface.inputs, *interface.constants]
    parameters = dict(zip(names, function.params, strict=True))
    dims = _dims([parameters[name] for name in interface.inputs])
    positions = _positions(parameters[name] for name in interface.inputs)
    extent_values = IdentityMap((v, (interface.inputs[at], axis)) for v, (at, axis) in positions.items())
    writer = FunctionWriter([*names, *interface.outputs], extent_values)
    for name, parameter in parameters.items():
        writer.values[parameter] = name
    for name, array in interface.constants.items():
        writer.initializers[name] = array
    _refuse(write_bindings(writer, function, RULES, interface.nodes))
    writer.source = ""
    results = results_of(function)
    for name, result in zip(interface.outputs, results, strict=True):
        writer.output(writer.value(result), name)
    outputs = [_value_info(name, result, dims) for name, result in zip(interface.outputs, results, strict=True)]
    inputs = [_value_info(name, parameters[name], dims) for name in interface.inputs]
    return _assemble(writer, interface, inputs, outputs, _inner(writer, dims, {*names, *interface.outputs}))


def _assemble(writer: FunctionWriter, interface: Interface, inputs: Any, outputs: Any, inner: Any) -> WrittenModel:
    nodes = writer.finished_nodes()
    used = {name for node in nodes for name in node.input}
    arrays = {name: array for name, array in writer.initializers.items() if name in used}
    made = {name for node in nodes for name in node.output}
    graph = helper.make_graph(nodes, interface.name, inputs, outputs, value_info=[v for v in inner if v.name in made])
    opset = helper.make_opsetid("", writer.opset)
    proto = helper.make_model(
        graph,
        opset_imports=[opset],
        ir_version=helper.find_min_ir_version_for([opset]),
        producer_name=PRODUCER,
        producer_version=__version__,
    )
    if interface.metadata:
        helper.set_model_props(proto, dict(interface.metadata))
    return WrittenModel(proto, arrays, tuple(name for name in interface.constants if name in arrays))


def _refuse(refused: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Raise ModelError if there are operators that could not be written."""
    if not refused:
        return
    lines = []
    for operator, uses in sorted(refused.items()):
        reasons = dict.fromkeys(reason for _, reason in uses)
        lines.append(f"{operator}: {listed(dict.fromkeys(node for node, _ in uses))}: {'; '.join(reasons)}")
    plural = "operator cannot" if len(lines) == 1 else "operators cannot"
    raise ModelError(
        f"{len(lines)} {plural} be written as ONNX",
        detail="\n".join(lines),
        hint="packager build compiles them; only the export does not have them",
    )


def _positions(inputs: Iterable[Any]) -> IdentityMap[tuple[int, int]]:
    """Return the first input and axis whose extent each shape variable is."""
    found: IdentityMap[tuple[int, int]] = IdentityMap()
    for number, parameter in enumerate(inputs):
        for axis, extent in enumerate(shape_of(parameter) or ()):
            if isinstance(extent, tirx.Var):
                found.setdefault(extent, (number, axis))
    return found


def _dims(inputs: Iterable[Any]) -> IdentityMap[Extent]:
    """Return a name of its own for each shape variable."""
    named: IdentityMap[Extent] = IdentityMap()
    for variable in _positions(inputs):
        taken = set(named.values())
        names = itertools.chain([""], (f"_{number}" for number in itertools.count(1)))
        named[variable] = next(f"{variable.name}{end}" for end in names if f"{variable.name}{end}" not in taken)
    return named


def _value_info(name: str, expr: Any, dims: IdentityMap[Extent]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, ELEMENT_TYPES[str(expr.ty.dtype)], _shape(expr, dims))


def _shape(expr: Any, dims: IdentityMap[Extent]) -> list[int | str] | None:
    """Return the extents: numbers, and names of dims or expressions over them."""
    shape = shape_of(expr)
    return None if shape is None else [to_extent(extent, dims) for extent in shape]


def _inner(writer: FunctionWriter, dims: IdentityMap[Extent], interface: set[str]) -> list[onnx.ValueInfoProto]:
    """Return the types of the values between inputs and outputs that are values of Relax variables."""
    found = {
        value: variable
        for variable, value in writer.values.items()
        if isinstance(value, str) and value not in interface and isinstance(variable.ty, relax.TensorType)
    }
    return [_value_info(name, variable, dims) for name, variable in found.items()]
