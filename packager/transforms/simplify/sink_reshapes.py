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
        *(
            "astype",
            "exp",
            "log",
            "sqrt",
            "rsqrt",
            "erf",
            "tanh",
            "sigmoid",
            "nn.relu",
            "nn.gelu",
            "nn.gelu_tanh",
            "nn.silu",
        ),
    )
)


def sink_reshapes(module: tvm.IRModule, *, of_unit_axes: bool = False) -> tvm.IRModule:
    """Move reshapes in ``main`` below elementwise operators that read only reshapes, or only those ``of_unit_axes``.

    All operands except scalars must be reshapes of tensors of the same shape. Where reshapes only add or drop axes of
    extent 1, as around the masks of shifted windows, others are reshaped likewise. Leaves dead reshapes.
    """
    mover = _Mover(of_unit_axes)
    moved = map_bindings(module, mover.moved, mover.renamed)
    return relax.transform.Normalize()(moved) if mover.variables else module


class _Mover:
    def __init__(self, of_unit_axes: bool) -> None:
        self.of_unit_axes = of_unit_axes
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
        if operator_of(call) == "reshape" and self._moves(call.args[0], variable):
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

    def _moves(self, source: Any, view: relax.Var) -> bool:
        before, after = shape_of(source), shape_of(view)
        return isinstance(source, relax.Var) and (
            not self.of_unit_axes or (after is not None and _reshaped_likewise(after, after, before) is not None)
        )

    def _inner(self, variable: relax.Var, call: Any) -> tuple[relax.Var, list[Any]] | None:
        """Return the tensor that ``call`` can read instead of its reshape, and the new operands; None if there is
        none."""
        shape = shape_of(variable)
        if operator_of(call) not in ELEMENTWISE or shape is None:
            return None
        operands: list[Any] = []
        source = None
        whole = next((self.sources[v] for v in call.args if v in self.sources and same(shape_of(v), shape)), None)
        for operand in call.args:
            extents = shape_of(operand)
            if extents is None or not isinstance(operand, relax.Var):
                if extents:
                    return None
                operands.append(operand)
                continue
            found = self.sources.get(operand)
            if found is None or not same(extents, shape):
                likewise = None if whole is None else _reshaped_likewise(extents, shape, shape_of(whole))
                if likewise is None:
                    return None
                operands.append(relax.op.reshape(operand, likewise))
                continue
            before, first = shape_of(found), None if source is None else shape_of(source)
            if before is None or (first is not None and not same(before, first)):
                return None
            source = found if source is None else source
            operands.append(found)
        return None if source is None else (source, operands)


def _reshaped_likewise(extents: tuple[Any, ...], view: tuple[Any, ...], source: Any) -> list[Any] | None:
    """Return the extents with which a tensor that broadcasts to ``view`` broadcasts to ``source``, if these two differ
    in axes of extent 1 alone; else None."""
    if source is None or len(extents) > len(view):
        return None
    padded = (*[1] * (len(view) - len(extents)), *extents)
    kept = [axis for axis, extent in enumerate(view) if not same(extent, 1)]
    wide = [axis for axis, extent in enumerate(source) if not same(extent, 1)]
    if not same(tuple(view[axis] for axis in kept), tuple(source[axis] for axis in wide)):
        return None
    result: list[Any] = [1] * len(source)
    for axis, before in zip(kept, wide, strict=True):
        result[before] = padded[axis]
    return result
