"""Make the variables of a program's inputs, and read which of its dims are expressions over others.

torch writes an extent of an input as an expression where the source demands it: a mask as long as the past and the new
tokens together. Such an extent becomes a dim of its own, which each run compares with the expression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.export.graph_signature import ConstantArgument, InputKind, TensorArgument
from tvm import relax, tirx

from packager.errors import ModelError
from packager.frontends.dims import identifier
from packager.frontends.torch.shapes import Symbols
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import nodes_of
from packager.graph.symbolic import to_extent


@dataclass(frozen=True)
class Inputs:
    """Variables by the names of their placeholders: of the program's ``given`` inputs, and of its weights.

    ``shapes`` are those of inputs with extents that are expressions: what the extents of the variable have to be equal
    to. ``derived`` maps a dim to the program's expression for it.
    """

    given: Mapping[str, relax.Var]
    weights: Mapping[str, relax.Var]
    shapes: Mapping[str, list[Any]]
    derived: Mapping[str, Any]
    variables: Mapping[str, Any]
    symbols: Symbols

    def equalities(self) -> Iterator[tuple[Any, Any, str]]:
        """Yield each derived dim's variable, what it has to be equal to, and its name."""
        for name, expr in self.derived.items():
            yield self.variables[name], self.symbols.expression(expr), name

    def texts(self) -> dict[str, str]:
        """Return the derived dims as expressions over the other dims; without those that others are computed from."""
        plain = IdentityMap((variable, name) for name, variable in self.variables.items() if name not in self.derived)
        found = {}
        for variable, expr, name in self.equalities():
            used = nodes_of(expr, tirx.Var)
            if used and all(v in plain for v in used) and variable not in used:
                found[name] = str(to_extent(expr, plain))
        return found


def read_inputs(program: Any, symbols: Symbols, element_type: Callable[[Any], str]) -> Inputs:
    """Make the variables and fill ``symbols``. Raises ModelError for an input that is no tensor of known rank."""
    placeholders = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    stored = {**program.state_dict, **dict(program.named_buffers()), **program.constants}
    tensors: dict[str, torch.Tensor] = {}
    weights: dict[str, relax.Var] = {}
    for spec in program.graph_signature.input_specs:
        name = spec.arg.name
        if spec.kind is not InputKind.USER_INPUT:
            if spec.target not in stored or not isinstance(stored[spec.target], torch.Tensor):
                raise ModelError(
                    f"the program needs {spec.target or name!r}, which is no tensor",
                    hint="export a program whose weights and constants are tensors",
                )
            tensor = stored[spec.target]
            weights[name] = relax.Var(name, relax.TensorType(list(tensor.shape), element_type(tensor.dtype)))
        elif isinstance(spec.arg, TensorArgument):
            tensors[name] = placeholders[name].meta["val"]
        elif not isinstance(spec.arg, ConstantArgument):  # torch has computed with a constant, a flag for example
            raise ModelError(
                f"input {name!r} is a number, not a tensor",
                hint="export the program with a fixed number, or with a tensor of rank 0",
            )
    variables, derived = _dims(tensors, symbols)
    names = {str(expr): name for name, expr in derived.items()}
    given, shapes = {}, {}
    for name, tensor in tensors.items():
        extents = [variables[names.get(str(e), str(e))] if isinstance(e, torch.SymInt) else e for e in tensor.shape]
        given[name] = relax.Var(name, relax.TensorType(extents, element_type(tensor.dtype)))
        if any(isinstance(e, torch.SymInt) and str(e) in names for e in tensor.shape):
            shapes[name] = symbols.shape(tensor)
    return Inputs(given, weights, shapes, derived, variables, symbols)


def _dims(tensors: Mapping[str, torch.Tensor], symbols: Symbols) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the variable of each dim, and the expressions of those that are no symbol. Fills ``symbols``."""
    variables: dict[str, Any] = {}
    derived: dict[str, Any] = {}
    places: dict[str, str] = {}
    for name, tensor in tensors.items():
        for axis, extent in enumerate(tensor.shape):
            if not isinstance(extent, torch.SymInt):
                continue
            expr = extent.node.expr
            places.setdefault(str(expr), f"input {name!r}: axis {axis}")
            if expr.is_Symbol:
                variables.setdefault(str(expr), tirx.Var(str(expr), "int64"))
            elif expr not in derived.values():
                derived[identifier(str(expr), {*derived, *map(str, extent.node.shape_env.var_to_range)})] = expr
    symbols.variables.update(variables)
    variables |= {name: tirx.Var(name, "int64") for name in derived}
    pending = dict(derived)
    while pending:
        solved = {name for name, expr in pending.items() if _solve(expr, variables[name], symbols)}
        if not solved:
            expr = next(iter(pending.values()))
            raise ModelError(
                f"{places[str(expr)]} is {expr}, from which its dims do not follow",
                hint="export the program with dims that are extents of inputs",
            )
        pending = {name: expr for name, expr in pending.items() if name not in solved}
    return variables, derived


def _solve(expr: Any, variable: Any, symbols: Symbols) -> bool:
    """Learn the symbol of ``expr`` that is unknown, if there is one; tell whether all its symbols are known now.

    Of ``2*half + 1`` it is ``(variable - 1) // 2``; that the division leaves nothing is for the run to check.
    """
    unknown = [symbol for symbol in expr.free_symbols if str(symbol) not in symbols.variables]
    if not unknown:
        return True
    if len(unknown) > 1 or not expr.is_polynomial(unknown[0]) or sympy.degree(expr, unknown[0]) != 1:
        return False
    factor = expr.coeff(unknown[0])
    if not factor.is_Integer or factor < 1:
        return False
    rest = symbols.expression(expr - factor * unknown[0])
    symbols.variables[str(unknown[0])] = tirx.floordiv(variable - rest, tirx.IntImm("int64", int(factor)))
    return True
