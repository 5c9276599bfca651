"""What this backend takes of a model."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.relax.dpl import is_op, wildcard
from tvm_ffi import structural_equal

from packager.backends.base import Match, Pattern


def products() -> list[Pattern]:
    """Return ``matmul(a, b)``."""
    product = is_op("relax.matmul")(wildcard(), wildcard())
    return [Pattern("openblas.matmul", product, {"product": product}, takes_product)]


def biased_products() -> list[Pattern]:
    """Return ``matmul(a, b) + bias``, written either way round."""
    found = []
    for bias_comes_first in (False, True):
        product, bias = is_op("relax.matmul")(wildcard(), wildcard()), wildcard()
        total = is_op("relax.add")(*((bias, product) if bias_comes_first else (product, bias)))
        parts = {"product": product, "bias": bias}
        found.append(Pattern("openblas.matmul_bias", total, parts, lambda m: takes_product(m) and takes_bias(m)))
    return found


def takes_product(match: Match) -> bool:
    """Whether it is ``[..., m, k] x [k, n]``, or ``[..., m, k] x [..., k, n]`` without broadcasting, in float32."""
    call = match.annotated["product"]
    if not all(is_float32(tensor) for tensor in (*call.args, call)):
        return False
    a, b = map(shape, call.args)
    return len(a) >= 2 and len(b) >= 2 and (len(b) == 2 or same(a[:-2], b[:-2]))


def takes_bias(match: Match) -> bool:
    """Whether it is a vector of one number for each column."""
    bias, product = match.annotated["bias"], match.annotated["product"]
    return is_float32(bias) and len(shape(bias)) == 1 and same(shape(bias), shape(product)[-1:])


def is_float32(tensor: Any) -> bool:
    """Whether an expression is a float32 tensor whose shape is known, as numbers or as expressions."""
    ty = tensor.ty
    return isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr) and ty.dtype == "float32"


def shape(tensor: Any) -> list[Any]:
    """Return the extents of a tensor: numbers, and expressions over shape variables."""
    return [int(extent) if isinstance(extent, tirx.IntImm) else extent for extent in tensor.ty.shape.values]


def same(left: list[Any], right: list[Any]) -> bool:
    """Whether two shapes have the same extents."""
    return len(left) == len(right) and all(map(structural_equal, left, right))
