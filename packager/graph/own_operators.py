"""Registers Relax operators of packager's own, ``relax.packager.<name>``."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import tvm_ffi
from tvm.ir import Op, _ffi_api


def register(
    name: str, description: str, operands: Sequence[str], infer: Callable[[Any, Any], Any], *, variadic: bool = False
) -> None:
    """Register a pure operator; ``infer(call, builder)`` returns the type of its result.

    A ``variadic`` one may have more operands.

    TVM's registry outlives the interpreter, so the function must too.
    """
    if name in Op.list_op_names():
        return
    _ffi_api.RegisterOp(name, description)
    operator = Op.get(name)
    operator.set_num_inputs(-1 if variadic else len(operands))
    for operand in operands:
        operator.add_argument(operand, "Tensor", "")
    function = tvm_ffi.convert(infer)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(function))
    operator.set_attr("FInferType", function)
    operator.set_attr("FPurity", True)
