"""Computes in float32 what TVM does not compute in half precision, or less exactly than torch and onnxruntime do.

It lowers no powers, remainders, positions of maxima, samples by grids or normalizations of bfloat16. Operands are
widened first, and results rounded at the end, so that frontends need not know of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tvm import relax

from packager.bundle.dtypes import HALVES, wide_type
from packager.graph.dataflow import bindings_of, operator_of, variables_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import Bindings, map_bindings
from packager.ir.model import ImportedModel

_BFLOAT16 = ("bfloat16",)
# Operators, and the types of operands for which they are computed in float32.
OPERATORS: Mapping[str, tuple[str, ...]] = {
    "power": HALVES,
    "mod": HALVES,
    "argmax": _BFLOAT16,
    "argmin": _BFLOAT16,
    "image.grid_sample": _BFLOAT16,
    "nn.instance_norm": _BFLOAT16,
}
# And those of what depends on no input, which TVM folds by its own code.
FOLDED: Mapping[str, tuple[str, ...]] = {**OPERATORS, "nn.layer_norm": _BFLOAT16}


def compute_in_float32(model: ImportedModel) -> ImportedModel:
    """Widen the operands of such operators in ``main``, and round their results."""
    main = model.module["main"]
    computed = IdentitySet(main.params[: len(model.signature.inputs)])  # depends on inputs
    replaced: IdentityMap[list[Any]] = IdentityMap()
    for binding in bindings_of(main):
        if any(read in computed for read in variables_of(binding.value)):
            computed.add(binding.var)
        types = (OPERATORS if binding.var in computed else FOLDED).get(operator_of(binding.value), ())
        if types and (dtype := str(binding.value.args[0].ty.dtype)) in types:
            replaced[binding.var] = _widened(binding, dtype)
    if not len(replaced):
        return model
    changed = map_bindings(model.module, lambda binding: replaced.get(binding.var, [binding]))
    return replace(model, module=relax.transform.Normalize()(changed))


def _widened(binding: Any, dtype: str) -> list[Any]:
    """Return the bindings that replace that of a call, whose operands have a type."""
    value = binding.value
    made, wide = Bindings(binding.var), wide_type(dtype)
    call = relax.Call(value.op, [made.bind(relax.op.astype(each, wide)) for each in value.args], value.attrs)
    is_rounded = str(binding.var.ty.dtype) == dtype
    return made.ended(relax.op.astype(made.bind(call), dtype) if is_rounded else call)
