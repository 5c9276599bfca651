"""Class names become numbers, as far as they are constants of the model: bundles compute with numbers.

A tensor of strings that the model chooses from names in the file is replaced by their indices, and the names become
``labels`` of the output. ``ZipMap``, which makes a dictionary of each row, is left out: the output is the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from packager.frontends.onnx.graph.nodes import attributes_of, blamed, is_standard, replace_all

Labels = tuple[str, ...]
ML = "ai.onnx.ml"
# Operators that choose or move elements of their first input.
MOVES = (
    *("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Gather", "Slice", "Expand"),
    *("ArrayFeatureExtractor", "Cast"),
)
CLASSIFIERS = {
    "TreeEnsembleClassifier": "classlabels_int64s",
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
}


def number_classes(graph: onnx.GraphProto) -> dict[str, Labels]:
    """Replace class names by numbers in place; return the names of each output. Raises ModelError.

    Of an output of numbers they are what the numbers stand for, of a matrix of scores the names of its columns.
    """
    names: dict[str, Labels] = {}
    columns: dict[str, Labels] = {}
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.STRING:
            names[tensor.name] = _number_tensor(tensor)
    for node in graph.node:
        rewrite = _rewriter(node)
        if rewrite is not None:
            with blamed(node):
                rewrite(node, names, columns)
    for value in graph.output:
        if value.name in columns and value.type.WhichOneof("value") != "tensor_type":
            value.type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
        elif value.name in names:
            value.type.tensor_type.elem_type = TensorProto.INT64
    kept = [value for value in graph.value_info if value.name not in names and value.name not in columns]
    replace_all(graph.value_info, kept)
    found = names | columns
    return {value.name: found[value.name] for value in graph.output if found.get(value.name)}


_Rewrite = Callable[[onnx.NodeProto, dict[str, Labels], dict[str, Labels]], None]


def _rewriter(node: onnx.NodeProto) -> _Rewrite | None:
    if node.domain == ML:
        own: dict[str, _Rewrite] = {
            **dict.fromkeys(CLASSIFIERS, _classifier),
            "ZipMap": _zip_map,
            "LabelEncoder": _encoder,
        }
        if node.op_type in own:
            return own[node.op_type]
    if is_standard(node, "Constant"):
        return _constant
    if node.op_type in MOVES:
        return _move
    return None


def _number(strings: Sequence[Any]) -> tuple[Labels, list[int]]:
    """Return the distinct names in order of appearance, and the index of each string."""
    texts = [text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text) for text in strings]
    index = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return tuple(index), [index[text] for text in texts]


def _number_tensor(tensor: onnx.TensorProto) -> Labels:
    labels, numbers = _number(tensor.string_data)
    shape = tuple(tensor.dims)
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(numbers, np.int64).reshape(shape), tensor.name))
    return labels


def _constant(node: onnx.NodeProto, names: dict[str, Labels], _columns: dict[str, Labels]) -> None:
    for attribute in node.attribute:
        if attribute.name == "value" and attribute.t.data_type == TensorProto.STRING:
            names[node.output[0]] = _number_tensor(attribute.t)
        elif attribute.name in ("value_string", "value_strings"):
            strings = [attribute.s] if attribute.name == "value_string" else list(attribute.strings)
            names[node.output[0]], numbers = _number(strings)
            array = np.asarray(numbers, np.int64) if attribute.name == "value_strings" else np.asarray(0, np.int64)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(array)))


def _move(node: onnx.NodeProto, names: dict[str, Labels], columns: dict[str, Labels]) -> None:
    """Hand names on; a cast of names to strings does nothing."""
    first = node.input[0] if node.input else ""
    if first in names and node.op_type == "Cast":
        to = attributes_of(node).get("to")
        if to != TensorProto.STRING:
            raise ValueError("class names are cast to numbers")
        node.op_type = "Identity"
        del node.attribute[:]
    if first in names:
        names[node.output[0]] = names[first]
    elif first in columns and node.op_type == "Identity":
        columns[node.output[0]] = columns[first]


def _replace(node: onnx.NodeProto, removed: Sequence[str], **added: Any) -> None:
    replace_all(node.attribute, [attribute for attribute in node.attribute if attribute.name not in removed])
    node.attribute.extend(helper.make_attribute(name, value) for name, value in added.items())


def _classifier(node: onnx.NodeProto, names: dict[str, Labels], _columns: dict[str, Labels]) -> None:
    strings = attributes_of(node).get("classlabels_strings")
    if strings:
        labels = tuple(text.decode("utf-8", "replace") for text in strings)
        _replace(node, ["classlabels_strings"], **{CLASSIFIERS[node.op_type]: list(range(len(labels)))})
        names[node.output[0]] = labels


def _zip_map(node: onnx.NodeProto, _names: dict[str, Labels], columns: dict[str, Labels]) -> None:
    attributes = attributes_of(node)
    strings, integers = attributes.get("classlabels_strings", ()), attributes.get("classlabels_int64s", ())
    if not strings and not len(integers):
        raise ValueError("ZipMap without class labels")
    texts = [text.decode("utf-8", "replace") for text in strings] or [str(number) for number in integers]
    node.op_type, node.domain = "Identity", ""
    del node.attribute[:]
    columns[node.output[0]] = tuple(texts)


def _encoder(node: onnx.NodeProto, names: dict[str, Labels], _columns: dict[str, Labels]) -> None:
    """Look up names by number, and numbers by name."""
    attributes = attributes_of(node)
    parts = {which: _strings(attributes, which) for which in ("keys", "values", "default")}
    if parts["keys"] is not None:
        labels = names.get(node.input[0])
        if labels is None:
            return  # strings that are no class names: refused where they come from
        index = {text: number for number, text in enumerate(labels)}
        keys = [index.get(text, -1 - number) for number, text in enumerate(parts["keys"])]
        _replace(node, ["keys_strings", "keys_tensor"], keys_int64s=keys)
    elif node.input[0] in names:
        raise ValueError("numbers are looked up, but the input holds names")
    if parts["values"] is not None:
        default = (parts["default"] or ["_Unused"])[0]
        labels, numbers = _number([*parts["values"], default])
        _replace(
            node,
            ["values_strings", "values_tensor", "default_string", "default_tensor"],
            values_int64s=numbers[:-1],
            default_int64=numbers[-1],
        )
        names[node.output[0]] = labels


def _strings(attributes: dict[str, Any], which: str) -> list[str] | None:
    tensor = attributes.get(f"{which}_tensor")
    if tensor is not None and tensor.data_type == TensorProto.STRING:
        return [text.decode("utf-8", "replace") for text in tensor.string_data]
    found = attributes.get("default_string" if which == "default" else f"{which}_strings")
    if found is None:
        return None
    return [text.decode("utf-8", "replace") for text in ([found] if isinstance(found, bytes) else found)]
