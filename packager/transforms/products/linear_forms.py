"""Composes products with constant matrices that follow each other, are added, or are of concatenated rows.

``[x, y A] B`` is ``x B1 + y (A B2)``: messages that are mixed with what gets them (Sarlin et al. 2020, "SuperGlue")
cost one product less, and nothing is concatenated. ``x W + s (x A) B`` is ``x (W + s A B)``: low-rank adapters (Hu et
al. 2021, "LoRA") cost nothing. Matrices are composed at build time, in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import tvm
from tvm import relax

from packager.bundle.dtypes import FLOATS
from packager.graph.dataflow import Dataflow, computed_from_constants, operator_of, same, scalar_of, shape_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import Bindings, map_bindings, map_operands, tidy

WIDE = "float32"


@dataclass(frozen=True)
class _Form:
    """The sum of products of ``rows`` with ``matrices`` of the same columns, and of ``vectors``.

    These are expressions of constants in float32. ``products`` and ``work`` are how many products the model has for it,
    and their multiplications for a row; ``joins`` whether it concatenates any rows.
    """

    rows: tuple[Any, ...]
    matrices: tuple[Any, ...]
    vectors: tuple[Any, ...]
    products: int
    work: int
    joins: bool = False

    def is_worth_it(self, columns: int) -> bool:
        """Whether fewer products do, or as many without a concatenation, and they are no more work."""
        fewer = len(self.rows) < self.products or (self.joins and len(self.rows) <= self.products)
        return fewer and sum(_width(rows) for rows in self.rows) * columns <= self.work


def compose_products(module: tvm.IRModule, num_inputs: int) -> tvm.IRModule:
    """Rewrite the products in ``main`` that are composed of others; parameters after ``num_inputs`` are constant."""
    forms = _Forms(module["main"], num_inputs)
    roots = [variable for variable in forms.found if variable not in forms.used]
    worth = IdentitySet(v for v in roots if forms.found[v].is_worth_it(_width(v)))
    if not len(worth):
        return module

    def rewrite(binding: Any) -> list[Any]:
        return _written(binding.var, forms.found[binding.var]) if binding.var in worth else [binding]

    return tidy(map_bindings(module, rewrite))


class _Forms:
    """The forms of variables: ``found``; ``used`` are those that others are composed of."""

    def __init__(self, main: relax.Function, num_inputs: int) -> None:
        self.flow, self.constants = Dataflow(main), computed_from_constants(main, num_inputs)
        self.found: IdentityMap[_Form] = IdentityMap()
        self.used = IdentitySet()
        for variable in self.flow.variables:
            form = self._form(variable) if variable not in self.constants else None
            if form is not None:
                self.found[variable] = form

    def _form(self, variable: Any) -> _Form | None:
        call = self.flow.value(variable)
        match operator_of(call):
            case "matmul":
                return self._product(call) if self._is_matrix(call.args[1]) else None
            case "add":
                return self._sum(variable, *call.args)
            case "multiply":
                factor = next((scalar_of(operand) for operand in call.args if scalar_of(operand) is not None), None)
                inner = next((self._inner(operand) for operand in call.args if self._inner(operand)), None)
                return None if factor is None or inner is None else self._use(_scaled(inner, factor), *call.args)
        return None

    def _is_matrix(self, operand: Any) -> bool:
        """Whether it is a matrix of the model, as it is or transposed, which is not unpacked from fewer bits."""
        extents, dtype = shape_of(operand), str(getattr(operand.ty, "dtype", ""))
        while (view := self.flow.call(operand, "permute_dims")) is not None:
            operand = view.args[0]
        own = operand in self.constants and self.flow.value(operand) is None
        return own and dtype in FLOATS and extents is not None and len(extents) == 2

    def _inner(self, operand: Any) -> _Form | None:
        """Return the form of an operand that nothing else reads."""
        known = isinstance(operand, relax.Var) and operand in self.found
        return self.found[operand] if known and self.flow.is_read_once(operand) else None

    def _use(self, form: _Form, *operands: Any) -> _Form:
        for operand in operands:
            if self._inner(operand) is not None:
                self.used.add(operand)
        return form

    def _product(self, call: Any) -> _Form:
        rows, matrix = call.args
        steps, columns = map(int, shape_of(matrix) or ())
        wide, own = _wide(matrix), steps * columns
        joined = self.flow.call(rows, "concat") if self.flow.is_read_once(rows) else None
        if joined is None or int(joined.attrs.axis) % rows.ty.ndim != rows.ty.ndim - 1:
            inner = self._inner(rows)
            if inner is None:
                return _Form((rows,), (wide,), (), 1, own)
            return self._use(_multiplied(inner, wide, inner.products + 1, inner.work + own), rows)
        parts, begin, total = list(joined.args[0].fields), 0, _Form((), (), (), 1, own, joins=True)
        for part in parts:
            width = _width(part)
            own_rows = relax.op.strided_slice(wide, [0], [begin], [begin + width])
            inner = self._inner(part) or _Form((part,), (), (), 0, 0)
            term = _multiplied(inner, own_rows, inner.products, inner.work) if inner.matrices else None
            total = _added(total, term or _Form((part,), (own_rows,), (), 0, 0))
            begin += width
        return self._use(total, *parts)

    def _sum(self, variable: Any, a: Any, b: Any) -> _Form | None:
        first, second = self._inner(a), self._inner(b)
        if first is not None and second is not None:
            whole = all(same(shape_of(each), shape_of(variable)) for each in (a, b))
            return self._use(_added(first, second), a, b) if whole else None
        for inner, other in ((first, b), (second, a)):
            if inner is not None and other in self.constants and same(shape_of(other), (_width(variable),)):
                vectors = (*inner.vectors, _wide(other))
                form = _Form(inner.rows, inner.matrices, vectors, inner.products, inner.work, inner.joins)
                return self._use(form, a, b)
        return None


def _width(rows: Any) -> int:
    return int(rows.ty.shape.values[-1])


def _wide(constant: Any) -> Any:
    return constant if str(constant.ty.dtype) == WIDE else relax.op.astype(constant, WIDE)


def _scaled(form: _Form, factor: float) -> _Form:
    def scaled(constants: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(relax.op.multiply(constant, relax.const(factor, WIDE)) for constant in constants)

    return _Form(form.rows, scaled(form.matrices), scaled(form.vectors), form.products, form.work, form.joins)


def _multiplied(form: _Form, matrix: Any, products: int, work: int) -> _Form:
    """Return the form of what is multiplied by a matrix."""
    matrices = tuple(relax.op.matmul(own, matrix) for own in form.matrices)
    vectors = tuple(relax.op.matmul(vector, matrix) for vector in form.vectors)
    return _Form(form.rows, matrices, vectors, products, work, form.joins)


def _added(a: _Form, b: _Form) -> _Form:
    """Return a sum, in which each of the rows has one matrix."""
    rows, matrices = list(a.rows), list(a.matrices)
    for own, matrix in zip(b.rows, b.matrices, strict=True):
        place = next((place for place, other in enumerate(rows) if other.same_as(own)), None)
        if place is None:
            rows.append(own)
            matrices.append(matrix)
        else:
            matrices[place] = relax.op.add(matrices[place], matrix)
    vectors, products = (*a.vectors, *b.vectors), a.products + b.products
    return _Form(tuple(rows), tuple(matrices), vectors, products, a.work + b.work, a.joins or b.joins)


def _written(variable: Any, form: _Form) -> list[Any]:
    """Return the bindings of a form: the last product adds the vectors and the others."""
    made, dtype = Bindings(variable, "_composed"), str(variable.ty.dtype)

    def bound(expr: Any) -> Any:
        return made.bind(map_operands(expr, bound)) if isinstance(expr, relax.Call) else expr

    def narrow(constant: Any) -> Any:
        return bound(constant if dtype == WIDE else relax.op.astype(constant, dtype))

    total = None
    for place, (rows, matrix) in enumerate(zip(form.rows, form.matrices, strict=True)):
        product = made.bind(relax.op.matmul(rows, narrow(matrix)))
        if place == len(form.rows) - 1 and form.vectors:
            product = made.bind(relax.op.add(product, narrow(reduce(relax.op.add, form.vectors))))
        total = product if total is None else made.bind(relax.op.add(product, total))
    return made.ended(total)
