"""onnxruntime as the reference: one node while a model grows, then the whole model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
# Element types that numpy lacks: values of them are made and read by Cast, and are float32 arrays here.
CARRIED = {
    "bfloat16": TensorProto.BFLOAT16,
    "float8e4m3fn": TensorProto.FLOAT8E4M3FN,
    "float8e4m3fnuz": TensorProto.FLOAT8E4M3FNUZ,
    "float8e5m2": TensorProto.FLOAT8E5M2,
    "float8e5m2fnuz": TensorProto.FLOAT8E5M2FNUZ,
}
_NAMES = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(bfloat16)": "bfloat16"}
_NAMES |= {f"tensor({name})": name for name in ("float16", "bool")}
_NAMES |= {f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_FLOAT8 = {f"tensor({name})": name for name in CARRIED if name.startswith("float8")}


class RejectedError(Exception):
    """A node that is not to be: another one is drawn."""


class Operand(Protocol):
    """What a node takes."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def array(self) -> Array: ...
    @property
    def constant(self) -> bool: ...


def onnx_type(text: str) -> str | None:
    """Return the name of an element type that models here have, of ONNX's text for it."""
    return _NAMES.get(text)


def ir_version(opset: int) -> int:
    """Return the version of the format that came with an operator set, at least 4: constants are no inputs."""
    return max(4, min(helper.find_min_ir_version_for([helper.make_opsetid("", opset)]), 13))


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Return onnxruntime's session of a model, without its optimizations."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no base but this
        raise RejectedError(str(error)) from error


def run(model: onnxruntime.InferenceSession, feeds: Mapping[str, Array]) -> list[Array]:
    """Return a model's outputs."""
    try:
        return [np.asarray(array) for array in model.run(None, dict(feeds))]
    except Exception as error:
        raise RejectedError(str(error)) from error


def evaluate(node: onnx.NodeProto, operands: Sequence[Operand], opset: int) -> list[tuple[str, Array]]:
    """Return type and values of each output of a node that has a name."""
    graph = onnx.GraphProto(name="node")
    feeds = {}
    for value in {operand.name: operand for operand in operands}.values():
        if value.constant:
            graph.initializer.append(numpy_helper.from_array(value.array, value.name))
            continue
        name = value.name
        if value.dtype in CARRIED:
            name += "_carried"
            graph.node.append(helper.make_node("Cast", [name], [value.name], to=CARRIED[value.dtype]))
        feeds[name] = value.array
        element = helper.np_dtype_to_tensor_dtype(value.array.dtype)
        graph.input.append(helper.make_tensor_value_info(name, element, value.array.shape))
    graph.node.append(node)
    outputs = [name for name in node.output if name]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version(opset))
    first = session(model)
    dtypes = [(_NAMES | _FLOAT8).get(output.type, "") for output in first.get_outputs()]
    if not all(dtypes):
        raise RejectedError("element type")
    if set(dtypes) & set(CARRIED):
        del model.graph.output[:]
        for name, dtype in zip(outputs, dtypes, strict=True):
            shown = name
            if dtype in CARRIED:
                shown = name + "_shown"
                model.graph.node.append(helper.make_node("Cast", [name], [shown], to=TensorProto.FLOAT))
            model.graph.output.append(onnx.ValueInfoProto(name=shown))
        first = session(model)
    return list(zip(dtypes, run(first, feeds), strict=True))
