"""Tree ensembles: keys of the rows, then all trees on a block of rows, a vector of rows at a time."""

from __future__ import annotations

from typing import Any

from packager.backends.ccompiler.core.expressions import as_result
from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.operations import CannotRender, Operation
from packager.backends.ccompiler.core.shapes import c_text, ceil_div, product
from packager.backends.ccompiler.core.stages import Stage
from packager.graph.tree_ensemble import attributes_of_call

# Rows of a block, which are several vectors: one waits for its loads while others go on.
ROWS = 32
# Trees that one row descends together.
TOGETHER = 8
# Levels between two tests whether all rows have reached leaves.
LEVELS = 4
# C that loads a vector of words at base + scale * index.
GATHERS = {
    "avx512": "__builtin_ia32_gathersiv16si((pk_rows){{0}}, base, index, (unsigned short)-1, {})",
    "avx2": "__builtin_ia32_gathersiv8si((pk_rows){{0}}, base, index, (pk_rows){{0}} - 1, {})",
}
FIRST = {"sum": "0.0f", "min": "__builtin_inff()", "max": "-__builtin_inff()"}
NEXT = {"sum": "{0} + {1}", "min": "({1} < {0} ? {1} : {0})", "max": "({1} > {0} ? {1} : {0})"}


def add_trees(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the functions of a stage to its group. Raises CannotRender."""
    attributes = attributes_of_call(anchor.attributes)
    data, nodes, trees, leaves, weights = (use.tensor for use in anchor.uses)
    features = data.shape[1]
    if data.dtype != "float32" or not isinstance(features, int):
        raise CannotRender("trees of another type than float32")
    width = features * (2 if attributes.splits_nan else 1)
    keys = group.workspace(product((stage.rows, width)), "int32")
    draft = group.function("tree_keys")
    values: dict[str, Any] = {
        "x": draft.tensor(data, False),
        "keys": draft.workspace(keys, "int32_t", True),
        "features": features,
        "width": width,
    }
    draft.finish("ops/tree_keys", stage.rows, values)
    scores = group.workspace(product((stage.rows, attributes.targets)))
    draft = group.function("trees")
    machine = group.machine.name
    lanes = group.machine.vector_bytes // 4 if machine in GATHERS else 0
    values = {
        "program": draft.program(stage, as_result("scores[j]", anchor.result.dtype)),
        "keys": draft.workspace(keys, "int32_t", False),
        "scores": draft.workspace(scores, "float", True),
        "nodes": draft.tensor(nodes, False),
        "trees": draft.tensor(trees, False),
        "leaves": draft.tensor(leaves, False) if attributes.dense else "",
        "weights": draft.tensor(weights, False),
        "count": int(trees.shape[0]),
        "rows": c_text(stage.rows),
        "block": ROWS,
        "vectors": ROWS // lanes if lanes else 0,
        "lanes": lanes,
        "width": width,
        "bits": attributes.feature_bits,
        "feature_mask": (1 << attributes.feature_bits) - 1,
        "targets": attributes.targets,
        "together": TOGETHER,
        "levels": LEVELS,
        "first": FIRST[attributes.aggregate],
        "next": NEXT[attributes.aggregate],
    }
    draft.finish("ops/trees", ceil_div(stage.rows, ROWS), values)


def gather_of(machine: str) -> str:
    """Return C for a gather by the bytes between elements, or nothing."""
    return GATHERS.get(machine, "")
