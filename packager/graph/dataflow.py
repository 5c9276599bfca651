"""A Relax function of plain bindings as a graph that can be asked: what computes a value, and who reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tvm import relax, tirx
from tvm.ir import is_prim_expr
from tvm.sym import Analyzer

from packager.graph.identity import IdentityMap, IdentitySet

if TYPE_CHECKING:
    from packager.bundle.arrays import Array


class Dataflow:
    """``constants`` are the parameters that are constants; ``array_of`` gives the value of one of these."""

    def __init__(
        self,
        function: relax.Function,
        constants: Iterable[Any] = (),
        array_of: Callable[[Any], Array | None] = lambda _variable: None,
    ) -> None:
        self.constants = IdentitySet(constants)
        self.array_of = array_of
        self.values = IdentityMap((binding.var, binding.value) for binding in bindings_of(function))
        self.variables = list(self.values)
        self._readers: IdentityMap[list[Any]] = IdentityMap()
        for variable, value in self.values.items():
            for read in variables_of(value):
                self._readers.setdefault(read, []).append(variable)
        self._results = IdentitySet(variables_of(function.body.body))

    def value(self, variable: Any) -> Any:
        """Return what a variable is bound to; None for a parameter, and for what is no variable."""
        return self.values.get(variable)

    def call(self, variable: Any, *operators: str) -> Any:
        """Return the call that a variable is bound to if it is of one of these operators (``matmul``), else None."""
        value = self.value(variable)
        return value if operator_of(value) in operators else None

    def readers(self, variable: Any) -> list[Any]:
        """Return the variables whose bindings read ``variable``, in order, each once."""
        return self._readers.get(variable, [])

    def is_result(self, variable: Any) -> bool:
        """Whether it is what the function returns, or a part of that."""
        return variable in self._results

    def is_constant(self, variable: Any) -> bool:
        """Whether it is one of the model's constants."""
        return variable in self.constants

    def array(self, variable: Any) -> Array | None:
        """Return the value of a constant where it is known."""
        return self.array_of(variable) if self.is_constant(variable) else None


def bindings_of(function: relax.Function) -> list[Any]:
    """Return the bindings of a function's blocks, in order."""
    return [binding for block in function.body.blocks for binding in block.bindings]


def operator_of(value: Any) -> str:
    """Return the name of the operator that is called, without ``relax.``; an empty text for anything else."""
    name = getattr(value.op, "name", "") if isinstance(value, relax.Call) else ""
    return str(name).removeprefix("relax.")


def variables_of(value: Any) -> list[relax.Var]:
    """Return the Relax variables that an expression reads, in order of appearance."""
    found = IdentitySet()

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Var) and not is_prim_expr(expr):  # TVM has one class for both
            found.add(expr)

    relax.analysis.post_order_visit(value, visit)
    return list(found)


def extents_of(value: Any) -> tuple[Any, ...] | None:
    """Return the extents of a tensor or of a tensor's type, as TVM has them; None for others, and without a rank."""
    ty = getattr(value, "ty", value)
    known = isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr)
    return tuple(ty.shape.values) if known else None


def shape_of(value: Any) -> tuple[Any, ...] | None:
    """Return the same as ``extents_of``, integers where extents are known."""
    extents = extents_of(value)
    return extents and tuple(int(extent) if isinstance(extent, tirx.IntImm) else extent for extent in extents)


def static_shape_of(value: Any) -> tuple[int, ...] | None:
    """Return the same as ``shape_of``; None also where an extent is symbolic."""
    shape = shape_of(value)
    return shape if shape is not None and all(isinstance(extent, int) for extent in shape) else None


def same(a: Any, b: Any) -> bool:
    """Whether two extents, or two sequences of them, are equal for all values of the dims."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(Analyzer().can_prove_equal(a, b))


def scalar_of(expr: Any) -> float | None:
    """Return a number that stands in the graph; None for anything else."""
    value: Any = getattr(expr, "value", None)
    if hasattr(value, "numpy"):
        array = value.numpy()
        return float(array.item()) if array.size == 1 else None
    return float(value) if isinstance(value, int | float) else None


def in_order(flow: Dataflow, variables: Sequence[Any]) -> tuple[Any, ...]:
    """Return variables in the order of their bindings, each once."""
    wanted = IdentitySet(variables)
    return tuple(variable for variable in flow.variables if variable in wanted)


def only_last_is_read(flow: Dataflow, variables: Sequence[Any]) -> bool:
    """Whether of all these variables only the last given is read by others."""
    inner = IdentitySet(variables)
    for variable in variables[:-1]:
        if flow.is_result(variable) or any(reader not in inner for reader in flow.readers(variable)):
            return False
    return True


def called_function(value: Any) -> str | None:
    """Return the name of the PrimFunc or partition that a binding's value calls, or None if it is no such call."""
    if isinstance(value, relax.Call):
        operator = getattr(value.op, "name", "")
        if operator == "relax.call_tir":
            return str(value.args[0].name_hint)
        if operator == "relax.call_dps_packed":
            return str(value.args[0].global_symbol)
    return None


def computed_from_constants(main: relax.Function, num_inputs: int) -> IdentitySet:
    """Return the parameters after ``num_inputs``, and the variables that depend on them alone."""
    found = IdentitySet(main.params[num_inputs:])
    for binding in bindings_of(main):
        used = relax.analysis.free_vars(binding.value)
        if used and all(variable in found for variable in used):
            found.add(binding.var)
    return found
