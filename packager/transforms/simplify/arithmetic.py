"""Algebraic simplifications that change only rounding.

Collapses chains of additions and multiplications with constants to one of each, and folds the multiplication into the
weights of a preceding convolution, or matmul, as it does a layer scale (Touvron et al. 2021, "Going deeper with Image
Transformers", section 2). Batch norms that FoldBatchnormToConv2D does not handle leave such chains. Squares and cubes
become products, and the power 0.75, as in local response normalization, square roots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from packager.bundle.dtypes import FLOATS
from packager.graph.dataflow import (
    Dataflow,
    computed_from_constants,
    operator_of,
    same,
    scalar_of,
    shape_of,
    static_shape_of,
)
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import as_type, rebuild_call, with_main

CONVOLUTIONS = tuple(f"nn.conv{axes}d{kind}" for axes in (1, 2, 3) for kind in ("", "_transpose"))
WIDE = "float32"
_OPERATORS = ("add", "subtract", "multiply", "divide")


def simplify_arithmetic(module: tvm.IRModule, num_inputs: int, *, of_matmuls: bool = False) -> tvm.IRModule:
    """Rewrite chains of ``main`` that become shorter, and powers of float32; ``of_matmuls``, too.

    What chains of half precision collapse to is computed in float32, and rounded once. Weights that are scaled by very
    little lose bits in half precision. It is either a number that is not small, or what is scaled is added to what
    loses them anyway: the shift of a batch norm, or a residual.
    """
    rewriter = _Simplifier(module, module["main"], num_inputs, of_matmuls)
    if not rewriter.chains and not rewriter.powers:
        return module
    return relax.transform.Normalize()(with_main(module, rewriter.visit_expr(module["main"])))


@dataclass(frozen=True)
class _Link:
    """An operator of a chain: its value, its variable operand, and its constant operand."""

    operator: str
    source: Any
    constant: Any


@dataclass(frozen=True)
class _Chain:
    """A chain in order; ``convolution`` computes its source, if nothing else reads that."""

    links: tuple[_Link, ...]
    convolution: Any | None

    @property
    def source(self) -> Any:
        """The input of the chain."""
        return self.links[0].source

    @property
    def shortens(self) -> bool:
        """Whether the collapsed chain has fewer operators."""
        scales = sum(link.operator in ("multiply", "divide") for link in self.links)
        left = (scales > 0 and self.convolution is None) + (scales < len(self.links))
        return left < len(self.links)


@mutator
class _Simplifier(PyExprMutator):  # type: ignore[misc]
    """``chains`` maps the last call of a chain that becomes shorter to the chain; ``powers`` are calls."""

    def __init__(self, module: tvm.IRModule, main: relax.Function, num_inputs: int, of_matmuls: bool) -> None:
        super().__init__(module)
        self.products = (*CONVOLUTIONS, "matmul") if of_matmuls else CONVOLUTIONS
        self.constants = computed_from_constants(main, num_inputs)
        self.flow = Dataflow(main)
        values = self.flow.values
        links = IdentityMap((v, link) for v, value in values.items() if (link := self._link(value)) is not None)
        inner = IdentitySet(v.source for v in links.values() if v.source in links and self.flow.is_read_once(v.source))
        chains = [(values[v], self._chain(v, links, inner)) for v in links if v not in inner]
        self.powers = IdentitySet(value for value in values.values() if _exponent(value) in (2.0, 3.0, 0.75))
        self.chains = IdentityMap((call, chain) for call, chain in chains if chain.shortens)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        chain = self.chains.get(call)
        if chain is not None:
            return self._collapsed(chain)
        if call in self.powers:
            return self._expanded(self.visit_expr(call.args[0]), _exponent(call))
        return self.visit_expr_post_order(call)

    def _expanded(self, base: Any, exponent: float | None) -> relax.Expr:
        if exponent == 0.75:
            root = self.builder_.emit(relax.op.sqrt(base))
            return relax.op.multiply(root, self.builder_.emit(relax.op.sqrt(root)))
        square = relax.op.multiply(base, base)
        return square if exponent == 2.0 else relax.op.multiply(self.builder_.emit(square), base)

    def _is_constant(self, operand: Any) -> bool:
        return _number(operand) is not None or operand in self.constants

    def _link(self, value: Any) -> _Link | None:
        operator = operator_of(value)
        if operator not in _OPERATORS or not _has_type(value, *FLOATS):
            return None
        left, right = value.args
        if self._is_constant(left) and operator in ("add", "multiply"):
            left, right = right, left
        if not isinstance(left, relax.Var) or self._is_constant(left) or not self._is_constant(right):
            return None
        equal = str(getattr(left.ty, "shape", None)) == str(value.ty.shape)
        typed = all(_has_type(operand, str(value.ty.dtype)) for operand in (left, right))
        return _Link(operator, left, right) if equal and typed else None

    def _chain(self, variable: Any, links: IdentityMap[_Link], inner: IdentitySet) -> _Chain:
        found = [links[variable]]
        while (source := found[0].source) in inner:
            found.insert(0, links[source])
        made = self.flow.call(source, *self.products)
        takes_scale = (
            made is not None
            and self.flow.is_read_once(source)
            and self._is_constant(made.args[1])
            and self._has_columns(made)
            and (operator_of(made) != "matmul" or self._is_added(variable) or _keeps_bits(found))
            and _has_type(made.args[1], str(made.ty.dtype))
            and all(_is_per_channel(link.constant, made) for link in found)
        )
        return _Chain(tuple(found), made if takes_scale else None)

    def _is_added(self, variable: Any) -> bool:
        """Whether all that reads a variable adds it to something of its shape that is no constant."""
        readers = [self.flow.call(reader, "add") for reader in self.flow.readers(variable)]
        return not self.flow.is_result(variable) and all(
            call is not None and not any(map(self._is_constant, call.args)) and same(*map(shape_of, call.args))
            for call in readers
        )

    def _has_columns(self, product: Any) -> bool:
        """Whether the weights of a product have an axis of channels that may be scaled.

        Those of a matmul are a matrix as the model has it: what is computed from packed ones backends match as it is.
        """
        if operator_of(product) != "matmul":
            return str(product.attrs.out_layout).startswith("NC") and _output_axis(product) is not None
        matrix = product.args[1]
        while (view := self.flow.call(matrix, "permute_dims", "reshape")) is not None:
            matrix = view.args[0]
        return product.args[1].ty.ndim == 2 and self.flow.value(matrix) is None

    def _collapsed(self, chain: _Chain) -> relax.Expr:
        scale: Any = None
        shift: Any = None
        for link in chain.links:
            constant = self._in_type(self.visit_expr(link.constant), WIDE)
            if link.operator in ("multiply", "divide"):
                before = relax.const(1.0, WIDE) if scale is None and link.operator == "divide" else scale
                scale = constant if before is None else self._computed(link.operator, before, constant)
                shift = None if shift is None else self._computed(link.operator, shift, constant)
            elif link.operator == "add":
                shift = constant if shift is None else self._computed("add", shift, constant)
            else:
                before = relax.const(0.0, WIDE) if shift is None else shift
                shift = self._computed("subtract", before, constant)
        dtype = str(chain.source.ty.dtype)
        shift = None if shift is None else self._in_type(shift, dtype)
        if scale is None:
            return relax.op.add(self.visit_expr(chain.source), shift)
        if chain.convolution is not None:
            scaled: Any = self._scaled(chain.convolution, scale)
        else:
            scaled = relax.op.multiply(self.visit_expr(chain.source), self._in_type(scale, dtype))
        return scaled if shift is None else relax.op.add(self.builder_.emit(scaled), shift)

    def _in_type(self, constant: Any, dtype: str) -> Any:
        """Return a constant in a type, an inline one inline."""
        number = _number(constant)
        return as_type(self.builder_.emit, constant, dtype) if number is None else relax.const(number, dtype)

    def _computed(self, operator: str, left: Any, right: Any) -> Any:
        """Return an operator on two constants: of inline ones an inline one, as passes that follow fold no others."""
        numbers = _number(left), _number(right)
        if numbers[0] is None or numbers[1] is None:
            return self.builder_.emit(getattr(relax.op, operator)(left, right))
        return relax.const(np.asarray(getattr(np, operator)(*numbers), WIDE))

    def _scaled(self, convolution: Any, scale: Any) -> Any:
        """Fold a scale of a convolution's result into its weights."""
        data, weight = map(self.visit_expr, convolution.args)
        axis, number = _output_axis(convolution) or 0, _number(scale)
        channels = int(weight.ty.shape.values[axis])
        size = channels if math.prod(static_shape_of(scale) or (1,)) == channels else 1
        extents = [size if index == axis else 1 for index in range(weight.ty.ndim)]
        if number is None:
            column = self.builder_.emit(relax.op.reshape(scale, extents))
        else:
            column = relax.const(number.reshape(extents))
        wide = self._in_type(weight, WIDE)
        scaled = self._in_type(self.builder_.emit(relax.op.multiply(wide, column)), str(weight.ty.dtype))
        return rebuild_call(convolution, data, scaled)


