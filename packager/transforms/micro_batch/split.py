"""Rewrites ``main`` to compute one of several equal parts of its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax
from tvm_ffi import structural_equal

from packager.graph.dataflow import bindings_of, operator_of
from packager.graph.identity import IdentityMap
from packager.transforms.micro_batch.rules import (
    SHAPED,
    Count,
    NotSeparableError,
    Parts,
    fields_of,
    known_extents,
    part_of,
    parts_of_call,
)


def split(main: relax.Function, parted: Sequence[bool], count: Count) -> relax.Function:
    """Return ``main`` for one of ``count`` parts of the ``parted`` parameters, split along their first axes.

    Raises NotSeparableError unless part i of every result depends only on part i of these.
    """
    splitter = _Splitter(main, count)
    splitter.find_parts(parted)
    return splitter.rewrite()


class _Splitter:
    """``parts`` maps variables to the fields that have parts; ``values`` to their replacements."""

    def __init__(self, main: relax.Function, count: Count) -> None:
        self.main = main
        self.count = count
        self.bindings = bindings_of(main)
        self.parts: IdentityMap[Parts] = IdentityMap()
        self.values: IdentityMap[Any] = IdentityMap()

    def find_parts(self, parted: Sequence[bool]) -> None:
        """Infer which values have parts. Raises NotSeparableError unless all results have."""
        for parameter, own in zip(self.main.params, parted, strict=True):
            self.parts[parameter] = (own,)
        for binding in self.bindings:
            self.parts[binding.var] = self._parts(binding.value)
        if not all(self._parts(self.main.body.body)):
            raise NotSeparableError("a result has no batch axis")

    def rewrite(self) -> relax.Function:
        """Return the function that computes one part. Raises NotSeparableError if a result gets an unexpected shape."""
        parameters = [self._parameter(parameter) for parameter in self.main.params]
        builder = relax.BlockBuilder()
        with builder.function("main", parameters, attrs=dict(self.main.attrs or {})):
            with builder.dataflow():
                for binding in self.bindings:
                    made = builder.emit(self._rewritten(binding.value), binding.var.name)
                    self.values[binding.var] = made
                    expected = self._part_of(binding.var)
                    if not structural_equal(made.ty, expected):
                        raise NotSeparableError(f"{binding.var.name} is {made.ty}, expected {expected}")
                result = builder.emit_output(self._rewritten(self.main.body.body))
            builder.emit_func_output(result)
        made = builder.get()["main"]
        if any(variable.same_as(self.count) for variable in relax.analysis.free_symbolic_vars(made)):
            raise NotSeparableError("the extent of the batch is used as a number")
        return made

    def _parameter(self, variable: relax.Var) -> relax.Var:
        parted = any(self.parts[variable])
        made = relax.Var(variable.name, self._part_of(variable)) if parted else variable
        self.values[variable] = made
        return made

    def _parts(self, expr: Any) -> Parts:
        """Return which fields of a value have parts."""
        if isinstance(expr, relax.Var):  # dims are also relax.Var
            return self.parts.get(expr, (False,))
        if isinstance(expr, relax.Tuple):
            return tuple(self._parted(field) for field in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return (self._parts(expr.tuple_value)[expr.index],)
        if isinstance(expr, relax.Call):
            return parts_of_call(expr, [self._parted(argument) for argument in expr.args], self.count)
        return (False,) * fields_of(expr.ty)

    def _parted(self, expr: Any) -> bool:
        parts = self._parts(expr)
        if any(parts) and not all(parts):
            raise NotSeparableError("only some fields of a tuple have a batch axis")
        return any(parts)

    def _rewritten(self, expr: Any) -> Any:
        if isinstance(expr, relax.Var):
            return self.values.get(expr, expr)
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._rewritten(field) for field in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self._rewritten(expr.tuple_value), expr.index)
        if not isinstance(expr, relax.Call):
            return expr
        arguments = [self._rewritten(argument) for argument in expr.args]
        if operator_of(expr) in SHAPED and any(self._parts(expr)):
            shape = relax.ShapeExpr(self._extents(expr.ty))
            arguments = [shape if isinstance(argument, relax.ShapeExpr) else argument for argument in arguments]
        return relax.Call(expr.op, arguments, expr.attrs, expr.ty_args)

    def _part_of(self, variable: relax.Var) -> Any:
        """Return the type of one part of a variable."""
        parts, ty = self.parts[variable], variable.ty
        if not any(parts):
            return ty
        types = ty.fields if isinstance(ty, relax.TupleType) else [ty]
        made = [
            relax.TensorType(self._extents(field), field.dtype) if own else field
            for field, own in zip(types, parts, strict=True)
        ]
        return relax.TupleType(made) if isinstance(ty, relax.TupleType) else made[0]

    def _extents(self, ty: Any) -> list[Any]:
        first, *others = known_extents(ty)
        part = part_of(first, self.count)
        if part is None:
            raise NotSeparableError(f"{first} rows do not split into {self.count} parts")
        return [part, *others]
