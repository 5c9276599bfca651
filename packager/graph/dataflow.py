"""Def-use queries on a Relax function without control flow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tvm import relax, tirx
from tvm.ir import is_prim_expr
from tvm.sym import Analyzer

from packager.bundle.dtypes import HALVES
from packager.graph.identity import IdentityMap, IdentitySet

if TYPE_CHECKING:
    from packager.bundle.arrays import Array
    from packager.ir.model import ImportedModel


class Dataflow:
    """Definitions and uses. ``constants`` are the parameters that are constants; ``array_of`` returns their values."""

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
        """Return the value bound to a variable; None for parameters, non-variables and None."""
        return self.values.get(variable) if isinstance(variable, relax.Var) else None

    def call(self, variable: Any, *operators: str) -> Any:
        """Return the call bound to a variable if it is of one of these operators (``matmul``), else None."""
        value = self.value(variable)
        return value if operator_of(value) in operators else None

    def readers(self, variable: Any) -> list[Any]:
        """Return the distinct variables whose bindings read ``variable``, in order."""
        return self._readers.get(variable, [])

    def is_result(self, variable: Any) -> bool:
        """Whether the function returns it, possibly in a tuple."""
        return variable in self._results

    def is_read_once(self, variable: Any) -> bool:
        """Whether one binding reads a variable, and the function does not return it."""
        return isinstance(variable, relax.Var) and len(self.readers(variable)) == 1 and not self.is_result(variable)

    def is_constant(self, variable: Any) -> bool:
        """Whether it is a constant of the model."""
        return variable in self.constants

    def array(self, variable: Any) -> Array | None:
        """Return the value of a constant, or None if unknown."""
        return self.array_of(variable) if self.is_constant(variable) else None


def flow_of(model: ImportedModel) -> Dataflow:
    """Return the dataflow of the ``main`` of a model, with the values of its constants."""
    main = model.module["main"]
    parameters = main.params[len(model.signature.inputs) :]
    arrays = IdentityMap(zip(parameters, (named.array for named in model.constants().values()), strict=True))
    return Dataflow(main, parameters, arrays.get)


def bindings_of(function: relax.Function) -> list[Any]:
    """Return the bindings of a function's blocks, in order."""
    return [binding for block in function.body.blocks for binding in block.bindings]


def operator_of(value: Any) -> str:
    """Return the name of the called operator without ``relax.``; an empty string for anything else."""
    name = getattr(value.op, "name", "") if isinstance(value, relax.Call) else ""
    return str(name).removeprefix("relax.")


def variables_of(value: Any) -> list[relax.Var]:
    """Return the Relax variables that an expression reads, in order of appearance."""
    found = IdentitySet()

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Var) and not is_prim_expr(expr):  # TVM uses one class for both
            found.add(expr)

    relax.analysis.post_order_visit(value, visit)
    return list(found)


def is_widening(call: Any) -> bool:
    """Whether a call is a cast from half precision to float32."""
    return operator_of(call) == "astype" and str(call.args[0].ty.dtype) in HALVES and str(call.attrs.dtype) == "float32"


def extents_of(value: Any) -> tuple[Any, ...] | None:
    """Return the TVM extents of a tensor or tensor type; None for other values, or if the rank is unknown."""
    ty = getattr(value, "ty", value)
    known = isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr)
    return tuple(ty.shape.values) if known else None


def shape_of(value: Any) -> tuple[Any, ...] | None:
    """Like ``extents_of``, with integers for static extents."""
    extents = extents_of(value)
    return extents and tuple(int(extent) if isinstance(extent, tirx.IntImm) else extent for extent in extents)


def axes_of(call: Any) -> tuple[int, ...] | None:
    """Return the order that a transpose puts axes in, counted from 0; None for other calls."""
    if operator_of(call) != "permute_dims":
        return None
    rank, axes = call.args[0].ty.ndim, call.attrs.axes
    return tuple(range(rank))[::-1] if axes is None else tuple(int(axis) % rank for axis in axes)


def slice_of(call: Any) -> tuple[slice, ...] | None:
    """Return the slices of the axes that a call takes, one after the other element; None for other calls."""
    slices = strided_slice_of(call)
    return None if slices is None or any(part.step is not None for part in slices) else slices


def strided_slice_of(call: Any) -> tuple[slice, ...] | None:
    """Return the slices of the axes that a call takes, also with steps; None for other calls."""
    rank = len(shape_of(call.args[0]) or ()) if operator_of(call) == "strided_slice" else 0
    lists = [argument.fields for argument in call.args[1:] if isinstance(argument, relax.Tuple)] if rank else []
    if len(lists) < 3 or not all(isinstance(number, tirx.IntImm) for fields in lists for number in fields):
        return None
    axes, begins, ends, *steps = ([int(number) for number in fields] for fields in lists)
    slices = [slice(None)] * rank
    for axis, begin, end, step in zip(axes, begins, ends, steps[0] if steps else [1] * len(axes), strict=True):
        slices[axis] = slice(begin, end, None if step == 1 else step)
    return tuple(slices)


def static_shape_of(value: Any) -> tuple[int, ...] | None:
    """Like ``shape_of``; None if any extent is symbolic."""
    shape = shape_of(value)
    return shape if shape is not None and all(isinstance(extent, int) for extent in shape) else None


def known_product(extents: Iterable[Any]) -> int:
    """Return the product of the extents that are no symbolic ones: the least, where each of those may be 1."""
    return math.prod(extent for extent in extents if isinstance(extent, int))


def is_one(extent: Any) -> bool:
    """Whether a TVM extent is known to be 1."""
    return isinstance(extent, tirx.IntImm) and int(extent) == 1


def same(a: Any, b: Any) -> bool:
    """Whether two extents, or sequences of extents, are provably equal."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(Analyzer().can_prove_equal(a, b))


def scalar_of(expr: Any) -> float | None:
    """Return the value of a scalar constant in the graph; None for anything else."""
    value: Any = getattr(expr, "value", None)
    if hasattr(value, "numpy"):
        array = value.numpy()
        return float(array.item()) if array.size == 1 else None
    return float(value) if isinstance(value, int | float) else None


def in_order(flow: Dataflow, variables: Sequence[Any]) -> tuple[Any, ...]:
    """Return the distinct variables in binding order."""
    wanted = IdentitySet(variables)
    return tuple(variable for variable in flow.variables if variable in wanted)


def only_last_is_read(flow: Dataflow, variables: Sequence[Any]) -> bool:
    """Whether only the last of these variables is read by others."""
    inner = IdentitySet(variables)
    for variable in variables[:-1]:
        if flow.is_result(variable) or any(reader not in inner for reader in flow.readers(variable)):
            return False
    return True


def called_function(value: Any) -> str | None:
    """Return the name of the PrimFunc or partition that a value calls, or None."""
    if isinstance(value, relax.Call):
        operator = getattr(value.op, "name", "")
        if operator == "relax.call_tir":
            return str(value.args[0].name_hint)
        if operator == "relax.call_dps_packed":
            return str(value.args[0].global_symbol)
    return None


def computed_from_constants(main: relax.Function, num_inputs: int) -> IdentitySet:
    """Return the parameters after ``num_inputs``, and the variables that depend only on them."""
    found = IdentitySet(main.params[num_inputs:])
    for binding in bindings_of(main):
        used = relax.analysis.free_vars(binding.value)
        if used and all(variable in found for variable in used):
            found.add(binding.var)
    return found
