"""Custom operators (``--op-library``) in ONNX graphs: match nodes, infer their types, import them as extern calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx.inliner
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import get_type
from tvm.sym import Analyzer

from packager.bundle.dtypes import PLAIN
from packager.custom_ops.library import OpLibrary, encode_call
from packager.custom_ops.rules import (
    INTEGERS,
    AttributeValue,
    Given,
    NoFitError,
    Operator,
    bind,
    complete_attributes,
    counts,
    describe,
    output_shapes,
)
from packager.custom_ops.symbolic import SYMBOLIC
from packager.errors import ModelError
from packager.frontends.onnx.graph.nodes import title_of
from packager.graph.dataflow import extents_of

ATTRIBUTE_TYPES = {
    onnx.AttributeProto.INT: "int",
    onnx.AttributeProto.FLOAT: "float",
    onnx.AttributeProto.STRING: "string",
    onnx.AttributeProto.INTS: "ints",
    onnx.AttributeProto.FLOATS: "floats",
}
# Names of packager.bundle.dtypes -> ONNX element types.
ELEMENT_TYPES = {
    name: onnx.TensorProto.DataType.Value({"float32": "FLOAT", "float64": "DOUBLE"}.get(name, name.upper()))
    for name in PLAIN
}


@dataclass(frozen=True)
class CustomNode:
    """A node of a custom operator; ``candidates`` are the overloads available in its version of the domain."""

    name: str
    operator: str
    candidates: tuple[tuple[OpLibrary, Operator], ...]
    attributes: Mapping[str, tuple[str, AttributeValue]]
    num_outputs: int

    @property
    def label(self) -> str:
        """The node for messages."""
        return f"node {self.name!r} of operator {self.operator}"


def inline_functions(model: onnx.ModelProto, libraries: Sequence[OpLibrary]) -> onnx.ModelProto:
    """Inline local functions, except those that a library implements."""
    if not model.functions:
        return model
    ours = {(operator.domain, operator.op_type) for library in libraries for operator in library.operators}
    inlined = onnx.inliner.inline_selected_functions(model, sorted(ours), exclude=True)
    del inlined.functions[:]
    return inlined


def take_custom_nodes(model: onnx.ModelProto, libraries: Sequence[OpLibrary]) -> dict[str, CustomNode]:
    """Find the nodes that the libraries implement, and return them by a unique operator type.

    The type replaces the node's own in place, so that later passes do not confuse it with a standard operator of the
    same name. The attributes move into the result. Raises ModelError.
    """
    versions = {entry.domain: entry.version for entry in model.opset_import}
    found: dict[str, CustomNode] = {}
    for node in model.graph.node:
        name = f"{node.domain}::{node.op_type}"
        known = [(library, op) for library in libraries for op in library.operators if op.name == name]
        if not known:
            continue
        title = title_of(node)
        version = versions.get(node.domain, 1)
        since = max((op.since for _, op in known if op.since <= version), default=None)
        if since is None:
            raise ModelError(
                f"node {title!r}: the model imports version {version} of {node.domain}; the library has {name} "
                f"from version {min(op.since for _, op in known)} on",
                hint="export the model with the version that the library implements",
            )
        node.op_type = f"{name}#{len(found)}"
        found[node.op_type] = CustomNode(
            name=title,
            operator=name,
            candidates=tuple((library, op) for library, op in known if op.since == since),
            attributes={a.name: _attribute(a, title, name) for a in node.attribute},
            num_outputs=len(node.output),
        )
        del node.attribute[:]
    return found


def _attribute(attribute: onnx.AttributeProto, node: str, operator: str) -> tuple[str, AttributeValue]:
    kind = ATTRIBUTE_TYPES.get(attribute.type)
    if kind is None:
        raise ModelError(
            f"attribute {attribute.name!r} of node {node!r} of operator {operator} is of type "
            f"{onnx.AttributeProto.AttributeType.Name(attribute.type)}",
            hint="custom operators may have attributes of the types " + ", ".join(ATTRIBUTE_TYPES.values()),
        )
    value = onnx.helper.get_attribute_value(attribute)
    if kind == "string":
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise ModelError(f"attribute {attribute.name!r} of node {node!r} of operator {operator} is not plain text")
        return kind, text
    return kind, tuple(value) if kind in ("ints", "floats") else value


def add_types(graph: onnx.GraphProto, inferred: onnx.GraphProto, custom: Mapping[str, CustomNode]) -> bool:
    """Add the output types of custom nodes that ``inferred`` determines to ``graph``; return whether any were added.

    Best effort: a node that matches no overload is reported at import.
    """
    types = {value.name: value.type for value in (*inferred.input, *inferred.value_info, *inferred.output)}
    for tensor in inferred.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    declared = {value.name for value in (*graph.value_info, *graph.output)}
    added = False
    for node in graph.node:
        if node.op_type not in custom or declared.issuperset(node.output):
            continue
        if not all(types.get(name) is not None and types[name].tensor_type.elem_type for name in node.input):
            continue
        outputs = _output_types(custom[node.op_type], [types[name].tensor_type for name in node.input])
        for name, ty in zip(node.output, outputs, strict=False):
            if name and name not in declared:
                graph.value_info.append(onnx.ValueInfoProto(name=name, type=ty))
                types[name] = ty
                added = True
    return added


def _output_types(custom: CustomNode, inputs: Sequence[onnx.TypeProto.Tensor]) -> list[onnx.TypeProto]:
    given = []
    for tensor in inputs:
        extents = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim]
        given.append(Given(get_type(tensor.elem_type), tuple(extents) if tensor.HasField("shape") else None))
    for _, operator in custom.candidates:
        try:
            dims = bind(operator, given, lambda a, b: not (isinstance(a, int) and isinstance(b, int)) or a == b)
            values = {name: value if isinstance(value, int) else None for name, value in dims.items()}
            values |= counts(operator, complete_attributes(operator, custom.attributes, custom.name))
            shapes = output_shapes(operator, given, values, INTEGERS)
        except (NoFitError, ModelError, ZeroDivisionError):
            continue
        return [
            onnx.helper.make_tensor_type_proto(ELEMENT_TYPES[rule.dtype], shape)
            for rule, shape in zip(operator.outputs, shapes, strict=True)
        ]
    return []


def convert(custom: CustomNode, inputs: Sequence[Any], analyzer: Analyzer) -> relax.Call:
    """Return the extern call of a node, with the types of its results. Raises ModelError.

    ``analyzer`` has the bounds of the dims.
    """
    given = [_given(custom, index, expr) for index, expr in enumerate(inputs)]
    library, operator, dims = _choose(custom, given, analyzer)
    attributes = complete_attributes(operator, custom.attributes, custom.name)
    if custom.num_outputs > len(operator.outputs):
        raise ModelError(f"{custom.label} has {custom.num_outputs} outputs; the library's has {len(operator.outputs)}")
    try:
        shapes = output_shapes(operator, given, {**dims, **counts(operator, attributes)}, SYMBOLIC)
    except Exception as error:  # such as TVM's InternalError for a division by zero
        raise ModelError(
            f"{custom.label}: the shape of its output cannot be computed", detail=str(error).strip().splitlines()[-1]
        ) from error
    types = []
    for rule, shape in zip(operator.outputs, shapes, strict=True):
        extents = [analyzer.simplify(extent) for extent in shape]
        for axis, extent in enumerate(extents):
            if analyzer.const_int_bound(extent).min_value < 1:
                raise ModelError(
                    f"{custom.label}: axis {axis} of its output {rule.name!r} is {_plain(extent)}, which can be less"
                    " than 1",
                    hint="check the library's shape rule, or give other bounds with --dim",
                )
        types.append(relax.TensorType(extents, rule.dtype))
    return relax.op.call_dps_packed(encode_call(library, operator, attributes), list(inputs), types)


def _given(custom: CustomNode, index: int, expr: Any) -> Given:
    if expr is None:
        raise ModelError(
            f"{custom.label} leaves out input {index}",
            hint="inputs of custom operators are not optional: describe an overload with fewer inputs",
        )
    extents = extents_of(expr)
    if extents is None:
        raise ModelError(f"{custom.label}: input {index} is not a tensor of known shape")
    return Given(str(expr.ty.dtype), extents)


def _choose(
    custom: CustomNode, given: Sequence[Given], analyzer: Analyzer
) -> tuple[OpLibrary, Operator, dict[str, Any]]:
    reasons = []
    for library, operator in custom.candidates:
        try:
            dims = bind(operator, given, lambda a, b: bool(analyzer.can_prove_equal(a, b)))
        except NoFitError as reason:
            reasons.append(f"{library.name}: {operator.op_type}({operator.takes}): {_plain(reason)}")
            continue
        return library, operator, dims
    types = ", ".join(describe(ty.dtype, ty.shape) for ty in given)
    raise ModelError(
        f"{custom.label} has the inputs ({_plain(types)}), which match no overload in the libraries",
        detail="\n".join(reasons),
        hint="describe an overload for these inputs, or convert them in the model",
    )


def _plain(text: object) -> str:
    """Strip TVM's ``T.int64(3)`` from a message."""
    return re.sub(r"T\.int64\((-?\d+)\)", r"\1", str(text))
