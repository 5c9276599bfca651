"""Scans, selections, integers and transforms against onnxruntime or numpy, with a symbolic extent."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import packager
from packager.bundle.arrays import Array
from tests.onnx_nodes import FLOAT, INT64, check_with_onnxruntime, model_of, run_bundle

RNG = np.random.default_rng(5)


@pytest.mark.slow
def test_scans_and_the_best_elements_of_a_symbolic_batch(tmp_path: Path) -> None:
    constants = {"last": np.array(1, np.int64), "first": np.array(0, np.int64), "k": np.array([4], np.int64)}
    nodes = [
        helper.make_node("CumSum", ["x", "last"], ["long"], exclusive=1),
        helper.make_node("CumSum", ["x", "last"], ["back"], reverse=1),
        helper.make_node("CumSum", ["x", "first"], ["short"]),
        helper.make_node("TopK", ["x", "k"], ["most", "most_at"]),
        helper.make_node("TopK", ["x", "k"], ["least", "least_at"], largest=0, axis=1),
        helper.make_node("IsInf", ["x"], ["below"], detect_positive=0),
    ]
    outputs = dict.fromkeys(("long", "back", "short", "most", "least"), FLOAT)
    outputs |= {"most_at": INT64, "least_at": INT64, "below": TensorProto.BOOL}
    model = model_of(nodes, {"x": (np.float32, ("n", 200))}, outputs, constants)
    x = RNG.integers(-9, 9, (3, 200)).astype(np.float32)  # small integers: sums are exact, and many are equal
    check_with_onnxruntime(model, {"x": x}, tmp_path, dims={"n": (1, 4)})


@pytest.mark.slow
def test_a_list_of_the_best_of_many(tmp_path: Path) -> None:
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "at"], axis=0)]
    constants = {"k": np.array([7], np.int64)}
    model = model_of(nodes, {"x": (np.float32, (3000, "n"))}, {"y": FLOAT, "at": INT64}, constants)
    x = RNG.integers(-500, 500, (3000, 2)).astype(np.float32)
    check_with_onnxruntime(model, {"x": x}, tmp_path, dims={"n": (1, 4)})


@pytest.mark.slow
def test_transforms_and_determinants(tmp_path: Path) -> None:
    constants = {"step": np.array(5, np.int64), "length": np.array(12, np.int64), "axis": np.array(1, np.int64)}
    constants |= {"image": np.array([6, 5], np.int64), "block": np.array([2, 2], np.int64)}
    nodes = [
        helper.make_node("DFT", ["signal", "length", "axis"], ["padded"], onesided=1),
        helper.make_node("STFT", ["signal", "step", "", "length"], ["frames"]),
        helper.make_node("Det", ["matrices"], ["det"]),
        helper.make_node("Col2Im", ["columns", "image", "block"], ["whole"]),
    ]
    inputs = {
        "signal": (np.float32, ("n", 30, 1)),
        "matrices": (np.float32, ("n", 4, 4)),
        "columns": (np.float32, (1, 8, 20)),
    }
    model = model_of(nodes, inputs, dict.fromkeys(("padded", "frames", "det", "whole"), FLOAT), constants)
    feeds = {name: RNG.standard_normal((2, *shape[1:])).astype(np.float32) for name, (_, shape) in inputs.items()}
    feeds["columns"] = feeds["columns"][:1]
    feeds["matrices"][0, 0, 0] = 0  # no pivot where elimination would look first
    check_with_onnxruntime(model, feeds, tmp_path, dims={"n": (1, 3)}, tolerance=1e-4)


def test_remainders_and_shifts_at_their_limits(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mod", ["x", "y"], ["rest"]),
        helper.make_node("Pow", ["i", "i"], ["power"]),
        helper.make_node("BitShift", ["u", "u"], ["left"], direction="LEFT"),
    ]
    inputs = {
        "x": (np.int32, (4,)),
        "y": (np.int32, (1,)),
        "i": (np.int32, (4,)),
        "u": (np.uint8, (4,)),
    }
    outputs = {"rest": TensorProto.INT32, "power": TensorProto.INT32, "left": TensorProto.UINT8}
    x, i, u = np.array([7, -7, 2, 0], np.int32), np.array([0, 1, 7, 9], np.int32), np.array([1, 3, 8, 255], np.uint8)
    made = run_bundle(
        model_of(nodes, inputs, outputs), {"x": x, "y": np.array([-3], np.int32), "i": i, "u": u}, tmp_path
    )
    np.testing.assert_array_equal(made["rest"], np.mod(x, -3))
    np.testing.assert_array_equal(made["power"], i**i)
    assert made["left"].tolist() == [2, 24, 0, 0]


@pytest.mark.slow
def test_outputs_that_are_reshaped_are_written_by_what_computes_them(tmp_path: Path) -> None:
    """Also if an output is what another one reshapes, if two reshape the same, and if it is an input."""
    nodes = [
        helper.make_node("Relu", ["x"], ["whole"]),
        helper.make_node("Reshape", ["whole", "rows"], ["first"]),
        helper.make_node("Reshape", ["whole", "row"], ["second"]),
        helper.make_node("Exp", ["x"], ["hidden"]),
        helper.make_node("Reshape", ["hidden", "rows"], ["third"]),
        helper.make_node("Reshape", ["x", "row"], ["given"]),
    ]
    constants = {"rows": np.array([-1, 4], np.int64), "row": np.array([-1], np.int64)}
    outputs = dict.fromkeys(("whole", "first", "second", "third", "given"), FLOAT)
    model = model_of(nodes, {"x": (np.float32, ("n", 6, 8))}, outputs, constants)
    x = RNG.standard_normal((3, 6, 8)).astype(np.float32)
    check_with_onnxruntime(model, {"x": x}, tmp_path, dims={"n": (1, 4)})
    manifest = packager.inspect(next(tmp_path.glob("*.so"))).manifest
    assert not [primitive.symbol for _, primitive in manifest.primitives() if "reshape" in primitive.symbol]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("places", "gathers"),
    [
        (np.array([[[0, 0], [0, 1], [0, 2]], [[1, 0], [1, 1], [1, 2]]]), False),  # all of two axes, as torch's masks
        (np.array([[0, 2], [1, 0], [1, -2]]), False),  # over the end of a row
        (np.array([[1, 1]]), False),
        (np.array([[1], [2]]), False),
        (np.array([[3], [2]]), True),
        (np.array([[0, 0], [0, 2]]), True),
        (np.array([[0, 1], [0, 1]]), True),
        (np.array([[1, 1, 0]]), True),  # of a symbolic axis
    ],
)
def test_a_gather_at_places_that_follow_one_another_is_a_slice(places: Array, gathers: bool, tmp_path: Path) -> None:
    model = model_of(
        [helper.make_node("GatherND", ["x", "places"], ["y"])],
        {"x": (np.float32, (4, 3, "n", 2))},
        {"y": FLOAT},
        {"places": places.astype(np.int64)},
    )
    check_with_onnxruntime(
        model, {"x": RNG.standard_normal((4, 3, 5, 2)).astype(np.float32)}, tmp_path, dims={"n": (1, 6)}
    )
    (bundle,) = tmp_path.glob("*.so")
    ops = {op for _, primitive in packager.inspect(bundle).manifest.primitives() for op in primitive.ops}
    assert any("gather" in op or "take" in op for op in ops) == gathers, ops


GRID = np.stack(np.meshgrid(np.arange(4), np.arange(3), np.arange(2), indexing="ij"), axis=-1)
TABLE = np.array([[2, 0], [1, 1]])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("places", "elements"),
    [
        (np.concatenate([np.stack(np.broadcast_arrays(*np.ix_(range(4), range(3))), -1)[:, :, None, None] +
                         np.zeros((1, 1, 2, 2, 1), int),
                         np.broadcast_to(TABLE[None, None, ..., None], (4, 3, 2, 2, 1))], -1), 4),
        (np.array([[0, 1, 2], [3, 0, 2], [0, 0, 0]]), 3),  # of one axis of all of them
        (np.stack([np.arange(4), np.array([2, 0, 1, 1])], -1), 4),  # another element of each row
        (np.stack([np.arange(3), np.array([2, 0, 1])], -1), 3),  # not of all rows
    ],
    ids=["table", "flat", "of rows", "of some rows"],
)  # fmt: skip
def test_a_gather_at_places_has_one_index_for_each(places: Array, elements: int, tmp_path: Path) -> None:
    """And none for axes of which all elements are taken in order."""
    model = model_of(
        [helper.make_node("GatherND", ["x", "places"], ["y"])],
        {"x": (np.float32, (4, 3, 6))},
        {"y": FLOAT},
        {"places": places.astype(np.int64)},
    )
    check_with_onnxruntime(model, {"x": RNG.standard_normal((4, 3, 6)).astype(np.float32)}, tmp_path)
    (bundle,) = tmp_path.glob("*.so")
    sizes = [math.prod(constant.shape) for constant in packager.inspect(bundle).manifest.constants]
    assert sizes == [elements]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("places", "scatters"),
    [
        (GRID, False),  # everything
        (GRID[1:3], False),
        (GRID[1:3, 1:], False),
        (GRID[:, :1, 1:], False),
        (GRID[2:3, 1:2, :1] - np.array([4, 0, 0]), False),  # counted from the end
        (GRID[:, :, 0, :2][1:], False),  # rows of the last axis
        (GRID[1], True),  # a box of fewer axes than its places have
        (GRID[::2], True),
        (GRID[::-1], True),
    ],
)
def test_a_scatter_to_a_box_is_a_concatenation(places: Array, scatters: bool, tmp_path: Path) -> None:
    shape = (4, 3, 2, "n")
    rest = [*places.shape[:-1], *shape[places.shape[-1] :]]
    model = model_of(
        [helper.make_node("ScatterND", ["x", "places", "u"], ["y"])],
        {"x": (np.float32, shape), "u": (np.float32, tuple(rest))},
        {"y": FLOAT},
        {"places": places.astype(np.int64)},
    )
    inputs = {
        "x": RNG.standard_normal((4, 3, 2, 5)).astype(np.float32),
        "u": RNG.standard_normal([5 if extent == "n" else extent for extent in rest]).astype(np.float32),
    }
    check_with_onnxruntime(model, inputs, tmp_path, dims={"n": (1, 6)})
    (bundle,) = tmp_path.glob("*.so")
    ops = {op for _, primitive in packager.inspect(bundle).manifest.primitives() for op in primitive.ops}
    assert any("scatter" in op for op in ops) == scatters, ops
