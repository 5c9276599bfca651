"""Converters of ``ai.onnx.ml`` operators on numeric tensors: tree ensembles, thresholds, lookup tables, gathers.

ONNX operators TreeEnsemble (version 5), Binarizer (1), ArrayFeatureExtractor (1) and LabelEncoder (4). Strings are
refused.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import relax, te, tirx

from packager.bundle.arrays import Array
from packager.frontends.onnx.ops.operands import Convert, Converter, dtype_of, extents, tensor_constant

# Comparison modes of a node (TreeEnsemble's nodes_modes).
COMPARISONS = dict(enumerate((operator.le, operator.lt, operator.ge, operator.gt, operator.eq, operator.ne)))
BRANCH_MEMBER = 6
AGGREGATES = {0: "average", 1: "sum", 2: "minimum", 3: "maximum"}


def _array(attributes: Mapping[str, Any], name: str) -> Array:
    value = attributes.get(name, ())
    return numpy_helper.to_array(value) if hasattr(value, "data_type") else np.asarray(value)


def _tree_ensemble(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """Descend all trees in parallel, one level at a time: [rows, trees] node indices; then sum up the leaves."""
    data, dtype = inputs[0], dtype_of(inputs[0])
    names = ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")
    feature, yes, no, yes_leaf, no_leaf = (_array(attributes, f"nodes_{name}").astype(np.int64) for name in names)
    modes, values = _array(attributes, "nodes_modes").astype(np.int64), _array(attributes, "nodes_splits").astype(dtype)
    missing = _array(attributes, "nodes_missing_value_tracks_true")
    tracks = missing.astype(np.int64) if missing.size else np.zeros_like(feature)
    roots = _array(attributes, "tree_roots").astype(np.int64)
    targets = int(attributes["n_targets"])
    leaf_target = _array(attributes, "leaf_targetids").astype(np.int64)
    leaf_weight = _array(attributes, "leaf_weights").astype(dtype)
    aggregate = AGGREGATES[attributes.get("aggregate_function", 1)]
    if attributes.get("post_transform", 0) != 0 or aggregate != "sum":
        raise ValueError(
            f"TreeEnsemble with aggregate {aggregate} and post_transform {attributes.get('post_transform')}"
        )
    # Nodes and leaves share one numbering; leaves follow the nodes and are their own successors.
    number, leaves = len(feature), len(leaf_target)
    after_yes = np.concatenate([yes + yes_leaf * number, np.arange(number, number + leaves)])
    after_no = np.concatenate([no + no_leaf * number, np.arange(number, number + leaves)])
    members = _member_sets(modes, _array(attributes, "membership_values").astype(dtype))
    depth = _depth(roots, after_yes, after_no, number)
    emit, op = builder.emit, relax.op
    tests = [np.concatenate([table, np.zeros(leaves, table.dtype)]) for table in (feature, modes, values, tracks)]
    member_start = np.zeros((number + leaves, 2), np.int64)
    flat: list[float] = []
    for node, own in members.items():
        member_start[node] = (len(flat), len(flat) + len(own))
        flat += own
    longest = max((len(own) for own in members.values()), default=0)
    tables = [tensor_constant(table) for table in (*tests, after_yes, after_no, member_start)]
    tables.append(tensor_constant(np.asarray([*flat, 0.0], dtype)))
    rows = extents(data)[0]

    def level(
        x: Any, at: Any, f: Any, mode: Any, split: Any, track: Any, y: Any, n: Any, start: Any, member: Any
    ) -> Any:
        def follow(r: Any, t: Any) -> Any:
            node = at(r, t)
            value, bound, kind = x(r, f(node)), split(node), mode(node)
            found = tirx.const(0, "bool")
            for offset in range(longest):
                member_index = start(node, 0) + tirx.const(offset, "int64")
                held = tirx.all(member_index < start(node, 1), member(tirx.min(member_index, len(flat))) == value)
                found = tirx.any(found, held)
            result = found
            for which, test in reversed(COMPARISONS.items()):
                result = tirx.Select(kind == which, test(value, bound), result)
            result = tirx.any(result, tirx.all(track(node) == 1, tirx.isnan(value)))
            return tirx.Select(result, y(node), n(node))

        return te.compute(at.shape, follow, name="tree_level")

    position = emit(op.broadcast_to(tensor_constant(roots[None, :]), [rows, len(roots)]))
    for _ in range(depth):
        position = emit(builder.call_te(level, data, position, *tables, primfunc_name_hint="tree_level"))

    def total(at: Any, target: Any, weight: Any) -> Any:
        tree = te.reduce_axis((0, len(roots)), name="tree")

        def element(r: Any, k: Any) -> Any:
            leaf = tirx.max(at(r, tree) - number, 0)
            return te.sum(tirx.Select(target(leaf) == k.astype("int64"), weight(leaf), tirx.const(0, dtype)), axis=tree)

        return te.compute((at.shape[0], targets), element, name="tree_sum")

    return builder.call_te(total, position, tensor_constant(leaf_target), tensor_constant(leaf_weight))


def _member_sets(modes: Array, values: Array) -> dict[int, list[float]]:
    """Return the sets of the nodes with BRANCH_MEMBER: stored in node order, each terminated by a NaN."""
    sets: dict[int, list[float]] = {}
    rest = values.tolist()
    for node in np.flatnonzero(modes == BRANCH_MEMBER).tolist():
        own: list[float] = []
        while rest and not np.isnan(value := rest.pop(0)):
            own.append(value)
        sets[node] = own
    return sets


def _depth(roots: Array, yes: Array, no: Array, nodes: int) -> int:
    """Return the depth of the deepest leaf. Raises ValueError if the nodes do not form trees."""
    level, depth = set(roots.tolist()), 0
    while level := {int(after[node]) for node in level if node < nodes for after in (yes, no)}:
        depth += 1
        if depth > nodes:
            raise ValueError("the nodes of TreeEnsemble do not form trees")
    return depth


def _binarizer(_builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    dtype = dtype_of(inputs[0])
    above = _builder.emit(relax.op.greater(inputs[0], relax.const(attributes.get("threshold", 0.0), dtype)))
    return relax.op.astype(above, dtype)


def _extract(builder: Any, inputs: Sequence[Any], _attributes: dict[str, Any], _convert: Convert) -> Any:
    """Take columns of the last axis; a vector is treated as one row."""
    data, indices = inputs
    flat = builder.emit(relax.op.reshape(indices, [-1]))
    if data.ty.ndim == 1:
        data = builder.emit(relax.op.expand_dims(data, 0))
    return relax.op.take(data, flat, axis=data.ty.ndim - 1)


def _label_encoder(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    found = {}
    for which in ("keys", "values"):
        for kind in ("tensor", "int64s", "floats"):
            if f"{which}_{kind}" in attributes:
                found[which] = _array(attributes, f"{which}_{kind}")
    if len(found) < 2 or any(array.dtype.kind not in "biuf" for array in found.values()):
        raise ValueError("LabelEncoder of strings")
    keys, values = found["keys"].astype(dtype_of(inputs[0])), found["values"]
    values = values.astype(
        {"i": np.int64, "f": values.dtype if values.dtype.itemsize <= 8 else np.float32}[values.dtype.kind]
    )
    if "values_floats" in attributes:
        values = values.astype(np.float32)
    default: Any = (
        attributes.get("default_float", -0.0) if values.dtype.kind == "f" else attributes.get("default_int64", -1)
    )
    if "default_tensor" in attributes:
        default = _array(attributes, "default_tensor").item()
    dtype = str(values.dtype)

    def compute(x: Any, known: Any, label: Any) -> Any:
        def element(*i: Any) -> Any:
            result = tirx.const(default, dtype)
            for number in reversed(range(len(keys))):  # the first of duplicate keys wins
                same = x(*i) == known[number]
                if keys.dtype.kind == "f" and np.isnan(keys[number]):
                    same = tirx.isnan(x(*i))
                result = tirx.Select(same, label[number], result)
            return result

        return te.compute(x.shape, element, name="label_encoder")

    if len(keys) > 64:
        raise ValueError(f"LabelEncoder of {len(keys)} keys")
    return builder.call_te(compute, inputs[0], tensor_constant(keys), tensor_constant(values))


CONVERTERS: Mapping[str, Converter] = {
    "TreeEnsemble": _tree_ensemble,
    "Binarizer": _binarizer,
    "ArrayFeatureExtractor": _extract,
    "LabelEncoder": _label_encoder,
}
