"""Lower tree ensembles to one loop nest per level: [rows, trees] nodes, each replaced by a child; then add up leaves.

For any device. The ``ccompiler`` backend has a loop nest of its own, which is faster.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from packager.graph.tree_ensemble import KEYS, TreeAttributes, attributes_of_call


def _sum(left: Any, right: Any) -> Any:
    return left + right


def _least(left: Any, right: Any) -> Any:
    return tirx.min(left, right)


def _greatest(left: Any, right: Any) -> Any:
    return tirx.max(left, right)


# Python functions of two parameters, as reducers must be.
COMBINE = {"sum": _sum, "min": _least, "max": _greatest}


def legalize_tree_ensemble(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.tree_ensemble``."""
    attributes = attributes_of_call(call.attrs)
    data, nodes, trees, leaves, weights = call.args
    make_keys = partial(_keys, splits_nan=attributes.splits_nan)
    keyed = builder.emit(builder.call_te(make_keys, data, primfunc_name_hint="tree_keys"))
    place = builder.emit(builder.call_te(_roots, keyed, trees, primfunc_name_hint="tree_roots"))
    level = partial(_level, bits=attributes.feature_bits)
    for _ in range(int(call.attrs["depth"])):
        place = builder.emit(builder.call_te(level, keyed, place, nodes, trees, primfunc_name_hint="tree_level"))
    total = partial(_total, attributes=attributes)
    return builder.call_te(total, place, trees, leaves, weights, primfunc_name_hint="tree_total")


def _keys(data: Any, splits_nan: bool) -> Any:
    dtype = KEYS[str(data.dtype)]
    most, least = (tirx.const(int(value), dtype) for value in (np.iinfo(dtype).max, np.iinfo(dtype).min))
    width = data.shape[1]

    def key(row: Any, column: Any) -> Any:
        value = data(row, tirx.Select(column < width, column, column - width))
        bits = tirx.reinterpret(dtype, value)
        # -0 is found as a float: TVM rewrites a comparison with the least integer into one that overflows.
        is_zero = value == tirx.const(0.0, str(data.dtype))
        ordered = tirx.Select(is_zero, tirx.const(0, dtype), tirx.Select(bits < 0, bits ^ most, bits))
        return tirx.Select(tirx.isnan(value), tirx.Select(column < width, most, least), ordered)

    return te.compute((data.shape[0], width * (2 if splits_nan else 1)), key, name="tree_keys")


def _roots(data: Any, trees: Any) -> Any:
    return te.compute((data.shape[0], trees.shape[0]), lambda _row, tree: trees(tree, 0), name="tree_roots")


def _level(data: Any, place: Any, nodes: Any, trees: Any, bits: int) -> Any:
    def follow(row: Any, tree: Any) -> Any:
        node = place(row, tree)
        link = nodes(node, 1)
        feature = (link & tirx.const((1 << bits) - 1, str(link.ty))).astype("int32")
        child = (link >> tirx.const(bits, str(link.ty))).astype("int32")
        return trees(tree, 0) + child + (data(row, feature) > nodes(node, 0)).astype("int32")

    return te.compute(place.shape, follow, name="tree_level")


def _total(place: Any, trees: Any, leaves: Any, weights: Any, attributes: TreeAttributes) -> Any:
    dtype = str(weights.dtype)
    first = tirx.const({"sum": 0.0, "min": math.inf, "max": -math.inf}[attributes.aggregate], dtype)
    reducer = te.comm_reducer(COMBINE[attributes.aggregate], lambda _ty: first, name=f"tree_{attributes.aggregate}")
    tree = te.reduce_axis((0, trees.shape[0]), name="tree")

    def element(row: Any, target: Any) -> Any:
        if attributes.dense:
            return reducer(weights(leaves(place(row, tree)), target), axis=tree)
        own = weights(place(row, tree))
        if attributes.targets > 1:
            own = tirx.Select(trees(tree, 2) == target.astype("int32"), own, first)
        return reducer(own, axis=tree)

    return te.compute((place.shape[0], attributes.targets), element, name="tree_total")
