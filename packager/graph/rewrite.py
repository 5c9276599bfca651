"""Rebuilds calls, functions and modules with changes: TVM's are immutable."""

from __future__ import annotations

from typing import Any

from tvm import IRModule, relax
from tvm_ffi import structural_map

_ATTRIBUTES = {
    "relax.matmul": ("out_dtype",),
    **dict.fromkeys(
        ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d"),
        ("strides", "padding", "dilation", "groups", "data_layout", "kernel_layout", "out_layout", "out_dtype"),
    ),
}
PRODUCTS = tuple(_ATTRIBUTES)


def rebuild_call(call: relax.Call, *operands: Any, **changes: Any) -> relax.Call:
    """Rebuild a call of one of ``PRODUCTS`` with other operands and changed attributes.

    With ``out_dtype=None`` the result has the type of the operands.
    """
    name = call.op.name
    kept = {attribute: getattr(call.attrs, attribute) for attribute in _ATTRIBUTES[name]}
    kept["out_dtype"] = kept["out_dtype"] or None
    make = relax.op.matmul if name == "relax.matmul" else getattr(relax.op.nn, name.removeprefix("relax.nn."))
    return make(*operands, **{**kept, **changes})


def with_main(module: IRModule, main: relax.Function) -> IRModule:
    """Replace ``main``; other functions and their GlobalVars are kept."""
    functions = {v: main if v.name_hint == "main" else f for v, f in module.functions.items()}
    return IRModule(functions, attrs=module.attrs)


def name_result(module: IRModule, name: str) -> IRModule:
    """Rename the variable that ``main`` returns: block builders generate a name."""
    main = module["main"]
    result = main.body.body
    if not isinstance(result, relax.Var) or result.name == name:
        return module
    named = type(result)(name, result.ty)
    return with_main(module, structural_map(main, (relax.Var, lambda var: named if var.same_as(result) else var)))
