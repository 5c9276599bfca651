"""Resizing, pooling and sampling of images against onnxruntime, with a symbolic batch where there may be one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import packager
from tests.onnx_nodes import FLOAT, INT64, check_with_onnxruntime, model_of

pytestmark = pytest.mark.slow

X = np.random.default_rng(3).standard_normal((2, 3, 8, 10)).astype(np.float32)


def _pool(operator: str, outputs: list[str], kernel: tuple[int, int] = (3, 3), **attributes: Any) -> Any:
    return helper.make_node(operator, ["x"], outputs, kernel_shape=kernel, **attributes)


def test_pooling_of_a_symbolic_batch(tmp_path: Path) -> None:
    nodes = [
        _pool("MaxPool", ["a", "a_at"], strides=[2, 2], pads=[1, 0, 1, 1]),
        _pool("MaxPool", ["b"], strides=[3, 2], ceil_mode=1),
        _pool("AveragePool", ["c"], strides=[2, 2], auto_pad="SAME_LOWER"),
        _pool("AveragePool", ["d"], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1, ceil_mode=1),
        _pool("AveragePool", ["e"], dilations=[2, 2], pads=[1, 1, 1, 1]),
        _pool("LpPool", ["f"], strides=[2, 1], pads=[1, 1, 0, 0], p=3),
        # Windows larger than the data: a global pool, as torch exports AvgPool2d of the number of channels.
        _pool("AveragePool", ["g"], (1280, 1280), strides=[1280, 1280], ceil_mode=1),
        _pool("AveragePool", ["h"], (40, 3), strides=[40, 2], pads=[3, 1, 2, 1], count_include_pad=1, ceil_mode=1),
        _pool("MaxPool", ["i"], (40, 3), strides=[40, 2], pads=[3, 1, 2, 1], ceil_mode=1),
    ]
    outputs = {"a": FLOAT, "a_at": INT64} | dict.fromkeys("bcdefghi", FLOAT)
    model = model_of(nodes, {"x": (np.float32, ("n", 3, 8, 10))}, outputs)
    check_with_onnxruntime(model, {"x": X}, tmp_path, dims={"n": (1, 3)})


def test_pooling_of_volumes_with_shapes_that_exporters_declare(tmp_path: Path) -> None:
    """torch's exporter counts windows that would begin in the padding after the data, onnxruntime does not."""
    window = {"kernel_shape": [2, 2, 2], "strides": [3, 3, 3], "pads": [1] * 6, "ceil_mode": 1}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a"], **window),
        helper.make_node("AveragePool", ["x"], ["b"], **window),
        helper.make_node("GlobalAveragePool", ["x"], ["c"]),
        helper.make_node("GlobalMaxPool", ["x"], ["d"]),
    ]
    model = model_of(nodes, {"x": (np.float32, (2, 3, 8, 10, 11))}, dict.fromkeys("abcd", FLOAT))
    for value in model.graph.output[:2]:
        for extent in (2, 3, 4, 5, 5):
            value.type.tensor_type.shape.dim.add().dim_value = extent
    x = np.random.default_rng(4).standard_normal((2, 3, 8, 10, 11)).astype(np.float32)
    check_with_onnxruntime(model, {"x": x}, tmp_path)


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32"])
def test_reductions_of_rows(dtype: str, tmp_path: Path) -> None:
    """Rows of extents that vectors divide and do not divide, along one axis and several."""
    rng, nodes, inputs, constants, feeds = np.random.default_rng(6), [], {}, {}, {}
    for number, (shape, axes) in enumerate(
        [((2, 3, 4, 8), [2, 3]), ((5, 7, 7), [1, 2]), ((3, 128), [1]), ((31,), [0])]
    ):
        feeds[f"x{number}"] = rng.integers(-9, 9, shape).astype(dtype)
        inputs[f"x{number}"] = (np.dtype(dtype).type, shape)
        constants[f"axes{number}"] = np.array(axes, np.int64)
        for name in ("Sum", "Max", "Min", "Mean", "SumSquare"):
            if dtype == "int32" and name == "Mean":
                continue  # onnxruntime rounds another way
            operands = [f"x{number}", f"axes{number}"]
            nodes.append(helper.make_node(f"Reduce{name}", operands, [f"{name}{number}"], keepdims=number % 2))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    outputs = {node.output[0]: kind for node in nodes}
    tolerance = 2e-3 if dtype == "float16" else 1e-5
    check_with_onnxruntime(model_of(nodes, inputs, outputs, constants), feeds, tmp_path, tolerance=tolerance)


