"""Relax operators that sort, compact and suppress: what devices compute by algorithms of their own.

``most`` is an upper bound of the extent that an operator sorts or compacts. Elements with equal keys are in the order
of their indices. Results whose size data decide fill the first part of a room for the largest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import Op

from packager.graph.own_operators import register

TOP_K = "relax.packager.top_k"
POSITIONS = "relax.packager.positions"
UNIQUE = "relax.packager.unique"
SUPPRESS = "relax.packager.non_max_suppression"


def top_k(data: Any, k: Any, largest: bool, most: int) -> relax.Call:
    """Return the ``k`` largest or smallest of each row of ``data`` [rows, n], in order, and their indices (int64)."""
    return _call(TOP_K, [data, relax.ShapeExpr([k])], {"largest": int(largest), "most": most})


def positions(data: Any, most: int) -> relax.Call:
    """Return the indices of elements of ``data`` [n] that are nonzero or NaN, int64 [n], and their number [1]."""
    return _call(POSITIONS, [data], {"most": most})


def unique(data: Any, in_order: bool, most: int) -> relax.Call:
    """Return the distinct slices of ``data`` [outer, n, inner] along its second axis.

    The results are the slices, sorted if ``in_order`` and else by first appearance, [outer, n, inner]; the index of the
    first slice equal to each; for each slice of the data its place among them; how many are equal to each, [n]; and
    their number [1].
    """
    return _call(UNIQUE, [data], {"in_order": int(in_order), "most": most})


def non_max_suppression(
    boxes: Any, scores: Any, limit: Any, floor: Any, kept: Any, centered: bool, most: int
) -> relax.Call:
    """Select boxes of each class by score, without those that overlap a selected one by more than ``limit``.

    ``boxes`` is [batch, n, 4], two corners or, if ``centered``, center and size; ``scores`` [batch, classes, n], of
    which those above ``floor`` count. At most ``kept`` boxes of a class are selected. The results are triples of batch,
    class and box, int64 [batch * classes, kept, 3], without gaps from the first on, and their number [1].
    """
    operands = [boxes, scores, limit, floor, relax.ShapeExpr([kept])]
    return _call(SUPPRESS, operands, {"centered": int(centered), "most": most})


def _call(name: str, operands: Sequence[Any], attributes: Mapping[str, int]) -> relax.Call:
    return relax.Call(Op.get(name), [*operands], tvm.ir.make_node("ir.DictAttrs", **attributes))


def _number() -> Any:
    return relax.TensorType([1], "int64")


def _infer_top_k(call: Any, _builder: Any) -> Any:
    data, k = call.args
    shape = [data.ty.shape.values[0], k.values[0]]
    return relax.TupleType([relax.TensorType(shape, str(data.ty.dtype)), relax.TensorType(shape, "int64")])


def _infer_positions(call: Any, _builder: Any) -> Any:
    return relax.TupleType([relax.TensorType(call.args[0].ty.shape.values, "int64"), _number()])


def _infer_unique(call: Any, _builder: Any) -> Any:
    ty = call.args[0].ty
    each = relax.TensorType([ty.shape.values[1]], "int64")
    return relax.TupleType([relax.TensorType(ty.shape.values, str(ty.dtype)), each, each, each, _number()])


def _infer_suppress(call: Any, _builder: Any) -> Any:
    batch, classes, _ = call.args[1].ty.shape.values
    shape = [batch * classes, call.args[4].values[0], tirx.IntImm("int64", 3)]
    return relax.TupleType([relax.TensorType(shape, "int64"), _number()])


register(TOP_K, "The best elements of rows", ("data", "k"), _infer_top_k)
register(POSITIONS, "Indices of elements that are set", ("data",), _infer_positions)
register(UNIQUE, "Distinct slices", ("data",), _infer_unique)
register(SUPPRESS, "Suppression of overlapping boxes", ("boxes", "scores", "limit", "floor", "kept"), _infer_suppress)
