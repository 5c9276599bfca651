"""Load ONNX: read and check the file, simplify the graph with numpy, and run TVM's importer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnx.external_data_helper
import tvm
from google.protobuf.message import DecodeError
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from packager.bundle.hashing import sha256_of_file
from packager.bundle.manifest import Model, TensorSpec
from packager.custom_ops.domains import CONTRIB_DOMAINS
from packager.custom_ops.library import OpLibrary
from packager.errors import ModelError, UnsupportedOperatorsError
from packager.frontends.bounds import bound_expressions
from packager.frontends.dims import DimRequest, UnknownDimError, resolve_dims
from packager.frontends.freeze import freeze_inputs
from packager.frontends.node_names import tag_bindings
from packager.frontends.onnx.check import check
from packager.frontends.onnx.dims import fix_dims, name_dims
from packager.frontends.onnx.graph.class_names import number_classes
from packager.frontends.onnx.graph.custom_ops import CustomNode, inline_functions, take_custom_nodes
from packager.frontends.onnx.graph.external_data import detach_large, read_external
from packager.frontends.onnx.graph.infer_shapes import infer
from packager.frontends.onnx.graph.narrow_types import store_narrow
from packager.frontends.onnx.graph.nodes import inner_graphs, is_standard, replace_all, standard_version, title_of
from packager.frontends.onnx.graph.random_nodes import connect_seeds, number_streams
from packager.frontends.onnx.graph.simplify import simplify
from packager.frontends.onnx.importer import Importer, run_importer
from packager.frontends.onnx.ops.converters import CONVERTERS
from packager.frontends.onnx.ops.run_time.extents import is_extent_name
from packager.frontends.overrides import NO_OVERRIDES, Overrides
from packager.graph.dataflow import bindings_of, extents_of, variables_of
from packager.graph.identity import IdentitySet
from packager.graph.lift_constants import is_made_up, lift_constants
from packager.ir.model import ImportedModel, ModelSignature

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

STRINGS_HINT = "bundles compute with numbers: turn strings into numbers before, and cut the model there"


def load(
    path: Path,
    dims: Mapping[str, DimRequest],
    name: str,
    op_libraries: Sequence[OpLibrary] = (),
    overrides: Overrides = NO_OVERRIDES,
    frozen: Mapping[str, Array] | None = None,
) -> ImportedModel:
    """Read an ``.onnx`` file and its external data. Raises ModelError, UnsupportedOperatorsError and UsageError."""
    model, arrays, warnings = _read(path)
    model = inline_functions(model, op_libraries)
    sha256 = sha256_of_file(path)
    graph = model.graph
    _drop_initializer_inputs(graph)
    _override(graph, overrides, arrays)
    labels = number_classes(graph)
    streams = number_streams(graph)
    _refuse_strings(graph)
    freeze_inputs(graph, frozen or {})
    found, expressions = name_dims(graph)
    dims = bound_expressions(dims, expressions)
    declared = {name: request for name, request in dims.items() if name not in found and is_extent_name(name)}
    resolved = resolve_dims(found, {name: request for name, request in dims.items() if name not in declared})
    fixed = {dim: request.min for dim, request in dims.items() if request.fixed}
    fix_dims(graph, fixed)
    custom = take_custom_nodes(model, op_libraries)
    inferred, constants = simplify(model, custom, arrays)
    random = connect_seeds(graph, constants, streams)
    narrow = store_narrow(graph, inferred.types, constants)
    _check_operators(graph, custom)
    importer = Importer(custom, resolved, constants.array, inferred.types, expressions, fixed, declared)
    module = run_importer(importer, graph, _opset(model))
    computed = importer.extents
    if declared.keys() > computed.used:
        have = ", ".join((*sorted(found), *(extent.name for extent in computed.extents()))) or "none"
        raise UnknownDimError(sorted(declared.keys() - computed.used), have)
    warnings += _check_outputs(model, custom, module["main"])
    _check_extents(module["main"], importer.node_of_variable)
    weights = {name: importer._params.array(name) for name in importer._params}
    module["main"] = module["main"].without_attr("params") if weights else module["main"]
    sources = {name: constants.sources[name] for name in weights if name in constants.sources}
    module, made = lift_constants(module, {}, weights, is_made_up)
    weights |= made
    sources |= dict.fromkeys(made, ())
    module, nodes = tag_bindings(module, importer.node_of_variable)
    source = Model(
        name=name,
        format="onnx",
        sha256=sha256,
        opset={entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        producer=f"{model.producer_name} {model.producer_version}".strip() or None,
        random=random,
    )
    return ImportedModel(
        signature=ModelSignature(
            source=source,
            inputs=(*(_spec(value, narrow.get(value.name)) for value in graph.input), *computed.specs()),
            output_names=tuple(value.name for value in graph.output),
            dims=(*resolved, *computed.dims()),
            conditions=tuple(importer.relations.found.values()),
            output_dtypes=tuple(narrow.get(value.name) for value in graph.output),
            output_labels=labels,
            extents=computed.extents(),
            branches=importer.branches,
        ),
        module=module,
        weights=weights,
        nodes=nodes,
        sources=sources,
        originals={source: constants.array(source) for names in sources.values() for source in names},
        warnings=warnings,
    )


def _read(path: Path) -> tuple[onnx.ModelProto, dict[str, Array], tuple[str, ...]]:
    """Return the model, the large initializers, whose data are removed from it, and warnings. Raises ModelError."""
    try:
        model = onnx.load(path, load_external_data=False)
    except (DecodeError, ValueError, OSError) as error:
        raise ModelError(f"{path}: cannot be read as ONNX", detail=str(error), hint="is the file complete?") from None
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"{path}: holds no ONNX graph", hint="is the file complete?")
    try:
        arrays = detach_large(model.graph)
    except ValueError as error:
        raise ModelError(f"{path}: is not a valid ONNX model", detail=str(error)) from None
    if arrays:  # a protobuf message does not free the memory of cleared fields
        model, large = onnx.ModelProto(), model
        model.CopyFrom(large)
        del large
    warnings = check(path, model)
    try:
        arrays |= read_external(model, path.parent, arrays)
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(
            f"{path}: its external data cannot be read",
            detail=str(error),
            hint="external data files must be in the model's folder, under the names used in the model",
        ) from None
    return model, arrays, warnings


def _drop_initializer_inputs(graph: onnx.GraphProto) -> None:
    """Remove initializers from the inputs, where IR versions before 4 list them too."""
    initialized = {tensor.name for tensor in graph.initializer}
    replace_all(graph.input, [value for value in graph.input if value.name not in initialized])


def _override(graph: onnx.GraphProto, overrides: Overrides, arrays: dict[str, Array]) -> None:
    """Replace initializers, including those in ``arrays``, and values of Constant nodes. Raises UsageError."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if is_standard(node, "Constant"):
            tensors.update((node.output[0], attribute.t) for attribute in node.attribute if attribute.name == "value")
    overrides.check_names(tensors)
    for name in overrides.arrays:
        tensor = tensors[name]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).name
        array = overrides.find(name, dtype, tuple(tensor.dims))
        if array is not None and name in arrays:
            arrays[name] = array
        elif array is not None:
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def _refuse_strings(graph: onnx.GraphProto) -> None:
    """Raise ModelError for inputs, outputs and initializers of strings, which bundles do not support."""
    given = [("input", value.name, value.type.tensor_type.elem_type) for value in graph.input]
    given += [("output", value.name, value.type.tensor_type.elem_type) for value in graph.output]
    given += [("initializer", tensor.name, tensor.data_type) for tensor in graph.initializer]
    for kind, name, element_type in given:
        if element_type == onnx.TensorProto.STRING:
            raise ModelError(f"{kind} {name!r} holds strings", hint=STRINGS_HINT)


