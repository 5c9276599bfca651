"""Results whose size depends on data: bounded, zero beyond a count, and outputs of the model only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from packager.errors import ModelError
from tests.unit.build.onnx_nodes import FLOAT, INT64, model_of, run_bundle


def test_non_zero_has_room_for_all_and_a_count(tmp_path: Path) -> None:
    model = model_of([helper.make_node("NonZero", ["x"], ["where"])], {"x": (np.float32, (2, 3))}, {"where": INT64})
    x = np.array([[0, 2, 0], [np.nan, 0, -1]], np.float32)
    made = run_bundle(model, {"x": x}, tmp_path)
    assert made["where"].shape == (2, 6)
    assert made["where.count"] == 3
    np.testing.assert_array_equal(made["where"][:, :3], np.nonzero(x))
    assert not made["where"][:, 3:].any()


def test_unique_in_order_of_appearance(tmp_path: Path) -> None:
    node = helper.make_node("Unique", ["x"], ["y", "", "inverse"], sorted=0)
    model = model_of([node], {"x": (np.float32, (6,))}, {"y": FLOAT, "inverse": INT64})
    x = np.array([5, 3, 5, 9, 3, 1], np.float32)
    made = run_bundle(model, {"x": x}, tmp_path)
    assert set(made) == {"y", "inverse", "y.count"}
    assert made["y"][: int(made["y.count"])].tolist() == [5, 3, 9, 1]
    np.testing.assert_array_equal(made["y"][made["inverse"]], x)


def test_suppression_keeps_the_best_of_overlapping_boxes(tmp_path: Path) -> None:
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap"], ["kept"])
    constants = {"most": np.array(3, np.int64), "overlap": np.array(0.5, np.float32)}
    inputs = {"boxes": (np.float32, (1, 4, 4)), "scores": (np.float32, (1, 1, 4))}
    model = model_of([node], inputs, {"kept": INT64}, constants)
    boxes = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [5, 5, 6, 6], [6, 6, 5, 5]]], np.float32)
    made = run_bundle(model, {"boxes": boxes, "scores": np.array([[[0.5, 0.9, 0.2, 0.3]]], np.float32)}, tmp_path)
    assert made["kept"].tolist() == [[0, 0, 1], [0, 0, 3], [0, 0, 0]]
    assert made["kept.count"] == 2


def test_nodes_that_take_such_a_result_are_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["where"]), helper.make_node("Transpose", ["where"], ["y"])]
    model = model_of(nodes, {"x": (np.float32, (2, 3))}, {"y": INT64})
    with pytest.raises(ModelError, match=r"NonZero.*depends on data"):
        run_bundle(model, {"x": np.zeros((2, 3), np.float32)}, tmp_path)
