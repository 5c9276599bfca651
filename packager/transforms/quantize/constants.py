"""Constant propagation in a function that is being rewritten, and its new constants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm_ffi import structural_map

from packager.bundle.arrays import Array
from packager.graph.dataflow import operator_of, static_shape_of
from packager.graph.evaluate import evaluate_call
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import unique_name
from packager.ir.model import NamedArray
from packager.transforms.quantize.values import union

# Larger constants are folded later, with all other weights.
MAX_ELEMENTS = 1 << 16
MOVEMENT = ("reshape", "permute_dims", "expand_dims", "squeeze")


class Constants:
    """``known`` maps variables to values, ``sources`` to the model's constants that they derive from."""

    def __init__(self, main: relax.Function, num_inputs: int, constants: Mapping[str, NamedArray]) -> None:
        parameters = main.params[num_inputs:]
        self.given = constants
        self.known: IdentityMap[Array] = IdentityMap()
        self.names: IdentityMap[str] = IdentityMap()
        self.sources: IdentityMap[tuple[str, ...]] = IdentityMap()
        for parameter, (name, constant) in zip(parameters, constants.items(), strict=True):
            self.known[parameter] = constant.array
            self.names[parameter] = name
            self.sources[parameter] = constant.sources
        self.added: IdentityMap[tuple[str, NamedArray]] = IdentityMap()

    def array(self, expr: Any) -> Array | None:
        """Return the value of an expression, or None if unknown."""
        if isinstance(expr, GenericConst):
            return np.asarray(expr.value.numpy())
        return self.known.get(expr)

    def sources_of(self, *exprs: Any) -> tuple[str, ...]:
        """Return the model's constants that expressions derive from."""
        return union(*(self.sources.get(expr, ()) for expr in exprs))

    def propagate(self, variable: Any, call: relax.Call) -> None:
        """Evaluate a binding, if the result is small or only reorders a known value."""
        shape = static_shape_of(variable)
        if shape is None or operator_of(call) == "dequantize":
            return
        operands = [argument for argument in call.args if isinstance(argument, relax.Var)]
        if not operands or not all(operand in self.known for operand in operands):
            return
        if operator_of(call) not in MOVEMENT and math.prod(shape) > MAX_ELEMENTS:
            return
        array = evaluate_call(call, self.known)
        if array is not None:
            self.known[variable] = array
            self.sources[variable] = self.sources_of(*operands)

    def make(self, array: Array, stem: str, sources: tuple[str, ...]) -> Any:
        """Return an array as an expression: a new constant derived from ``sources``, or a scalar."""
        if array.ndim == 0:
            return relax.const(array.item(), array.dtype.name)
        constant = relax.const(tvm.runtime.tensor(np.ascontiguousarray(array)))
        self.added[constant.value] = (stem, NamedArray(array, sources))
        return constant

    def lift(self, main: relax.Function) -> tuple[relax.Function, dict[str, NamedArray]]:
        """Append the new constants to the function's parameters; return it with the values of all constants."""
        lifted: IdentityMap[relax.Var] = IdentityMap()
        values = dict(self.given)

        def visit(constant: GenericConst) -> Any:
            if constant.value not in self.added:
                return constant
            if constant.value not in lifted:
                stem, value = self.added[constant.value]
                name = unique_name(stem, values)
                values[name] = value
                lifted[constant.value] = relax.Var(name, relax.TensorType(value.array.shape, value.array.dtype.name))
            return lifted[constant.value]

        body = structural_map(main.body, (GenericConst, visit))
        parameters = [*main.params, *lifted.values()]
        return relax.Function(parameters, body, main.ret_ty, main.is_pure, main.attrs), values