def _check_operators(graph: onnx.GraphProto, custom: Mapping[str, CustomNode]) -> None:
    known = {"Constant", "Loop", *onnx_frontend._get_convert_map(), *CONVERTERS, *custom}
    refused: dict[str, list[str]] = {}
    inner = (part for node in graph.node for body in inner_graphs(node) for part in body.node)
    for node in (*graph.node, *inner):
        operator = node.op_type if is_standard(node) else f"{node.domain}::{node.op_type}"
        if node.op_type in custom or is_standard(node, *known) or node.op_type in CONTRIB_DOMAINS.get(node.domain, ()):
            continue
        refused.setdefault(operator, []).append(title_of(node))
    if refused:
        raise UnsupportedOperatorsError(refused)


def _check_outputs(model: onnx.ModelProto, custom: Mapping[str, CustomNode], main: relax.Function) -> tuple[str, ...]:
    """Raise ModelError if an output's imported type differs from the declared one: TVM's importer silently ignores some
    uses of operators (training mode, secondary outputs).

    Returns a warning for each output whose declared shape is wrong by onnx's own inference, too.
    """
    graph = model.graph
    has_wrong_shapes = any(map(_may_declare_wrong_shapes, graph.node))
    warnings: list[str] = []
    types = main.ret_ty.fields if isinstance(main.ret_ty, relax.TupleType) else [main.ret_ty]
    for value, ty in zip(graph.output, types, strict=True):
        if value.type.WhichOneof("value") != "tensor_type":
            raise ModelError(f"output {value.name!r} is not a tensor", hint="sequences and optionals are not supported")
        tensor = value.type.tensor_type
        if not isinstance(ty, relax.TensorType):
            continue  # the planner checks shapes and nested tuples
        declared = onnx_frontend.get_type(tensor.elem_type)
        extents = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
        known = extents_of(ty)
        found = extents if known is None else known
        fits = has_wrong_shapes or not tensor.HasField("shape") or _agree(extents, found)
        if fits and str(ty.dtype) == declared:
            continue
        what = f"output {value.name!r} is declared as {declared}{extents}"
        inferred = None if fits else infer(model, custom, believe_outputs=False).extents.get(value.name)
        if str(ty.dtype) != declared or inferred is None or not _agree(inferred, found):
            raise ModelError(
                f"{what} but would be {ty}",
                hint="an operator is used in a way that TVM's importer does not support",
            )
        shape = [int(extent) if isinstance(extent, tvm.tirx.IntImm) else extent for extent in found]
        warnings.append(f"{what}, and is {declared}{shape}: so it is in the bundle")
    return tuple(warnings)


