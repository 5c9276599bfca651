"""TopK of few and many elements, by each of its algorithms, against onnxruntime: with ties, in any order."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import packager
from tests.one_cpu import targets_here
from tests.onnx_nodes import FLOAT, INT64, check_with_onnxruntime, model_of

pytestmark = pytest.mark.slow

# Elements of a row and how many are selected: the best one, by insertion, by selection and sorting, all.
SIZES = [(5, 5), (40, 3), (300, 20), (300, 280), (1500, 64), (1500, 100), (90, 90), (1024, 1), (7, 1)]


def test_the_best_of_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    nodes, feeds, shapes, outputs, counts = [], {}, {}, {}, {}
    for number, (extent, k) in enumerate(SIZES):
        feeds[f"x{number}"] = np.stack(
            [
                rng.integers(0, extent, extent).astype(np.float32),  # with ties
                np.arange(extent, dtype=np.float32),
                -np.arange(extent, dtype=np.float32),
                np.zeros(extent, np.float32),
            ]
        )
        shapes[f"x{number}"] = (np.float32, (4, extent))
        counts[f"k{number}"] = np.asarray([k], np.int64)
        for largest in (0, 1):
            names = [f"v{number}_{largest}", f"i{number}_{largest}"]
            nodes.append(helper.make_node("TopK", [f"x{number}", f"k{number}"], names, largest=largest))
            outputs |= dict(zip(names, (FLOAT, INT64), strict=True))
    check_with_onnxruntime(model_of(nodes, shapes, outputs, counts), feeds, tmp_path)


def test_types_and_special_values(tmp_path: Path) -> None:
    """NaN is greater than all numbers, and -0 equals 0; integers of both signs."""
    rng = np.random.default_rng(9)
    numbers = rng.integers(-50, 50, (3, 200))
    floats = numbers.astype(np.float32)
    floats[0, ::7], floats[1, ::5], floats[2, ::3] = np.inf, -0.0, np.nan
    feeds = {"f": floats, "h": floats.astype(np.float16), "i": numbers, "n": numbers.astype(np.int32)}
    types = {"f": FLOAT, "h": TensorProto.FLOAT16, "i": INT64, "n": TensorProto.INT32}
    nodes, outputs, wanted = [], {}, {}
    for name, k, largest in itertools.product(feeds, (1, 9, 150), (0, 1)):
        values, indices = f"v_{name}_{k}_{largest}", f"i_{name}_{k}_{largest}"
        nodes.append(helper.make_node("TopK", [name, f"k{k}"], [values, indices], largest=largest))
        outputs |= {values: types[name], indices: INT64}
        keys = np.where(np.isnan(feeds[name]), np.inf, feeds[name].astype(np.float64))
        keys = np.where(np.isnan(feeds[name]), 1e9, np.clip(keys, -1e8, 1e8))
        wanted[indices] = np.argsort(-keys if largest else keys, axis=1, kind="stable")[:, :k]
        wanted[values] = np.take_along_axis(feeds[name], wanted[indices], 1)
    shapes = {name: (array.dtype.type, array.shape) for name, array in feeds.items()}
    model = model_of(nodes, shapes, outputs, {f"k{k}": np.asarray([k], np.int64) for k in (1, 9, 150)})
    onnx.save(model, tmp_path / "m.onnx")
    with packager.load(
        packager.build(tmp_path / "m.onnx", tmp_path / "m.so", golden=0, targets=targets_here())
    ) as bundle:
        made = bundle.run(feeds)
    for name, array in wanted.items():
        np.testing.assert_array_equal(made[name], array, err_msg=name)
