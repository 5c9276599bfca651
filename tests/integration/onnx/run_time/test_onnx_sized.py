"""Results whose size depends on data have the shapes that onnxruntime gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.onnx_nodes import FLOAT, INT64, check_runs, model_of, run_bundle

pytestmark = pytest.mark.slow


def test_non_zero_of_nan(tmp_path: Path) -> None:
    model = model_of([helper.make_node("NonZero", ["x"], ["where"])], {"x": (np.float32, (2, 3))}, {"where": INT64})
    x = np.array([[0, 2, 0], [np.nan, 0, -1]], np.float32)
    made = run_bundle(model, {"x": x}, tmp_path)
    np.testing.assert_array_equal(made["where"], np.nonzero(x))


def test_unique_in_order_of_appearance(tmp_path: Path) -> None:
    node = helper.make_node("Unique", ["x"], ["y", "", "inverse"], sorted=0)
    model = model_of([node], {"x": (np.float32, (6,))}, {"y": FLOAT, "inverse": INT64})
    x = np.array([5, 3, 5, 9, 3, 1], np.float32)
    made = run_bundle(model, {"x": x}, tmp_path)
    assert set(made) == {"y", "inverse"}
    assert made["y"].tolist() == [5, 3, 9, 1]
    np.testing.assert_array_equal(made["y"][made["inverse"]], x)


def test_suppression_keeps_the_best_of_overlapping_boxes(tmp_path: Path) -> None:
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap"], ["kept"])
    constants = {"most": np.array(3, np.int64), "overlap": np.array(0.5, np.float32)}
    inputs = {"boxes": (np.float32, (1, 4, 4)), "scores": (np.float32, (1, 1, 4))}
    model = model_of([node], inputs, {"kept": INT64}, constants)
    boxes = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [5, 5, 6, 6], [6, 6, 5, 5]]], np.float32)
    made = run_bundle(model, {"boxes": boxes, "scores": np.array([[[0.5, 0.9, 0.2, 0.3]]], np.float32)}, tmp_path)
    assert made["kept"].tolist() == [[0, 0, 1], [0, 0, 3]]


node = helper.make_node


def test_boxes_that_are_kept_are_gathered(tmp_path: Path) -> None:
    """As detectors end: the indices of the boxes, their coordinates, classes and scores."""
    constants = {
        **{"most": np.array(3, np.int64), "overlap": np.array(0.5, np.float32), "least": np.array(0.7, np.float32)},
        **{"two": np.array([2], np.int64), "one": np.array([1], np.int64), "zero": np.array([0], np.int64)},
        **{"three": np.array([3], np.int64), "flat": np.array([-1], np.int64), "pairs": np.array([-1, 2, 2])},
        **{"batch": np.array([0]), "weight": np.ones((4, 5), np.float32)},
    }
    nodes = [
        node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["kept"]),
        node("Slice", ["kept", "two", "three", "one"], ["column"]),
        node("Squeeze", ["column", "one"], ["box"]),
        node("Gather", ["boxes", "box"], ["taken"], axis=1),
        node("Squeeze", ["taken", "batch"], ["coordinates"]),
        node("Slice", ["kept", "one", "two", "one"], ["class64"]),
        node("Cast", ["class64"], ["class"], to=FLOAT),
        node("GatherND", ["scores", "kept"], ["score"]),
        node("Unsqueeze", ["score", "one"], ["score2"]),
        node("Concat", ["coordinates", "score2", "class"], ["detections"], axis=1),
        node("Reshape", ["coordinates", "pairs"], ["corners"]),
        node("MatMul", ["coordinates", "weight"], ["features"]),
        node("Softmax", ["features"], ["soft"], axis=-1),
        node("ReduceMax", ["score2", "zero"], ["best"], keepdims=0),
        node("ReduceSum", ["detections"], ["total"], keepdims=0),
        node("ReduceMax", ["detections", "one"], ["rows"], keepdims=0),
        node("Shape", ["detections"], ["shape"]),
        node("Greater", ["score2", "least"], ["good"]),
        node("Reshape", ["good", "flat"], ["good1"]),
        node("Compress", ["coordinates", "good1"], ["again"], axis=0),
        node("Slice", ["detections", "zero", "two", "zero"], ["two_best"]),
    ]
    outputs = dict.fromkeys(
        ["detections", "corners", "two_best", "soft", "best", "total", "rows", "again", "coordinates"], FLOAT
    )
    inputs = {"boxes": (np.float32, (1, 6, 4)), "scores": (np.float32, (1, 2, 6))}
    model = model_of(nodes, inputs, {**outputs, "shape": INT64}, constants)
    generator = np.random.default_rng(0)
    corner = generator.random((1, 6, 2)).astype(np.float32)
    feeds = {
        "boxes": np.concatenate([corner, corner + 0.3], -1),
        "scores": generator.random((1, 2, 6)).astype(np.float32),
    }
    check_runs(model, [feeds, {**feeds, "scores": np.ones((1, 2, 6), np.float32)}], tmp_path)


def test_places_that_are_not_zero(tmp_path: Path) -> None:
    nodes = [
        node("NonZero", ["x"], ["where"]),
        node("Transpose", ["where"], ["rows"]),
        node("GatherND", ["x", "rows"], ["values"]),
        node("Mul", ["values", "values"], ["squares"]),
        node("NonZero", ["squares"], ["again"]),
        node("Gather", ["table", "where"], ["looked"]),
        node("ReduceSum", ["looked", "last"], ["sums"], keepdims=0),
    ]
    outputs = {"rows": INT64, "squares": FLOAT, "again": INT64, "sums": FLOAT}
    constants = {"table": np.arange(12, dtype=np.float32).reshape(6, 2), "last": np.array([2])}
    model = model_of(nodes, {"x": (np.float32, (2, 3))}, outputs, constants)
    some = np.array([[0, 2, 0], [4, 0, -1]], np.float32)
    check_runs(model, [{"x": x} for x in (some, some * 0, some + 1)], tmp_path)


def test_a_product_of_regions_keeps_their_number(tmp_path: Path) -> None:
    nodes = [
        node("Compress", ["boxes", "chosen"], ["rois"], axis=0),
        node("Slice", ["rois", "zero", "one", "one"], ["first"]),
        node("Mul", ["first", "nothing"], ["batch"]),
        node("Squeeze", ["batch", "one"], ["batch1"]),
        node("Cast", ["batch1"], ["batch64"], to=INT64),
        node("RoiAlign", ["image", "rois", "batch64"], ["cut"], output_height=2, output_width=2, sampling_ratio=2),
        node("Conv", ["cut", "kernel"], ["convolved"]),
        node("Flatten", ["convolved"], ["flat"]),
        node("Gemm", ["flat", "weight", "bias"], ["y"], transB=1),
    ]
    generator = np.random.default_rng(0)
    shapes = {"kernel": (3, 2, 1, 1), "weight": (5, 12), "bias": (5,)}
    constants = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    constants |= {"zero": np.array([0]), "one": np.array([1]), "nothing": np.zeros(1, np.float32)}
    inputs = {"boxes": (np.float32, (4, 4)), "chosen": (np.bool_, (4,)), "image": (np.float32, (1, 2, 6, 6))}
    model = model_of(nodes, inputs, {"y": FLOAT}, constants)
    corner = generator.random((4, 2)) * 3
    feeds = {
        "boxes": np.concatenate([corner, corner + 2], -1).astype(np.float32),
        "chosen": np.array([True, False, True, True]),
        "image": generator.standard_normal((1, 2, 6, 6)).astype(np.float32),
    }
    nothing = {**feeds, "chosen": np.zeros(4, np.bool_)}
    check_runs(model, [feeds, nothing, {**feeds, "chosen": np.ones(4, np.bool_)}], tmp_path)


CHAINS = {
    "concatenation along it": [node("Concat", ["where", "where"], ["y"], axis=1)],
    "a row reduction along it": [node("Softmax", ["wide"], ["y"])],
    "a mean of all": [node("ReduceMean", ["wide"], ["y"], keepdims=0)],
    "an element of it": [node("Gather", ["where", "zero"], ["y"], axis=0)],
    "merged with others": [node("Reshape", ["where", "flat"], ["y"])],
    "a slice from within": [node("Slice", ["where", "one", "flat", "one"], ["y"])],
    "scattered by it": [node("ScatterElements", ["table", "where", "where"], ["y"], axis=1, reduction="max")],
    "a quotient": [node("Add", ["where", "one"], ["more"]), node("Div", ["where", "more"], ["y"])],
    "distinct elements": [node("Unique", ["where"], ["y"])],
    "a product over it": [
        node("Transpose", ["wide"], ["columns"], perm=[1, 0]),
        node("MatMul", ["wide", "columns"], ["y"]),
    ],
    "padding": [node("Pad", ["wide", "pads"], ["y"])],
    "cumulative sums": [node("CumSum", ["wide", "axis"], ["y"])],
}


@pytest.mark.parametrize("what", CHAINS)
def test_what_takes_such_a_result(what: str, tmp_path: Path) -> None:
    constants = {
        "one": np.array([1]),
        "zero": np.array([0]),
        "flat": np.array([-1]),
        "table": np.zeros((2, 6), np.int64),
        "pads": np.array([0, 1, 0, 2]),
        "axis": np.array(1),
    }
    nodes = [node("NonZero", ["x"], ["where"]), node("Cast", ["where"], ["wide"], to=FLOAT), *CHAINS[what]]
    kind = FLOAT if {"wide", "columns"} & {name for item in CHAINS[what] for name in item.input} else INT64
    model = model_of(nodes, {"x": (np.float32, (2, 3))}, {"y": kind}, constants)
    some = np.array([[0, 2, 0], [4, 0, -1]], np.float32)
    check_runs(model, [{"x": x} for x in (some, some + 1)], tmp_path)
