"""Operators of ai.onnx.ml against onnxruntime: many nodes in one model, built once for each Target list."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from one_cpu import targets_here
from onnx import TensorProto, helper, numpy_helper

import packager
from tests.onnx_forests import FEATURES, GRID, MODES, ManyNodes, random_nodes, rows, weights_of

pytestmark = pytest.mark.slow
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
LABELS = (TensorProto.INT64, TensorProto.FLOAT)
# Rows of a block and more, so that whole blocks, the rest of one, and single rows are computed.
SIZES = (1, 7, 33, 64)
# onnxruntime's PROBIT of scores near a half loses digits.
PROBIT_TOLERANCE = 2e-3


@pytest.fixture(params=["llvm", "default"])
def targets(request: pytest.FixtureRequest) -> Sequence[str]:
    """Plain TVM, and the default Targets: trees have a loop nest of their own there."""
    return ["llvm"] if request.param == "llvm" else targets_here()


def compare(
    made: ManyNodes,
    model: onnx.ModelProto,
    x: np.ndarray,
    folder: Path,
    targets: Sequence[str],
    reference: onnx.ModelProto | None = None,
) -> None:
    """Compare all outputs with onnxruntime's of ``reference``: labels are equal, scores within 1e-5."""
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    content = (reference or model).SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    packager.build(folder / "model.onnx", folder / "model.so", dims={"N": (1, max(SIZES))}, targets=targets)
    with packager.load(folder / "model.so") as bundle:
        for size in SIZES:
            got = bundle.run({"x": x[:size]})
            for value, want in zip(model.graph.output, session.run(None, {"x": x[:size]}), strict=True):
                remark = f"{value.name}, {made.remarks[value.name]}, {size} rows"
                tolerance = PROBIT_TOLERANCE if "PROBIT" in remark else 1e-5
                assert got[value.name].dtype == want.dtype, remark
                if want.dtype == np.int64:
                    np.testing.assert_array_equal(got[value.name], want, err_msg=remark)
                else:
                    np.testing.assert_allclose(got[value.name], want, tolerance, tolerance, err_msg=remark)


def test_regressors(tmp_path: Path, targets: Sequence[str]) -> None:
    rng, made = np.random.default_rng(0), ManyNodes()
    for modes, tracks in itertools.product([*((mode,) for mode in MODES), MODES], (False, True)):
        nodes, leaves = random_nodes(rng, modes, tracks=tracks)
        weights = weights_of("target", [(*leaf, 0) for leaf in leaves], rng.normal(size=len(leaves)))
        made.add("TreeEnsembleRegressor", (modes, tracks), n_targets=1, **nodes, **weights)
    for aggregate, targets_, kind in itertools.product(("SUM", "AVERAGE", "MIN", "MAX"), (1, 3), TRANSFORMS):
        nodes, leaves = random_nodes(rng, tracks=True, trees=9, depth=3)
        every = [(*leaf, target) for leaf in leaves for target in range(targets_)]
        entries = [entry for entry in every if targets_ == 1 or rng.random() < 0.7]
        most = 0.1 if aggregate == "SUM" else 0.9
        values = rng.uniform(0.01, most, len(entries)) if kind == "PROBIT" else rng.normal(size=len(entries))
        base = {"base_values": [0.05] * targets_} if rng.random() < 0.5 else {}
        facts = {"n_targets": targets_, "aggregate_function": aggregate, "post_transform": kind, **base}
        made.add("TreeEnsembleRegressor", facts, **facts, **nodes, **weights_of("target", entries, values))
    compare(made, made.model(), rows(rng, max(SIZES)), tmp_path, targets)


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.thorough)])
def test_classifiers(every: int, tmp_path: Path, targets: Sequence[str]) -> None:
    """Two classes have rules of their own, by which of them has weights, and whether these are positive."""
    rng, made, number_of = np.random.default_rng(1), ManyNodes(), itertools.count()
    for classes, ids in (([0, 1], [0]), ([5, 7], [0]), ([5, 7], [1]), ([5, 7], [0, 1]), ([3, 4, 9], [0, 1, 2])):
        for positive, kind, base in itertools.product((False, True), TRANSFORMS[:4], (0, 1, len(classes))):
            if (len(classes) == 3 and base == 1) or next(number_of) % every:
                continue
            nodes, leaves = random_nodes(rng, trees=4, depth=3)
            entries = [(*leaf, number) for leaf in leaves for number in ids]
            values = rng.uniform(0, 0.25, len(entries)) if positive else rng.normal(size=len(entries))
            facts = {"classlabels_int64s": classes, "post_transform": kind}
            facts |= {"base_values": rng.uniform(0, 0.2, base).tolist()} if base else {}
            remark = (ids, positive, facts)
            made.add("TreeEnsembleClassifier", remark, LABELS, **facts, **nodes, **weights_of("class", entries, values))
    compare(made, made.model(), rows(rng, max(SIZES)), tmp_path, targets)


