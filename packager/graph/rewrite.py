"""Matrix products and convolutions made again, with some of their attributes changed: those of a call are fixed."""

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


def remade(call: relax.Call, *operands: Any, **changes: Any) -> relax.Call:
    """Return a call of one of ``PRODUCTS`` of other operands, and with these attributes in place of its own.

    With ``out_dtype=None`` the result has the type of the operands, whatever the call said before.
    """
    name = call.op.name
    kept = {attribute: getattr(call.attrs, attribute) for attribute in _ATTRIBUTES[name]}
    kept["out_dtype"] = kept["out_dtype"] or None
    make = relax.op.matmul if name == "relax.matmul" else getattr(relax.op.nn, name.removeprefix("relax.nn."))
    return make(*operands, **{**kept, **changes})


def with_main(module: IRModule, main: relax.Function) -> IRModule:
    """Return ``module`` with another ``main``; its other functions, and the variables that call them, stay the same."""
    functions = {v: main if v.name_hint == "main" else f for v, f in module.functions.items()}
    return IRModule(functions, attrs=module.attrs)


def name_result(module: IRModule, name: str) -> IRModule:
    """Return ``module`` with the variable that ``main`` returns under this name: builders give it one of their own."""
    main = module["main"]
    result = main.body.body
    if not isinstance(result, relax.Var) or result.name == name:
        return module
    named = type(result)(name, result.ty)
    return with_main(module, structural_map(main, (relax.Var, lambda var: named if var.same_as(result) else var)))
