"""The Relax operator ``packager.tree_ensemble``: all trees of an ensemble on all rows, summed up (or min, max).

Trees are tables. A node is two integers: the key of its threshold, and a link, which is its first child, counted from
the root of the tree, shifted left by ``feature_bits``, and the feature. The second child follows the first. A row goes
to the second child if its feature's key is greater than the node's. A leaf has the greatest key and is its own first
child, so that rows may go on for any number of levels.

Keys are integers in the order of the floats (``keys``). A NaN is greater than all; where a tree sends NaN to the first
child, the node reads feature ``i + width``, in whose keys a NaN is less than all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Op

from packager.bundle.arrays import Array
from packager.graph.own_operators import register

NAME = "relax.packager.tree_ensemble"
# The type of keys by that of floats.
KEYS = {"float32": "int32", "float64": "int64"}
AGGREGATES = ("sum", "min", "max")


@dataclass(frozen=True)
class TreeTables:
    """The tables of an ensemble.

    ``nodes`` is [nodes, 2]; ``trees`` is [trees, 3]: the first node, the depth, and the target that the tree adds to.
    If all leaves have one weight, for the target of their tree, ``weights`` is [nodes], and ``leaves`` is not read;
    else ``weights`` is [rows, targets], and ``leaves`` has the row of each node that is a leaf.
    """

    nodes: Array
    trees: Array
    leaves: Array
    weights: Array


@dataclass(frozen=True)
class TreeAttributes:
    """The attributes of a call. ``splits_nan``: nodes send NaN to the first child, so that there are twice the keys."""

    targets: int
    feature_bits: int
    splits_nan: bool
    dense: bool
    aggregate: str


def tree_ensemble(data: Any, tables: Sequence[Any], depth: int, attributes: TreeAttributes) -> relax.Call:
    """Return the call: the results of an ensemble for the rows of ``data``, [rows, targets].

    ``tables`` are constants, in the order of TreeTables; ``depth`` is the greatest.
    """
    attrs = tvm.ir.make_node(
        "ir.DictAttrs",
        targets=attributes.targets,
        feature_bits=attributes.feature_bits,
        splits_nan=int(attributes.splits_nan),
        dense=int(attributes.dense),
        aggregate=attributes.aggregate,
        depth=depth,
    )
    return relax.Call(Op.get(NAME), [data, *tables], attrs)


def attributes_of_call(attrs: Any) -> TreeAttributes:
    """Return the attributes of a call."""
    return TreeAttributes(
        targets=int(attrs["targets"]),
        feature_bits=int(attrs["feature_bits"]),
        splits_nan=bool(int(attrs["splits_nan"])),
        dense=bool(int(attrs["dense"])),
        aggregate=str(attrs["aggregate"]),
    )


def keys(values: Array) -> Array:
    """Return integers in the order of floats; -0 is 0. There must be no NaN."""
    dtype = np.dtype(KEYS[str(values.dtype)])
    bits = np.ascontiguousarray(values + values.dtype.type(0)).view(dtype)
    mask = dtype.type(np.iinfo(dtype).max)
    return np.where(bits < 0, bits ^ mask, bits).astype(dtype)


def comparisons(call: Any) -> int:
    """Return the comparisons of a row, at most, over its targets."""
    trees, targets = int(call.args[2].ty.shape.values[0]), int(call.attrs["targets"])
    return max(trees * int(call.attrs["depth"]) // targets, 1)


def _infer(call: Any, _builder: Any) -> Any:
    rows, weights = call.args[0].ty.shape.values[0], call.args[4]
    return relax.TensorType([rows, int(call.attrs["targets"])], str(weights.ty.dtype))


register(NAME, "An ensemble of decision trees", ("data", "nodes", "trees", "leaves", "weights"), _infer)
