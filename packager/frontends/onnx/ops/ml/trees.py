"""Converters of tree ensembles.

ONNX operators TreeEnsemble (version 5), TreeEnsembleRegressor and TreeEnsembleClassifier (1 and 3), as onnxruntime
computes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from tvm import relax

from packager.bundle.arrays import Array
from packager.frontends.onnx.ops.ml.attributes import (
    array,
    as_rows,
    class_labels,
    either,
    parameter,
    require_length,
    weight,
)
from packager.frontends.onnx.ops.ml.forest import LEAF, MEMBER, MODES, Forest, check, make_tables
from packager.frontends.onnx.ops.ml.scores import TRANSFORMS, binary, labels_of, top_class, transform
from packager.frontends.onnx.ops.operands import Convert, Converter, as_type, dtype_of, text
from packager.graph.tree_ensemble import tree_ensemble

AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")  # as TreeEnsemble numbers them
# The modes of version 5, in the order of their numbers.
MODES_5 = (*(MODES.index(f"BRANCH_{name}") for name in ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")), MEMBER)


def _tree_ensemble(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    if dtype_of(inputs[0]) not in ("float32", "float64"):
        raise ValueError(f"TreeEnsemble of {dtype_of(inputs[0])}")
    data = as_rows(builder, inputs[0])
    function = AGGREGATES[_number(attributes, "aggregate_function", 1, len(AGGREGATES))]
    kind = TRANSFORMS[_number(attributes, "post_transform", 0, len(TRANSFORMS))]
    scores = _scores(
        builder, data, _read_5(attributes, dtype_of(data)), int(attributes["n_targets"]), function, attributes
    )
    return transform(builder, scores, kind)


def _number(attributes: Mapping[str, Any], name: str, default: int, count: int) -> int:
    number = int(attributes.get(name, default))
    if not 0 <= number < count:
        raise ValueError(f"{name} is {number}, expected one of 0 to {count - 1}")
    return number


def _regressor(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    data = _input(builder, inputs[0])
    targets = int(attributes.get("n_targets", 1))
    forest = _read_3(attributes, "target", dtype_of(data))
    function, kind = text(attributes, "aggregate_function", "SUM"), text(attributes, "post_transform", "NONE")
    if function not in AGGREGATES:
        raise ValueError(f"aggregate_function is {function!r}, expected one of {', '.join(AGGREGATES)}")
    scores = _scores(builder, data, forest, targets, function, attributes)
    base = either(attributes, "base_values", np.float32)
    if base.size:
        require_length("base_values", base, targets)
        row = weight(attributes, "base_values", base.astype(dtype_of(scores))[None, :])
        scores = builder.emit(relax.op.add(scores, row))
    if targets == 1 and kind != "PROBIT":
        kind = "NONE"  # as onnxruntime: one target is not transformed otherwise
    return as_type(builder, transform(builder, scores, kind), "float32")


def _classifier(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    data = _input(builder, inputs[0])
    labels = class_labels(attributes, ("classlabels_int64s",))
    forest = _read_3(attributes, "class", dtype_of(data))
    scores = _scores(builder, data, forest, len(labels), "SUM", attributes)
    base = either(attributes, "base_values", np.float32).astype(forest.weight.dtype)
    kind = text(attributes, "post_transform", "NONE")
    if len(labels) == 2:
        chosen, scores = binary(builder, scores, labels, set(forest.target.tolist()), base, forest.weight, kind)
        return relax.Tuple([chosen, as_type(builder, scores, "float32")])
    if len(labels) < 2:
        raise ValueError(f"there are {len(labels)} classes, expected at least 2")
    if base.size:
        require_length("base_values", base, len(labels))
        scores = builder.emit(relax.op.add(scores, weight(attributes, "base_values", base[None, :])))
    chosen = labels_of(builder, top_class(builder, scores), labels)
    return relax.Tuple([chosen, as_type(builder, transform(builder, scores, kind), "float32")])


def _input(builder: Any, data: Any) -> Any:
    """Return the rows as floats: integers are compared as float32."""
    return as_rows(builder, data, "float64" if dtype_of(data) == "float64" else "float32")


def _scores(builder: Any, data: Any, forest: Forest, targets: int, function: str, attributes: Mapping[str, Any]) -> Any:
    """Return the aggregated weights of all trees, [rows, targets]."""
    features = int(data.ty.shape.values[1])
    check(forest, features, targets)
    aggregate = {"AVERAGE": "sum"}.get(function, function.lower())
    made, facts = make_tables(forest, features, targets, aggregate)
    tables = [parameter(attributes, field.name, getattr(made, field.name)) for field in fields(made)]
    scores = builder.emit(tree_ensemble(data, tables, int(made.trees[:, 1].max()), facts))
    dtype = dtype_of(scores)
    if function == "AVERAGE":
        scores = builder.emit(relax.op.divide(scores, relax.const(float(len(forest.roots)), dtype)))
    elif function != "SUM":  # a target that no leaf has is 0
        known = builder.emit(relax.op.isfinite(scores))
        scores = builder.emit(relax.op.where(known, scores, relax.const(0.0, dtype)))
    return scores


def _read_3(attributes: Mapping[str, Any], entries: str, dtype: str) -> Forest:
    """Read the nodes of versions 1 to 3, which are found by the numbers of tree and node. Raises ValueError."""
    names = ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids")
    tree, node, feature, yes, no = (array(attributes, f"nodes_{name}", np.int64) for name in names)
    threshold = either(attributes, "nodes_values", np.float32).astype(dtype)
    modes = [_text(mode) for mode in attributes.get("nodes_modes", ())]
    if unknown := sorted(set(modes) - set(MODES)):
        raise ValueError(f"a node has the mode {unknown[0]!r}")
    mode = np.asarray([MODES.index(mode) for mode in modes], np.int64)
    tracks = array(attributes, "nodes_missing_value_tracks_true", np.int64)
    tracks = tracks if tracks.size else np.zeros_like(tree)
    given = (node, feature, yes, no, threshold, mode, tracks)
    for name, found in zip((*names[1:], "values", "modes", "missing_value_tracks_true"), given, strict=True):
        require_length(f"nodes_{name}", found, len(tree))
    place = _places(tree, node, "nodes_nodeids")
    inner = mode != LEAF
    children = [np.where(inner, place(tree, np.where(inner, child, node)), 0) for child in (yes, no)]
    parts = [array(attributes, f"{entries}_{name}", np.int64) for name in ("treeids", "nodeids", "ids")]
    weights = either(attributes, f"{entries}_weights", np.float32).astype(dtype)
    for name, part in zip(("treeids", "nodeids", "ids"), parts, strict=True):
        require_length(f"{entries}_{name}", part, len(weights))
    owner = place(parts[0], parts[1])
    _, roots = np.unique(tree, return_index=True)
    return Forest(
        mode, feature, threshold, children[0], children[1], tracks != 0, np.sort(roots), owner, parts[2], weights, {}
    )


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _places(tree: Array, node: Array, what: str) -> Any:
    """Return the function from numbers of trees and nodes to indices. Raises ValueError for two of one number."""
    pairs = {pair: index for index, pair in enumerate(zip(tree.tolist(), node.tolist(), strict=True))}
    if len(pairs) < len(tree):
        raise ValueError(f"{what} has the same number twice in a tree")

    def find(trees: Array, nodes: Array) -> Array:
        try:
            found = [pairs[pair] for pair in zip(trees.tolist(), nodes.tolist(), strict=True)]
        except KeyError as error:
            raise ValueError(f"tree {error.args[0][0]} has no node {error.args[0][1]}") from None
        return np.asarray(found, np.int64)

    return find


def _read_5(attributes: Mapping[str, Any], dtype: str) -> Forest:
    """Read the nodes of version 5, where leaves have numbers of their own: here they follow the nodes."""
    names = ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")
    feature, yes, no, yes_leaf, no_leaf = (array(attributes, f"nodes_{name}", np.int64) for name in names)
    mode, threshold = array(attributes, "nodes_modes", np.int64), array(attributes, "nodes_splits").astype(dtype)
    tracks = array(attributes, "nodes_missing_value_tracks_true", np.int64)
    tracks = tracks if tracks.size else np.zeros_like(feature)
    given = (yes, no, yes_leaf, no_leaf, mode, threshold, tracks)
    for name, found in zip((*names[1:], "modes", "splits", "missing_value_tracks_true"), given, strict=True):
        require_length(f"nodes_{name}", found, len(feature))
    target, weights = array(attributes, "leaf_targetids", np.int64), array(attributes, "leaf_weights").astype(dtype)
    require_length("leaf_targetids", target, len(weights))
    if mode.size and not (mode.min() >= 0 and mode.max() < len(MODES_5)):
        raise ValueError(f"a node has the mode {mode.max()}")
    count, leaves = len(feature), len(weights)
    for child, is_leaf in ((yes, yes_leaf), (no, no_leaf)):
        if ((child < 0) | (child >= np.where(is_leaf != 0, leaves, count))).any():
            raise ValueError("a child is a node or leaf that does not exist")
    roots = array(attributes, "tree_roots", np.int64)
    if roots.size and not (roots.min() >= 0 and roots.max() < count):
        raise ValueError(f"a tree begins at node {roots.max()} of {count}")
    mode = np.asarray(MODES_5, np.int64)[mode]
    members = _member_sets(mode, array(attributes, "membership_values").astype(dtype))

    def with_leaves(own: Array, filler: Any) -> Array:
        return np.concatenate([own, np.full(leaves, filler, own.dtype)])

    return Forest(
        mode=with_leaves(mode, LEAF),
        feature=with_leaves(feature, 0),
        threshold=with_leaves(threshold, 0),
        yes=with_leaves(yes + np.where(yes_leaf != 0, count, 0), 0),
        no=with_leaves(no + np.where(no_leaf != 0, count, 0), 0),
        tracks=with_leaves(tracks != 0, False),
        roots=roots,
        owner=count + np.arange(leaves),
        target=target,
        weight=weights,
        members=members,
    )


def _member_sets(modes: Array, values: Array) -> dict[int, list[float]]:
    """Return the sets of the nodes with BRANCH_MEMBER: stored in node order, each terminated by a NaN."""
    sets: dict[int, list[float]] = {}
    rest = iter(values.tolist())
    for node in np.flatnonzero(modes == MEMBER).tolist():
        sets[node] = []
        for value in rest:
            if np.isnan(value):
                break
            sets[node].append(value)
        if not sets[node]:
            raise ValueError(f"node {node} tests membership of an empty set")
    return sets


CONVERTERS: Mapping[str, Converter] = {
    "TreeEnsemble": _tree_ensemble,
    "TreeEnsembleRegressor": _regressor,
    "TreeEnsembleClassifier": _classifier,
}
