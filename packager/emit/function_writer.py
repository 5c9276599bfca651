"""Writes the bindings of one Relax function as nodes of an ONNX graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax

from packager.emit.errors import CannotWriteError
from packager.emit.graph_writer import GraphWriter
from packager.graph.dataflow import bindings_of, called_function, operator_of, shape_of, variables_of
from packager.graph.identity import IdentityMap


class FunctionWriter(GraphWriter):
    """A graph, and the values in it of Relax expressions: a name, a list of them for a tuple, or a ShapeExpr."""

    def __init__(self, taken: Sequence[str], extent_values: IdentityMap[tuple[str, int]]) -> None:
        super().__init__(taken, extent_values)
        self.values: IdentityMap[Any] = IdentityMap()

    def value(self, expr: Any) -> str:
        """Return the name of a tensor's value."""
        found = self.any_value(expr)
        if isinstance(found, str):
            return found
        if isinstance(found, relax.ShapeExpr):
            return self.shape(found.values)
        raise CannotWriteError("an operand is a tuple")

    def fields(self, expr: Any) -> list[str]:
        """Return the names of a tuple's values."""
        found = self.any_value(expr)
        return found if isinstance(found, list) else [str(found)]

    def any_value(self, expr: Any) -> Any:
        """Return what a Relax expression is in the graph."""
        if expr in self.values:
            return self.values[expr]
        if isinstance(expr, relax.Tuple):
            return [self.any_value(field) for field in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return self.any_value(expr.tuple_value)[expr.index]
        if isinstance(expr, relax.ShapeExpr):
            return expr
        array = array_of(expr)
        if array is not None:
            return self.constant(array)
        raise CannotWriteError(f"it reads {expr}, which is not a tensor")


Rule = Callable[[FunctionWriter, Any], Any]
Rules = Mapping[str, Rule]


def array_of(expr: Any) -> Any:
    """Return the value of a constant in the graph; None for anything else."""
    value: Any = getattr(expr, "value", None)
    return value.numpy() if hasattr(value, "numpy") else None


def write_bindings(
    writer: FunctionWriter, function: relax.Function, rules: Rules, nodes: Mapping[str, str]
) -> dict[str, list[tuple[str, str]]]:
    """Write the bindings; return what cannot be written: operator -> the nodes that use it, with reasons.

    ``nodes`` maps names of variables to the source graph's nodes.
    """
    refused: dict[str, list[tuple[str, str]]] = {}
    lost: IdentityMap[bool] = IdentityMap()
    for binding in bindings_of(function):
        writer.source = nodes.get(binding.var.name, "")
        value = binding.value
        if any(read in lost for read in variables_of(value)):
            lost[binding.var] = True
            continue
        try:
            writer.values[binding.var] = _write(writer, value, rules)
        except CannotWriteError as error:
            lost[binding.var] = True
            use = (writer.source or str(binding.var.name), str(error))
            refused.setdefault(title_of(value), []).append(use)
    return refused


def _write(writer: FunctionWriter, value: Any, rules: Rules) -> Any:
    operator = operator_of(value)
    if not isinstance(value, relax.Call):
        return writer.any_value(value)
    if called_function(value) is not None:
        raise CannotWriteError("it is computed by loops of packager's own, which are no ONNX operator")
    if operator not in rules:
        raise CannotWriteError("there is no rule for it")
    return rules[operator](writer, value)


def title_of(value: Any) -> str:
    """Return the name of what a value calls, for messages."""
    return called_function(value) or operator_of(value) or type(value).__name__


def rank(expr: Any) -> int:
    """Return the rank of a tensor. Raises CannotWriteError if it is unknown."""
    return len(extents(expr))


def extents(expr: Any) -> tuple[Any, ...]:
    """Return the extents of a tensor, integers where static. Raises CannotWriteError if the rank is unknown."""
    shape = shape_of(expr)
    if shape is None:
        raise CannotWriteError("the rank of a tensor is not known")
    return shape


def static_extents(expr: Any, axes: Sequence[int] | None = None) -> list[int]:
    """Return these extents of a tensor, or all. Raises CannotWriteError if one is symbolic."""
    shape = extents(expr)
    chosen = [shape[axis] for axis in (range(len(shape)) if axes is None else axes)]
    if not all(isinstance(extent, int) for extent in chosen):
        raise CannotWriteError("an extent is symbolic that has to be known")
    return chosen


def dtype_of(expr: Any) -> str:
    """Return the element type of a tensor."""
    return str(expr.ty.dtype)


def is_integer(expr: Any) -> bool:
    """Whether the elements of a tensor are integers."""
    return dtype_of(expr).startswith(("int", "uint"))
