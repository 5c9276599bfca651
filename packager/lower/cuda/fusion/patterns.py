"""Patterns of the calls in ``main``, by which TVM fuses them: read, and changed for some calls of a PrimFunc."""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, called_function, operator_of, static_shape_of
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import map_bindings, with_main

PATTERN = "op_pattern"


class Patterns:
    """The patterns of a module whose PrimFuncs have them; those that are set are the calls' own."""

    def __init__(self, module: tvm.IRModule) -> None:
        self.module = module
        self.flow = Dataflow(module["main"])
        self._set: IdentityMap[int] = IdentityMap()
        self._builder = relax.BlockBuilder(module)

    def __getitem__(self, variable: Any) -> int | None:
        """Return how the PrimFunc that makes a variable may be fused; None if none makes it."""
        if variable in self._set:
            return self._set[variable]
        function = self.function(self.flow.value(variable))
        pattern = None if function is None else (function.attrs or {}).get(PATTERN)
        return None if pattern is None else int(pattern)

    def __setitem__(self, variable: Any, pattern: int) -> None:
        self._set[variable] = pattern

    def function(self, value: Any) -> Any:
        """Return the PrimFunc that a value calls, or None."""
        return self.module[value.args[0]] if operator_of(value) == "call_tir" else None

    def applied(self) -> tvm.IRModule:
        """Return the module with calls of functions of the patterns that were set."""
        if not len(self._set):
            return self.module
        main = map_bindings(self.module, self._changed)["main"]
        return with_main(self._builder.get(), main)

    def _changed(self, binding: Any) -> list[Any]:
        pattern, call = self._set.get(binding.var), binding.value
        name = called_function(call)
        if pattern is None or name is None:
            return [binding]
        function = self._builder.add_func(self.function(call).with_attr(PATTERN, pattern), name)
        return [
            relax.VarBinding(binding.var, relax.Call(call.op, [function, *call.args[1:]], call.attrs, call.ty_args))
        ]


def elements_of(variable: Any) -> float:
    """Return how many elements a tensor has; infinity if that is not known."""
    shape = static_shape_of(variable)
    return math.inf if shape is None else math.prod(shape)
