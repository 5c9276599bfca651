"""What this backend takes of a model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import relax, tirx
from tvm.relax.dpl import is_op, wildcard
from tvm_ffi import structural_equal

from packager.backends.api import Match, Pattern


@dataclass(frozen=True)
class Product:
    """``batch`` products [rows, depth] x [depth, columns] of ``a`` and ``b``, Relax variables; ``bias`` may be None."""

    a: Any
    b: Any
    bias: Any
    packs_b_ahead: bool

    @property
    def batch(self) -> Any:
        """How many products there are; one if b is the same for all rows of a, however many dims these are in."""
        return 1 if len(shape(self.b)) == 2 else math.prod(shape(self.a)[:-2])

    @property
    def rows(self) -> Any:
        """How many rows each product has."""
        return math.prod(shape(self.a)[:-1]) if len(shape(self.b)) == 2 else shape(self.a)[-2]

    @property
    def depth(self) -> Any:
        """How many products of numbers are summed up."""
        return shape(self.a)[-1]

    @property
    def columns(self) -> Any:
        """How many columns each product has."""
        return shape(self.b)[-1]


def products() -> list[Pattern]:
    """Return ``matmul(a, b)``."""
    product = is_op("relax.matmul")(wildcard(), wildcard())
    return [Pattern("openblas.matmul", product, {"product": product}, takes_product, read_product)]


def biased_products() -> list[Pattern]:
    """Return ``matmul(a, b) + bias``, written either way round."""
    found = []
    for bias_comes_first in (False, True):
        product, bias = is_op("relax.matmul")(wildcard(), wildcard()), wildcard()
        total = is_op("relax.add")(*((bias, product) if bias_comes_first else (product, bias)))
        parts = {"product": product, "bias": bias}
        found.append(Pattern("openblas.matmul_bias", total, parts, takes_biased_product, read_product))
    return found


def read_product(match: Match) -> Product:
    """Return what a match computes: the product is its first call, the sum with a bias the second if there is one."""
    product, *sums = match.calls
    a, b = product.args
    biases = [operand for total in sums for operand in total.args if not operand.same_as(match.variables[0])]
    return Product(a, b, biases[0] if biases else None, match.is_constant(b))


def takes_product(match: Match) -> bool:
    """Whether it is ``[..., m, k] x [k, n]``, or ``[..., m, k] x [..., k, n]`` without broadcasting, in float32."""
    call = match.annotated["product"]
    if not all(is_float32(tensor) for tensor in (*call.args, call)):
        return False
    a, b = map(shape, call.args)
    return len(a) >= 2 and len(b) >= 2 and (len(b) == 2 or same(a[:-2], b[:-2]))


def takes_biased_product(match: Match) -> bool:
    """Whether it is such a product, and the bias a vector of one number for each column."""
    bias, product = match.annotated["bias"], match.annotated["product"]
    is_row = is_float32(bias) and len(shape(bias)) == 1 and same(shape(bias), shape(product)[-1:])
    return is_row and takes_product(match)


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