# Two trees of version 5: children that are leaves are counted apart.
SHAPE = {
    "tree_roots": [0, 3],
    "nodes_featureids": [0, 1, 2, 3, 1],
    "nodes_truenodeids": [1, 0, 2, 4, 5],
    "nodes_trueleafs": [0, 1, 1, 0, 1],
    "nodes_falsenodeids": [2, 1, 3, 4, 6],
    "nodes_falseleafs": [0, 1, 1, 1, 1],
    "leaf_targetids": [0, 1, 0, 1, 0, 1, 0],
    "n_targets": 2,
}
SETS = ((1.0, 2.0), (0.5,), (-1.0, 0.0, 2.0), (-np.inf, 1.0))


def test_version_5(tmp_path: Path, targets: Sequence[str]) -> None:
    """Leaves are apart, and modes are numbers. onnxruntime 1.31 takes SOFTMAX (1) for LOGISTIC (2), and vice versa."""
    rng, made, swapped = np.random.default_rng(2), ManyNodes(), ManyNodes()
    for aggregate, kind in itertools.product(range(4), range(4)):
        attributes = SHAPE | {
            "aggregate_function": aggregate,
            "nodes_modes": tensor(rng.integers(0, 6, 5).astype(np.uint8)),
            "nodes_splits": tensor(rng.choice(GRID[1:-1], 5)),
            "nodes_missing_value_tracks_true": rng.integers(0, 2, 5).tolist(),
            "leaf_weights": tensor(rng.normal(size=7).astype(np.float32)),
        }
        made.add("TreeEnsemble", (aggregate, kind), post_transform=kind, **attributes)
        swapped.add("TreeEnsemble", "", post_transform={1: 2, 2: 1}.get(kind, kind), **attributes)
    compare(made, made.model(5), rows(rng, max(SIZES)), tmp_path, targets, swapped.model(5))


@pytest.mark.parametrize("tracks", [0, 1])
def test_sets(tracks: int, tmp_path: Path) -> None:
    """A node may test a set. Expected is what the definition says: onnxruntime 1.31 and onnx's reference differ."""
    rng, made = np.random.default_rng(4), ManyNodes()
    weights = rng.normal(size=7).astype(np.float32)
    made.add(
        "TreeEnsemble",
        "sets",
        nodes_modes=tensor(np.array([6, 6, 6, 6, 0], np.uint8)),
        nodes_splits=tensor(np.array([0, 0, 0, 0, -1], np.float32)),
        nodes_missing_value_tracks_true=[tracks] * 5,
        membership_values=tensor(np.array([value for own in SETS for value in (*own, np.nan)], np.float32)),
        leaf_weights=tensor(weights),
        **SHAPE,
    )

    def leaf(row: np.ndarray, node: int) -> int:
        value = row[SHAPE["nodes_featureids"][node]]
        holds = (value in SETS[node] if node < len(SETS) else value <= -1) or (tracks and np.isnan(value))
        child = SHAPE["nodes_truenodeids" if holds else "nodes_falsenodeids"][node]
        return child if SHAPE["nodes_trueleafs" if holds else "nodes_falseleafs"][node] else leaf(row, child)

    x = rows(rng, max(SIZES))
    want = np.zeros((len(x), 2), np.float32)
    for number, row in enumerate(x):
        for root in SHAPE["tree_roots"]:
            found = leaf(row, root)
            want[number, SHAPE["leaf_targetids"][found]] += weights[found]
    (tmp_path / "model.onnx").write_bytes(made.model(5).SerializeToString())
    packager.build(tmp_path / "model.onnx", tmp_path / "model.so", dims={"N": (1, len(x))}, targets=targets_here())
    with packager.load(tmp_path / "model.so") as bundle:
        np.testing.assert_allclose(bundle.run({"x": x})["o0_0"], want, 1e-5, 1e-5)


def tensor(array: np.ndarray) -> onnx.TensorProto:
    """Return an attribute that is a tensor."""
    return numpy_helper.from_array(array)


