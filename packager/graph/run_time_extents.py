"""Finds what ties run-time extents to data: the scalars that hold their values."""

from __future__ import annotations

from typing import Any

from tvm import relax

from packager.graph.dataflow import bindings_of
from packager.graph.identity import IdentityMap
from packager.ir.model import ModelSignature


def results_of(main: relax.Function) -> tuple[Any, ...]:
    """Return the expressions of main's results."""
    result = main.body.body
    for binding in reversed(bindings_of(main)):
        if binding.var.same_as(result):
            if isinstance(binding.value, relax.Tuple):
                result = binding.value
            elif isinstance(result.ty, relax.TupleType):
                return tuple(relax.TupleGetItem(result, index) for index in range(len(result.ty.fields)))
            break
    return tuple(result.fields) if isinstance(result, relax.Tuple) else (result,)


def scalars_of(main: relax.Function, signature: ModelSignature) -> IdentityMap[Any]:
    """Return the scalar of each run-time extent: shape variable -> Relax variable, a result of ``main``."""
    scalars: IdentityMap[Any] = IdentityMap()
    if not any(entry.extents for entry in signature.every_entry()):
        return scalars
    results, first_input, first_output = results_of(main), 0, 0
    for entry in signature.every_entry():
        inputs = [spec.name for spec in entry.inputs]
        for extent in entry.extents:
            parameter = main.params[first_input + inputs.index(extent.parameter)]
            scalars[parameter.ty.shape.values[0]] = results[first_output + entry.output_names.index(extent.result)]
        first_input, first_output = first_input + len(inputs), first_output + len(entry.output_names)
    return scalars
