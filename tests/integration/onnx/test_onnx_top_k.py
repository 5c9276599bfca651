"""TopK of few and many elements, by each of its algorithms, against onnxruntime: with ties, in any order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.onnx_nodes import FLOAT, INT64, check_with_onnxruntime, model_of

pytestmark = pytest.mark.slow

# Elements of a row and how many are selected: by rank, by insertion, by merging.
SIZES = [(5, 5), (40, 3), (300, 20), (300, 280), (1500, 64), (1500, 100), (1024, 1)]


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
