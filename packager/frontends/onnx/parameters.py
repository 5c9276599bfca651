"""The parameters of an imported ``main`` beside its inputs: weights, and those that define run-time extents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from packager.bundle.arrays import Array


class Parameters(dict[str, tuple[relax.Var, Any]]):
    """Constants that are function parameters: the variable of each, and its value as a TVM tensor.

    The value is copied on access, which TVM's converters do only for constants that determine shapes.
    """

    def __init__(self, arrays: Callable[[str], Array]) -> None:
        super().__init__()
        self._arrays = arrays
        self.made: dict[str, Array] = {}
        self._unread = tvm.runtime.tensor(np.empty(0, np.uint8))

    def array(self, name: str) -> Array:
        """Return the value of a constant."""
        return self.made[name] if name in self.made else self._arrays(name)

    def add(self, name: str, variable: relax.Var) -> None:
        """Add a constant with its variable."""
        self[name] = (variable, self._unread)

    def make(self, name: str, array: Array) -> relax.Var:
        """Add a constant that a converter has made; return its variable."""
        while name in self:
            name += "_"
        self.made[name] = np.ascontiguousarray(array)
        self.add(name, relax.Var(name, relax.TensorType(array.shape, array.dtype.name)))
        return self.variable(name)

    def variable(self, name: str) -> relax.Var:
        """Return the variable of a constant."""
        return super().__getitem__(name)[0]

    def __getitem__(self, name: str) -> tuple[relax.Var, Any]:
        return self.variable(name), tvm.runtime.tensor(self.array(name))


def with_parameters(
    module: tvm.IRModule, num_inputs: int, extents: Sequence[relax.Var], made: Sequence[relax.Var]
) -> tvm.IRModule:
    """Add parameters to ``main``: those of run-time extents after its inputs, and constants that converters have made.

    They define variables in the shapes of results, which are stated anew.
    """
    if extents or made:
        main = module["main"]
        parameters = [*main.params[:num_inputs], *extents, *main.params[num_inputs:], *made]
        body = relax.SeqExpr(main.body.blocks, main.body.body)
        main = relax.Function(parameters, body, main.body.body.ty, main.is_pure, main.attrs)
        module["main"] = main.with_attr("num_input", num_inputs + len(extents))
    return module
