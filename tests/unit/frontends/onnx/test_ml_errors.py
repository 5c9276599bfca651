"""Malformed attributes of ai.onnx.ml operators are errors that name the node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from packager.errors import ModelError, PackagerError
from packager.frontends.dims import DimRequest
from packager.frontends.onnx.load import load
from tests.onnx_forests import ManyNodes

TREE: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [1, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_values": [0.5, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
    "target_treeids": [0, 0],
    "target_nodeids": [1, 2],
    "target_ids": [0, 0],
    "target_weights": [1.0, 2.0],
    "n_targets": 1,
}
SVM: dict[str, Any] = {
    "kernel_type": "RBF",
    "kernel_params": [0.5, 0.0, 3.0],
    "support_vectors": [0.0] * 16,
    "vectors_per_class": [2, 2],
    "coefficients": [1.0] * 4,
    "rho": [0.1],
    "classlabels_ints": [0, 1],
}
LINE: dict[str, Any] = {"coefficients": [1.0] * 8, "intercepts": [0.0, 0.0], "classlabels_ints": [0, 1]}
BOTH = (TensorProto.INT64, TensorProto.FLOAT)
CASES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    *(
        ("TreeEnsembleRegressor", TREE, {name: TREE[name][:-1]}, "elements, expected")
        for name in TREE
        if name.startswith("nodes_") and name != "nodes_treeids"
    ),
    *(("TreeEnsembleRegressor", TREE, {f"target_{name}": [0]}, "expected 2") for name in ("treeids", "nodeids", "ids")),
    ("TreeEnsembleRegressor", TREE, {"nodes_truenodeids": [9, 0, 0]}, "tree 0 has no node 9"),
    ("TreeEnsembleRegressor", TREE, {"nodes_truenodeids": [0, 0, 0]}, "circle"),
    ("TreeEnsembleRegressor", TREE, {"nodes_nodeids": [0, 1, 1]}, "same number twice"),
    ("TreeEnsembleRegressor", TREE, {"nodes_featureids": [4, 0, 0]}, "feature 4 of 4"),
    ("TreeEnsembleRegressor", TREE, {"nodes_featureids": [-1, 0, 0]}, "feature -1 of 4"),
    ("TreeEnsembleRegressor", TREE, {"nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAVE"]}, "mode 'LEAVE'"),
    ("TreeEnsembleRegressor", TREE, {"nodes_values": [float("nan"), 0.0, 0.0]}, "a threshold is NaN"),
    ("TreeEnsembleRegressor", TREE, {"nodes_missing_value_tracks_true": [1]}, "expected 3"),
    ("TreeEnsembleRegressor", TREE, {"target_nodeids": [1, 7]}, "tree 0 has no node 7"),
    ("TreeEnsembleRegressor", TREE, {"target_ids": [0, 1]}, "target 1 of 1"),
    ("TreeEnsembleRegressor", TREE, {"n_targets": 0}, "0 targets"),
    ("TreeEnsembleRegressor", TREE, {"n_targets": 1 << 40}, "targets"),
    ("TreeEnsembleRegressor", TREE, {"aggregate_function": "MEAN"}, "'MEAN'"),
    ("TreeEnsembleRegressor", TREE, {"post_transform": "COSINE", "n_targets": 2}, "'COSINE'"),
    ("TreeEnsembleRegressor", TREE, {"base_values": [1.0, 2.0]}, "base_values has 2 elements, expected 1"),
    ("TreeEnsembleRegressor", TREE, {key: [] for key in TREE} | {"n_targets": 1}, "there are no trees"),
    ("SVMClassifier", SVM, {"support_vectors": [0.0] * 15}, "support_vectors has 15 elements, expected 16"),
    ("SVMClassifier", SVM, {"coefficients": [1.0]}, "coefficients has 1 elements"),
    ("SVMClassifier", SVM, {"rho": [0.1, 0.2]}, "rho has 2 elements, expected 1"),
    ("SVMClassifier", SVM, {"vectors_per_class": [5, -1]}, "below 0"),
    ("SVMClassifier", SVM, {"vectors_per_class": [4]}, "vectors_per_class has 1 elements, expected 2"),
    ("SVMClassifier", SVM, {"kernel_type": "COSINE"}, "'COSINE'"),
    ("SVMClassifier", SVM, {"kernel_params": [1.0]}, "kernel_params has 1 elements"),
    ("SVMClassifier", SVM, {"prob_a": [1.0]}, "prob_b has 0 elements, expected 1"),
    ("LinearClassifier", LINE, {"coefficients": [1.0] * 7}, "coefficients has 7 elements, expected 8"),
    ("LinearClassifier", LINE, {"intercepts": []}, "there are 0 targets"),
    ("LinearClassifier", LINE, {"classlabels_ints": [1, 2, 3]}, "classlabels has 3 elements, expected 2"),
    ("Scaler", {"offset": [0.0], "scale": [1.0]}, {"scale": [1.0, 2.0]}, "scale has 2 elements, expected 4"),
    ("Imputer", {"imputed_value_floats": [0.0]}, {"imputed_value_floats": [0.0] * 3}, "has 3 elements, expected 4"),
    ("Normalizer", {}, {"norm": "L3"}, "'L3'"),
    (
        "LabelEncoder",
        {"keys_floats": [1.0], "values_floats": [2.0]},
        {"values_floats": [1.0, 2.0]},
        "values has 2 elements",
    ),
    ("DictVectorizer", {}, {"int64_vocabulary": [1]}, ""),
    ("OneHotEncoder", {"cats_strings": ["a"]}, {}, "strings"),
]


def imported(operator: str, attributes: dict[str, Any], folder: Path) -> None:
    """Import a model of one node."""
    made = ManyNodes()
    kinds = BOTH if operator.endswith("Classifier") else (TensorProto.FLOAT,)
    made.add(operator, "", kinds, **attributes)
    made.nodes[0].name = "suspect"
    (folder / "model.onnx").write_bytes(made.model().SerializeToString())
    load(folder / "model.onnx", {"N": DimRequest(1, 8)}, "model")


@pytest.mark.parametrize(
    ("operator", "right"), [("TreeEnsembleRegressor", TREE), ("SVMClassifier", SVM), ("LinearClassifier", LINE)]
)
def test_the_cases_begin_with_what_is_right(operator: str, right: dict[str, Any], tmp_path: Path) -> None:
    imported(operator, right, tmp_path)


@pytest.mark.parametrize(("operator", "right", "wrong", "detail"), CASES)
def test_malformed_attributes(
    operator: str, right: dict[str, Any], wrong: dict[str, Any], detail: str, tmp_path: Path
) -> None:
    attributes = {name: value for name, value in (right | wrong).items() if value != []}
    with pytest.raises(PackagerError) as error:
        imported(operator, attributes, tmp_path)
    assert error.value.exit_code in (2, 3)
    assert "suspect" in error.value.render()
    assert detail in error.value.render()


@pytest.mark.parametrize("damage", [lambda a: a[::-1], lambda a: a[:1] * len(a), lambda a: [x - 5 for x in a]])
@pytest.mark.parametrize("name", [name for name in TREE if name.endswith("ids")])
def test_damaged_trees_are_clear_errors_or_other_trees(name: str, damage: Callable[[Any], Any], tmp_path: Path) -> None:
    message = "suspect"
    try:
        imported("TreeEnsembleRegressor", TREE | {name: damage(TREE[name])}, tmp_path)
    except ModelError as error:
        message = error.render()
    assert "suspect" in message


def test_numbers_looked_up_where_names_are_given(tmp_path: Path) -> None:
    classifier = {**LINE, "classlabels_strings": ["a", "b"]}
    del classifier["classlabels_ints"]
    nodes = [
        helper.make_node("LinearClassifier", ["x"], ["label", "scores"], "line", domain="ai.onnx.ml", **classifier),
        helper.make_node(
            "LabelEncoder", ["label"], ["y"], "suspect", None, "ai.onnx.ml", keys_int64s=[1], values_int64s=[2]
        ),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, ["N"])
    graph = helper.make_graph(nodes, "names", [x], [y])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
    with pytest.raises(ModelError, match="suspect"):
        load(path, {"N": DimRequest(1, 8)}, "model")
