"""Random decision trees as the attributes of ONNX's tree ensembles, and models of many nodes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
# Thresholds, and most of the data: comparisons are of equal numbers often.
GRID = np.array([-np.inf, -1.5, -1, -0.0, 0.0, 0.5, 1, 2, np.inf], np.float32)
FEATURES = 4


def random_nodes(
    rng: np.random.Generator, modes: Sequence[str] = MODES[:1], *, tracks: bool = False, trees: int = 3, depth: int = 4
) -> tuple[dict[str, list[Any]], list[tuple[int, int]]]:
    """Return the ``nodes_`` attributes of random trees, and the leaves as numbers of tree and node."""
    names = ("treeids", "nodeids", "featureids", "modes", "values", "missing_value_tracks_true")
    table: dict[str, list[Any]] = {f"nodes_{name}": [] for name in (*names, "truenodeids", "falsenodeids")}
    leaves = []
    for number in range(trees):
        count = itertools.count()

        def grow(level: int, tree: int = number, ids: Any = count) -> int:
            node, row = next(ids), len(table["nodes_treeids"])
            is_leaf = level == depth or (level > 0 and rng.random() < 0.2)
            mode = "LEAF" if is_leaf else str(rng.choice(modes))
            test = (
                (0, mode, 0.0, 0)
                if is_leaf
                else (int(rng.integers(FEATURES)), mode, _threshold(rng), _tracks(rng, tracks))
            )
            for name, value in zip(names, (tree, node, *test), strict=True):
                table[f"nodes_{name}"].append(value)
            for name in ("truenodeids", "falsenodeids"):
                table[f"nodes_{name}"].append(0)
            if is_leaf:
                leaves.append((tree, node))
                return node
            for name in ("truenodeids", "falsenodeids"):
                table[f"nodes_{name}"][row] = grow(level + 1)
            return node

        grow(0)
    return table, leaves


def _threshold(rng: np.random.Generator) -> float:
    return float(rng.choice(GRID if rng.random() < 0.2 else GRID[1:-1]))


def _tracks(rng: np.random.Generator, tracks: bool) -> int:
    return int(tracks and rng.random() < 0.5)


def weights_of(
    prefix: str, entries: Sequence[tuple[int, int, int]], weights: Sequence[float] | np.ndarray
) -> dict[str, list[Any]]:
    """Return the attributes of leaves' weights: numbers of tree, node and target, and the weight of each."""
    names = (f"{prefix}_treeids", f"{prefix}_nodeids", f"{prefix}_ids")
    columns = [list(column) for column in zip(*entries, strict=True)]
    return dict(zip(names, columns, strict=True)) | {f"{prefix}_weights": [float(weight) for weight in weights]}


def rows(rng: np.random.Generator, count: int) -> np.ndarray:
    """Return rows with many values of the grid, NaN, and some others."""
    x = rng.choice(np.append(GRID, np.nan).astype(np.float32), size=(count, FEATURES))
    x[::3] = rng.normal(size=x[::3].shape)
    return x


class ManyNodes:
    """A model of one input and many nodes that read it, each with a remark for messages."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.remarks: dict[str, str] = {}
        self.outputs: list[onnx.ValueInfoProto] = []

    def add(
        self, operator: str, remark: object, kinds: Sequence[int] = (TensorProto.FLOAT,), **attributes: Any
    ) -> None:
        """Add a node with outputs of these element types."""
        names = [f"o{len(self.nodes)}_{place}" for place in range(len(kinds))]
        title = f"n{len(self.nodes)}_{operator}"
        self.nodes.append(helper.make_node(operator, ["x"], names, title, domain="ai.onnx.ml", **attributes))
        self.remarks |= dict.fromkeys(names, f"{operator} {remark}")
        self.outputs += [helper.make_tensor_value_info(*pair, None) for pair in zip(names, kinds, strict=True)]

    def model(self, version: int = 3, dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
        """Return the model, of dynamic rows."""
        x = helper.make_tensor_value_info("x", dtype, ["N", FEATURES])
        graph = helper.make_graph(self.nodes, "nodes", [x], self.outputs)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", version)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)
