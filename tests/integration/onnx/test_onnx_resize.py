"""Resize and RoiAlign with symbolic dims against onnxruntime, or onnx's reference where it lacks a use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.onnx_nodes import FLOAT, check_with_onnxruntime, model_of, run_bundle

RNG = np.random.default_rng(3)
SHAPE = (2, 3, 8, 10)
BATCH = {"n": (1, 4)}
IMAGES = {"n": (1, 4), "h": (3, 40), "w": (3, 40)}

pytestmark = [
    pytest.mark.slow,
    # onnx's reference divides by the extent of a result that it does not keep
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


def resized(
    shape: Sequence[int | str],
    scales: Sequence[float] | None = None,
    dtype: str = "float32",
    sizes: Any = None,
    region: Sequence[float] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """A Resize; ``sizes`` are numbers, or the dims of another input."""
    constants: dict[str, Any] = {}
    nodes, inputs = [], {"x": (dtype, shape)}
    operands = ["x", "", "", ""]
    if region is not None:
        operands[1], constants["roi"] = "roi", np.asarray(region, np.float32)
    if scales is not None:
        operands[2], constants["scales"] = "scales", np.asarray(scales, np.float32)
    elif sizes == "like":
        inputs["like"] = ("float32", ("n", 1, "p", "q"))
        nodes = [helper.make_node("Shape", ["like"], ["sizes"], start=2)]
        operands[3] = "sizes"
    else:
        operands[3], constants["sizes"] = "sizes", np.asarray(sizes, np.int64)
    while not operands[-1]:
        operands.pop()
    nodes.append(helper.make_node("Resize", operands, ["y"], **attributes))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return model_of(nodes, inputs, {"y": kind}, constants, opset=19)


def image(dtype: str = "float32") -> np.ndarray:
    if dtype.startswith("float"):
        return RNG.standard_normal(SHAPE).astype(dtype)
    return RNG.integers(0, 255, SHAPE).astype(dtype)


MODES = [
    {"mode": "cubic"},
    {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5},
    {"mode": "cubic", "antialias": 1},
    {"mode": "linear", "antialias": 1},
    {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"},
    {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
    {"mode": "nearest", "nearest_mode": "ceil"},
]


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize("symbolic", ["batch", "image"])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(map(str, mode.values())))
def test_scales_that_give_no_whole_extents(mode: dict[str, Any], symbolic: str, tmp_path: Path) -> None:
    shape = ("n", *SHAPE[1:]) if symbolic == "batch" else ("n", 3, "h", "w")
    model = resized(shape, [1, 1, 0.6, 1.7], **mode)
    check_with_onnxruntime(model, {"x": image()}, tmp_path, BATCH if symbolic == "batch" else IMAGES)


@pytest.mark.parametrize(
    "mode",
    [
        {"mode": "cubic"},
        {"mode": "cubic", "exclude_outside": 1, "coordinate_transformation_mode": "align_corners"},
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"},
        {"mode": "nearest"},
    ],
    ids=lambda mode: "-".join(map(str, mode.values())),
)
def test_sizes_of_another_input(mode: dict[str, Any], tmp_path: Path) -> None:
    model = resized(("n", 3, "h", "w"), sizes="like", axes=[2, 3], **mode)
    feeds = {"x": image(), "like": np.zeros((2, 1, 13, 9), np.float32)}
    check_with_onnxruntime(model, feeds, tmp_path, {**IMAGES, "p": (1, 40), "q": (1, 40)})


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        (("n", 3, "h", "w"), {"scales": [0.6, 1.5], "mode": "cubic"}),
        (("n", 3, "h", "w"), {"sizes": [5, 6], "mode": "linear"}),
        (("n", 3, "h", "w"), {"sizes": [5, 6], "mode": "nearest"}),
        (("n", *SHAPE[1:]), {"sizes": [5, 6], "mode": "linear"}),
    ],
)
def test_a_region(shape: Sequence[int | str], options: dict[str, Any], tmp_path: Path) -> None:
    how = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 3.0}
    model = resized(shape, region=[0.2, 0.3, 0.9, 1.1], axes=[2, 3], **how, **options)
    x = image()
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    made = run_bundle(model, {"x": x}, tmp_path, IMAGES if "h" in shape else BATCH)
    np.testing.assert_allclose(made["y"], expected, rtol=1e-5, atol=1e-5)


def test_the_aspect_ratio_of_a_symbolic_batch(tmp_path: Path) -> None:
    model = resized(("n", *SHAPE[1:]), sizes=[5, 6], axes=[2, 3], mode="linear", keep_aspect_ratio_policy="not_larger")
    x = image()
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(run_bundle(model, {"x": x}, tmp_path, BATCH)["y"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_integers(dtype: str, tmp_path: Path) -> None:
    """Linear and cubic interpolation of integers truncates; onnxruntime rounds some."""
    model = resized(("n", 3, "h", "w"), [1, 1, 2, 1.7], dtype=dtype, mode="linear")
    x = image(dtype)
    made = run_bundle(model, {"x": x}, tmp_path, IMAGES)["y"]
    exact = resized(("n", 3, "h", "w"), [1, 1, 2, 1.7], mode="linear")
    (floats,) = ReferenceEvaluator(exact).run(None, {"x": x.astype(np.float32)})
    assert made.dtype == x.dtype
    assert np.abs(made.astype(np.float64) - np.trunc(floats)).max() <= 1
    assert np.mean(made == np.trunc(floats)) > 0.99


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize("samples", [0, 2])
@pytest.mark.parametrize(
    "how",
    [
        {"mode": "avg", "coordinate_transformation_mode": "half_pixel"},
        {"mode": "avg", "coordinate_transformation_mode": "output_half_pixel"},
    ],
    ids=lambda how: how["coordinate_transformation_mode"],
)
def test_regions_of_any_size(how: dict[str, Any], samples: int, tmp_path: Path) -> None:
    """Regions inside of the image, beyond it, and smaller than a pixel."""
    node = helper.make_node("RoiAlign", ["x", "rois", "batch"], ["y"], output_height=3, output_width=4,
                            sampling_ratio=samples, spatial_scale=0.5, **how)  # fmt: skip
    inputs = {"x": ("float32", ("n", 3, "h", "w")), "rois": ("float32", ("r", 4)), "batch": ("int64", ("r",))}
    model = model_of([node], inputs, {"y": FLOAT})
    starts = RNG.uniform(-4, 16, (9, 2))
    ends = starts + np.concatenate([RNG.uniform(0.1, 20, (7, 2)), [[0.2, 0.3], [40, 50]]])
    rois = np.concatenate([starts, ends], 1).astype(np.float32)
    feeds = {"x": image(), "rois": rois, "batch": RNG.integers(0, 2, 9)}
    check_with_onnxruntime(model, feeds, tmp_path, {**IMAGES, "r": (1, 20)})
