"""Compute at build time what depends on weights alone, whichever frontend it comes from.

``LiftTransformParams`` moves such computations out of ``main``; here they run once on the build machine, and their
results replace the weights that they were computed from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from packager.numpy_ops import evaluate

Array = NDArray[Any]
TRANSFORM = "main_transform_params"


def fold_weights(module: tvm.IRModule, weights: Mapping[str, Array]) -> tuple[tvm.IRModule, dict[str, Array]]:
    """Return ``module`` with weight-only computations replaced by their results, and the weights it takes now.

    ``weights`` are the values of main's parameters after the inputs, in order, and so is the result. A computed
    constant is named after the weights that it stems from, with the operators that made it.
    """
    if not weights:
        return module, dict(weights)
    lifted = relax.transform.LiftTransformParams()(module)
    if relax.analysis.free_vars(lifted["main"]):
        return module, dict(weights)  # the result depends on weights alone: TVM lifts it and leaves main without it
    transform = lifted[TRANSFORM]
    names = list(weights)
    origins = _origins(transform, names)
    values = evaluate(transform, list(weights.values()))
    if values is None:
        values = _run(lifted, list(weights.values()))
    folded: dict[str, Array] = {}
    for origin, value in zip(origins, values, strict=True):
        name = origin.computed or origin.weight
        unique, count = name, 1
        while unique in folded:
            count += 1
            unique = f"{name}_{count}"
        folded[unique] = value
    remaining = {v: f for v, f in lifted.functions.items() if v.name_hint != TRANSFORM}
    return tvm.IRModule(remaining, attrs=module.attrs), folded


class _Origin:
    """What one output of the transform is: ``weight`` passed through, or ``computed`` under a new name."""

    def __init__(self, weight: str, computed: str | None) -> None:
        self.weight = weight
        self.computed = computed


def _origins(transform: relax.Function, names: list[str]) -> list[_Origin]:
    parameter = transform.params[0]
    if transform.body.body.same_as(parameter):  # nothing to compute: it returns what it takes
        return [_Origin(name, None) for name in names]
    sources: dict[int, tuple[str, str]] = {}  # variable -> (weights, operators) that it stems from
    fields: Any = ()
    for block in transform.body.blocks:
        for binding in block.bindings:
            value = binding.value
            key = binding.var.__chandle__()
            if isinstance(value, relax.TupleGetItem) and value.tuple_value.same_as(parameter):
                sources[key] = (names[value.index], "")
            elif isinstance(value, relax.Tuple):
                fields = value.fields
            else:
                inputs = [sources[a.__chandle__()] for a in _variables(value) if a.__chandle__() in sources]
                stems = "+".join(dict.fromkeys(stem for stem, _ in inputs)) or "constant"
                operators = "".join(dict.fromkeys(ops for _, ops in inputs))
                sources[key] = (stems, f"{operators}.{_operator(value)}")
    origins = []
    for field in fields:
        stem, operators = sources[field.__chandle__()]
        origins.append(_Origin(stem, f"{stem}{operators}" if operators else None))
    return origins


def _variables(value: relax.Expr) -> list[relax.Var]:
    found: list[relax.Var] = []
    relax.analysis.post_order_visit(value, lambda e: found.append(e) if isinstance(e, relax.Var) else None)
    return found


def _operator(value: relax.Expr) -> str:
    name = str(getattr(getattr(value, "op", None), "name", "value"))
    return str(value.args[0].name_hint) if name == "relax.call_tir" else name.rsplit(".", 1)[-1]


def _run(lifted: tvm.IRModule, values: list[Array]) -> list[Array]:
    """Compile the transform for this machine and run it."""
    functions = {v: f for v, f in lifted.functions.items() if v.name_hint != "main"}
    machine = relax.VirtualMachine(tvm.compile(tvm.IRModule(functions), target="llvm"), tvm.cpu())
    results = machine[TRANSFORM]([tvm.runtime.tensor(np.ascontiguousarray(value)) for value in values])
    return [np.asarray(result.numpy()) for result in results]