def _agree(extents: Sequence[int | None], found: Sequence[Any]) -> bool:
    """Whether extents may be these: of the same number, and equal where both are known."""
    return len(found) == len(extents) and all(
        want is None or not isinstance(have, tvm.tirx.IntImm) or int(have) == want
        for want, have in zip(extents, found, strict=True)
    )


def _may_declare_wrong_shapes(node: onnx.NodeProto) -> bool:
    """Whether exporters declare wrong shapes of what follows, of which onnxruntime warns: converters of trees,
    and torch, which counts windows of pooling that would begin in the padding after the data."""
    rounds_up = any(attribute.name == "ceil_mode" and attribute.i for attribute in node.attribute)
    return node.domain == "ai.onnx.ml" or (is_standard(node) and rounds_up)


def _check_extents(main: relax.Function, nodes: Mapping[str, str]) -> None:
    """Raise ModelError if a call takes or returns an empty tensor that is used: it cannot be compiled."""
    bindings = bindings_of(main)
    values = (*(binding.value for binding in bindings), main.body.body)
    used = IdentitySet(variable for value in values for variable in variables_of(value))
    for binding in bindings:
        if not isinstance(binding.value, relax.Call) or binding.var not in used:
            continue
        for part in (binding.var, *binding.value.args):
            if not _is_empty(part.ty):
                continue
            node = nodes.get(binding.var.name, "")
            raise ModelError(
                f"a value of {f'node {node!r}' if node else 'the model'} has no elements: its shape is {part.ty.shape}",
                hint="empty tensors are supported if all extents are static",
            )


def _is_empty(ty: Any) -> bool:
    shape = getattr(ty, "shape", None)
    return isinstance(shape, relax.ShapeExpr) and any(isinstance(e, tvm.tirx.IntImm) and int(e) == 0 for e in shape)


def _opset(model: onnx.ModelProto) -> int:
    version = standard_version(model)
    if version is None and any(map(is_standard, model.graph.node)):
        raise ModelError("the model imports no standard operator set", hint="export it again with an opset")
    return version or int(onnx.defs.onnx_opset_version())


def _spec(value: onnx.ValueInfoProto, narrow: str | None) -> TensorSpec:
    tensor = value.type.tensor_type
    dtype = narrow or onnx_frontend.get_type(tensor.elem_type)
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in tensor.shape.dim)
    return TensorSpec(value.name, dtype, shape)  # type: ignore[arg-type]
