"""Moves reshapes below elementwise operators.

Exporters flatten the rows of a matmul and restore them right after it, which prevents fusing a multi-operator
activation into the matmul.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import operator_of, same, shape_of
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import map_bindings, map_operands

ELEMENTWISE = frozenset(
    (
        *("add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "clip", "negative", "abs", "square"),
        *("exp", "log", "sqrt", "rsqrt", "erf", "tanh", "sigmoid", "nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu"),
    )
)


def sink_reshapes(module: tvm.IRModule) -> tvm.IRModule:
    """Move reshapes in ``main`` below elementwise operators that read only reshapes.

    All operands except scalars must be reshapes of tensors of the same shape. Leaves dead reshapes.
    """
    mover = _Mover()
    moved = map_bindings(module, mover.moved, mover.renamed)
    return relax.transform.Normalize()(moved) if mover.variables else module


class _Mover:
    def __init__(self) -> None:
        self.variables: IdentityMap[relax.Var] = IdentityMap()  # replacements
        self.sources: IdentityMap[relax.Var] = IdentityMap()  # variable -> the tensor that it reshapes

    def renamed(self, expr: Any) -> Any:
        """Substitute replaced variables in an expression."""
        return self.variables.get(expr, expr) if isinstance(expr, relax.Var) else map_operands(expr, self.renamed)

    def moved(self, binding: Any) -> list[Any]:
        """Return the bindings that replace one."""
        if not isinstance(binding, relax.VarBinding):
            return [binding]
        variable, call = binding.var, self.renamed(binding.value)
        if operator_of(call) == "reshape" and isinstance(call.args[0], relax.Var):
            self.sources[variable] = call.args[0]
        inner = self._inner(variable, call)
        if inner is None:
            return [relax.VarBinding(variable, call)]
        source, operands = inner
        computed = type(variable)(variable.name, relax.TensorType(source.ty.shape, variable.ty.dtype))
        view = type(variable)(f"{variable.name}_view", variable.ty)
        self.variables[variable] = view
        self.sources[view] = computed
        return [
            relax.VarBinding(computed, relax.Call(call.op, operands, call.attrs, call.ty_args)),
            relax.VarBinding(view, relax.op.reshape(computed, variable.ty.shape)),
        ]

    def _inner(self, variable: relax.Var, call: Any) -> tuple[relax.Var, list[Any]] | None:
        """Return the tensor that ``call`` can read instead of its reshape, and the new operands; None if there is
        none."""
        shape = shape_of(variable)
        if operator_of(call) not in ELEMENTWISE or shape is None:
            return None
        operands: list[Any] = []
        source = None
        for operand in call.args:
            extents = shape_of(operand)
            if extents is None or not isinstance(operand, relax.Var):
                if extents:
                    return None
                operands.append(operand)
                continue
            found = self.sources.get(operand)
            if found is None or not same(extents, shape):
                return None
            before, first = shape_of(found), None if source is None else shape_of(source)
            if before is None or (first is not None and not same(before, first)):
                return None
            source = found if source is None else source
            operands.append(found)
        return None if source is None else (source, operands)
