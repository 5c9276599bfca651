"""Einsum, against onnxruntime: what becomes products, and what stays a loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.onnx_nodes import FLOAT, check_with_onnxruntime, model_of

pytestmark = pytest.mark.slow

# Extents of labels; the axes of an ellipsis are named so that they are the dims of the model.
SIZES = {"b": 2, "h": 3, "i": 5, "j": 4, "d": 6, "e": 1}
EQUATIONS = [
    *("bhid,bhjd->bhij", "bhij,bhjd->bihd", "bid,dj->bij", "bid,hjd->bihj", "bihd,hdj->bij", "bid,bid->bi", "id,id->"),
    *("bi,bj->bij", "i,j->ij", "bid,bi->bd", "bid->bdi", "bid->b", "bij", "id,dj", "bih,hd,dj->bij", "bi,bi,bj->ij"),
    *("b...d,bjd->b...j", "...id,...jd->...ij", "...id,jd->...ij", "ei,ij->ej", "bihd,bijd->bhj"),
]


def model() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a model with an output for each equation, and its inputs, whose batch is a dim."""
    rng = np.random.default_rng(5)
    nodes, feeds, shapes = [], {}, {}
    for number, equation in enumerate(EQUATIONS):
        operands = equation.partition("->")[0].split(",")
        names = [f"x{number}_{index}" for index in range(len(operands))]
        for name, labels in zip(names, operands, strict=True):
            axes = labels.replace("...", "h" if labels.startswith("b") else "bh")
            feeds[name] = rng.standard_normal([SIZES[axis] for axis in axes]).astype(np.float32)
            shapes[name] = (np.float32, ["n" if axis == "b" else SIZES[axis] for axis in axes])
        nodes.append(helper.make_node("Einsum", names, [f"y{number}"], equation=equation))
    return model_of(nodes, shapes, {f"y{number}": FLOAT for number in range(len(EQUATIONS))}), feeds


def test_equations(tmp_path: Path) -> None:
    graph, feeds = model()
    check_with_onnxruntime(graph, feeds, tmp_path, {"n": (1, 4)})