def test_resizing(tmp_path: Path) -> None:
    # To whole extents: elsewhere onnxruntime rounds the length that scales give, and the standard's cases do not.
    scales = {"up": np.array([1, 1, 2, 1.5], np.float32), "down": np.array([1, 1, 0.5, 0.5], np.float32)}
    uses: list[dict[str, Any]] = [
        {"mode": "nearest", "nearest_mode": "ceil", "coordinate_transformation_mode": "half_pixel"},
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
        {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},
        {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel", "antialias": 1},
    ]
    nodes = [
        helper.make_node("Resize", ["x", "", which], [f"{which}{number}"], **use)
        for number, use in enumerate(uses)
        for which in scales
    ]
    outputs = {node.output[0]: FLOAT for node in nodes}
    model = model_of(nodes, {"x": (np.float32, X.shape)}, outputs, scales)
    check_with_onnxruntime(model, {"x": X}, tmp_path)


@pytest.mark.sampled(3, every_value=False)
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_sampling_reads_nothing_outside_of_the_image(padding: str, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("GridSample", ["x", "grid"], [mode], mode=mode, padding_mode=padding, align_corners=corners)
        for mode, corners in (("linear", 1), ("cubic", 0), ("nearest", 1))
    ]
    inputs = {"x": (np.float32, ("n", 3, 8, 10)), "grid": (np.float32, ("n", 4, 5, 2))}
    model = model_of(nodes, inputs, {node.output[0]: FLOAT for node in nodes})
    grid = np.random.default_rng(4).uniform(-1.6, 1.6, (2, 4, 5, 2)).astype(np.float32)
    check_with_onnxruntime(model, {"x": X, "grid": grid}, tmp_path, dims={"n": (1, 3)}, tolerance=1e-4)


@pytest.mark.parametrize("rank", [2, 3])
def test_sampling_of_many_channels_and_positions(rank: int, tmp_path: Path) -> None:
    """More than a tile of positions with a rest, two blocks of channels, and places that are not numbers."""
    extents, sizes = (7, 11, 5)[:rank], (13, 17, 2)[:rank]
    uses: list[dict[str, Any]] = [
        {"mode": "linear", "padding_mode": "zeros"},
        {"mode": "linear", "padding_mode": "reflection", "align_corners": 1},
        {"mode": "nearest", "padding_mode": "zeros"},
    ]
    if rank == 2:
        uses.append({"mode": "cubic", "padding_mode": "reflection"})
    nodes = [helper.make_node("GridSample", ["x", "grid"], [f"y{i}"], **use) for i, use in enumerate(uses)]
    grid = np.random.default_rng(5).uniform(-2.5, 2.5, (2, *sizes, rank)).astype(np.float32)
    x = np.random.default_rng(6).standard_normal((2, 9, *extents)).astype(np.float32)
    x[:, :, 0, 0] = np.inf  # what padding leaves out must not reach a sum
    symbolic = [f"p{axis}" for axis in range(rank)]
    inputs = {"x": (np.float32, ("n", 9, *extents)), "grid": (np.float32, ("n", *symbolic, rank))}
    model = model_of(nodes, inputs, {node.output[0]: FLOAT for node in nodes})
    dims = {"n": (1, 3)} | dict.fromkeys(symbolic, (1, 40))
    check_with_onnxruntime(model, {"x": x, "grid": grid}, tmp_path, dims=dims, tolerance=1e-4)

    grid.reshape(-1)[:5] = [np.nan, np.inf, -np.inf, 1e30, -3e9]
    with packager.load(tmp_path / "model.so") as bundle:
        far = bundle.run({"x": np.ones_like(x), "grid": grid})["y2"]
    assert set(np.unique(far)) == {0.0, 1.0}
    assert not far.reshape(2, 9, -1)[0, :, 0].any()