def test_doubles_are_compared_as_doubles(tmp_path: Path) -> None:
    """As floats, the thresholds and the rows would be equal."""
    nodes = {"nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_featureids": [1, 0, 0]}
    nodes |= {
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
    }
    made = ManyNodes()
    values = tensor(np.array([1 + 1e-12, 0, 0]))
    weights = {"target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0]}
    weights |= {"target_weights_as_tensor": tensor(np.array([3.0, 4.0]))}
    made.add("TreeEnsembleRegressor", "double", n_targets=1, nodes_values_as_tensor=values, **nodes, **weights)
    x = np.ones((max(SIZES), FEATURES))
    x[::2, 1] += 2e-12
    compare(made, made.model(dtype=TensorProto.DOUBLE), x, tmp_path, targets_here())


def test_linear_models_support_vectors_and_preprocessing(tmp_path: Path, targets: Sequence[str]) -> None:
    rng, made = np.random.default_rng(3), ManyNodes()

    def normal(*shape: int) -> list[float]:
        return [float(value) for value in rng.normal(size=shape).reshape(-1)]

    for kind in TRANSFORMS[:4]:
        for count in (1, 3):
            facts = {"targets": count, "post_transform": kind}
            made.add("LinearRegressor", facts, coefficients=normal(count, FEATURES), intercepts=normal(count), **facts)
        for labels, count in (([4, 6], 1), ([4, 6], 2), ([1, 2, 9], 3)):
            facts = {"classlabels_ints": labels, "post_transform": kind}
            products = {"coefficients": normal(count, FEATURES), "intercepts": normal(count)}
            made.add("LinearClassifier", facts, LABELS, **products, **facts)
            lines = {"coefficients": normal(len(labels), FEATURES), "rho": normal(1)}
            none = {"kernel_type": "LINEAR", "kernel_params": [0.0] * 3}
            made.add("SVMClassifier", facts, LABELS, **lines, **facts, **none)
    for kernel, count, has_probabilities in itertools.product(("LINEAR", "POLY", "RBF", "SIGMOID"), (2, 3), (0, 1)):
        pairs = count * (count - 1) // 2
        function = {"kernel_type": kernel, "kernel_params": [0.3, 0.2, 3.0]}
        for kind in ("NONE", "LOGISTIC"):
            sigmoid = {"prob_a": [-1.0 - i for i in range(pairs)], "prob_b": normal(pairs)} if has_probabilities else {}
            facts = {"classlabels_ints": [2, 5, 7][:count], "post_transform": kind, **function, **sigmoid}
            vectors = {"support_vectors": normal(3 * count, FEATURES), "vectors_per_class": [3] * count}
            products = {"coefficients": normal(count - 1, 3 * count), "rho": normal(pairs)}
            made.add("SVMClassifier", facts, LABELS, **facts, **vectors, **products)
        vectors = {"support_vectors": normal(5, FEATURES), "n_supports": 5, "coefficients": normal(5), "rho": normal(1)}
        made.add("SVMRegressor", function, one_class=has_probabilities, **function, **vectors)
    for norm in ("MAX", "L1", "L2"):
        made.add("Normalizer", norm, norm=norm)
    made.add("Scaler", "one", offset=[0.5], scale=[2.0])
    made.add("Scaler", "each", offset=normal(FEATURES), scale=normal(FEATURES))
    made.add("Imputer", "nan", imputed_value_floats=normal(FEATURES), replaced_value_float=float("nan"))
    made.add("Imputer", "zero", imputed_value_floats=[7.0], replaced_value_float=0.0)
    made.add("Binarizer", "", threshold=0.2)
    found = {"keys_floats": [0.0, 1.0, float("nan")], "values_floats": [5.0, 6.0, 7.0], "default_float": 9.0}
    made.add("LabelEncoder", "floats", **found)
    many = {"keys_floats": [float(i) for i in range(100)], "values_int64s": list(range(100, 200))}
    made.add("LabelEncoder", "many", (TensorProto.INT64,), **many)
    x = rng.normal(size=(max(SIZES), FEATURES)).astype(np.float32)
    x[1:5] = [[0, 0, 0, 0], [0, 1, -1, 0], [-1, -2, -0.5, -3], [1, 2, 99, 100]]
    compare(made, made.model(), x, tmp_path, targets)


def test_columns_are_joined_and_categories_are_spread(tmp_path: Path) -> None:
    domain = {"domain": "ai.onnx.ml"}
    nodes = [
        helper.make_node("FeatureVectorizer", ["x", "y"], ["both"], inputdimensions=[2, 3], **domain),
        helper.make_node("OneHotEncoder", ["i"], ["spread"], cats_int64s=[3, 1, 7], zeros=1, **domain),
        helper.make_node("ArrayFeatureExtractor", ["both", "places"], ["columns"], **domain),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", width]) for name, width in (("x", 2), ("y", 3))
    ]
    inputs.append(helper.make_tensor_value_info("i", TensorProto.INT64, ["N", 2]))
    names = ("both", "spread", "columns")
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
    places = numpy_helper.from_array(np.array([4, 0]), "places")
    graph = helper.make_graph(nodes, "columns", inputs, outputs, [places])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(5, 2)).astype(np.float32), "y": rng.normal(size=(5, 3)).astype(np.float32)}
    feeds["i"] = np.array([[3, 1], [7, 7], [0, 3], [1, 1], [9, 3]])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    packager.build(path, tmp_path / "model.so", dims={"N": (1, 8)}, targets=targets_here())
    with packager.load(tmp_path / "model.so") as bundle:
        got = bundle.run(feeds)
    for name, want in zip(names, session.run(None, feeds), strict=True):
        np.testing.assert_array_equal(got[name], want)
