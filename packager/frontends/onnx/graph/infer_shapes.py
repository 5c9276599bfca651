"""Shape inference by onnx, and by the rules of custom operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from packager.frontends.onnx.graph.custom_ops import CustomNode, add_types
from packager.frontends.onnx.graph.external_data import LARGE_BYTES, is_declared
from packager.frontends.onnx.graph.fold_constants import Extents


@dataclass(frozen=True)
class Inferred:
    """Results of shape inference by value name: extents (if the rank is known), element types, and full types."""

    extents: dict[str, Extents]
    types: dict[str, int]
    protos: dict[str, onnx.TypeProto]


def infer(model: onnx.ModelProto, custom: Mapping[str, CustomNode], *, believe_outputs: bool = True) -> Inferred:
    """Infer the types of the values of a model. Best effort: errors are reported by the importer.

    With ``believe_outputs`` the shapes that the model declares of its outputs are taken for true.
    """
    # Inference needs the shapes of large initializers, not their data, which may exceed protobuf's 2 GiB.
    bare = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    graph = model.graph
    bare.graph.name = graph.name
    bare.graph.node.extend(graph.node)
    bare.graph.input.extend(graph.input)
    bare.graph.output.extend(graph.output)
    for value in () if believe_outputs else bare.graph.output:
        value.type.tensor_type.ClearField("shape")
    bare.graph.value_info.extend(graph.value_info)
    for value in (*bare.graph.output, *bare.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_value") and dim.dim_value == 0:
                dim.Clear()  # exporters write this for an unknown extent
    for tensor in graph.initializer:
        if is_declared(tensor) or len(tensor.raw_data) > LARGE_BYTES:
            bare.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        else:
            bare.graph.initializer.append(tensor)
    try:
        inferred = onnx.shape_inference.infer_shapes(bare, data_prop=True).graph
        while custom and add_types(bare.graph, inferred, custom):  # types of later nodes depend on custom outputs
            inferred = onnx.shape_inference.infer_shapes(bare, data_prop=True).graph
    except onnx.shape_inference.InferenceError:
        inferred = bare.graph  # the importer infers types itself and reports errors
    protos = {
        tensor.name: onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims) for tensor in graph.initializer
    }
    protos |= {value.name: value.type for value in (*inferred.value_info, *inferred.input, *inferred.output)}
    tensors = {name: proto.tensor_type for name, proto in protos.items() if proto.WhichOneof("value") == "tensor_type"}
    return Inferred(
        {
            name: tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
            for name, tensor in tensors.items()
            if tensor.HasField("shape")
        },
        {name: tensor.elem_type for name, tensor in tensors.items()},
        protos,
    )