def _has_type(value: Any, *types: str) -> bool:
    return isinstance(value.ty, relax.TensorType) and str(value.ty.dtype) in types


def _keeps_bits(links: Sequence[_Link]) -> bool:
    """Whether a chain ends with a shift, or scales by numbers alone, which cost half precision no bits."""
    return links[-1].operator in ("add", "subtract") or all(map(_is_moderate, links))


def _is_moderate(link: _Link) -> bool:
    number = scalar_of(link.constant)
    return link.operator in ("add", "subtract") or (number is not None and 2**-6 <= abs(number) <= 2**6)


def _number(operand: Any) -> Any | None:
    """Return the value of an inline constant, or None."""
    value: Any = getattr(operand, "value", None)
    return value.numpy() if hasattr(value, "numpy") else None


def _exponent(value: Any) -> float | None:
    """Return the constant exponent of a power of floats of the base's shape, or None."""
    is_power = operator_of(value) == "power" and _has_type(value, WIDE)
    return scalar_of(value.args[1]) if is_power and same(shape_of(value.args[0]), shape_of(value)) else None


def _is_per_channel(constant: Any, convolution: Any) -> bool:
    """Whether a constant has one element, or one per channel of a result with channels before the image, or last."""
    extents, weight = static_shape_of(constant), static_shape_of(convolution.args[1])
    if operator_of(convolution) == "matmul" and extents is not None and weight is not None:
        return math.prod(extents[:-1]) == 1 and extents[-1:] in ((), (1,), weight[1:])
    if extents is None or weight is None or len(extents) > len(weight):
        return False
    batch, channels, *image = (1,) * (len(weight) - len(extents)) + extents
    return (
        batch == 1 and all(extent == 1 for extent in image) and channels in (1, weight[_output_axis(convolution) or 0])
    )


def _output_axis(convolution: Any) -> int | None:
    """Return the axis of a product's weights that has the channels of its result; None if they are split."""
    if operator_of(convolution) == "matmul":
        return 1
    layout = str(convolution.attrs.kernel_layout)
    transposed = operator_of(convolution).endswith("_transpose")
    if layout[:2] not in (("IO", "OI") if transposed else ("OI",)) or (
        transposed and int(convolution.attrs.groups) != 1
    ):
        return None
    return layout.index("O")
