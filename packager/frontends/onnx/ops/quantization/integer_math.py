"""Converters of shifts, bit casts, remainders and powers that TVM's importer lacks or computes wrongly.

ONNX operators BitShift (version 28), BitCast (26), Mod (28), Div (14), Pow (15).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from tvm import relax
from tvm.runtime import DataType

from packager.frontends.arithmetic import bit_cast, integer_power, remainder, shift
from packager.frontends.onnx.ops.operands import Convert, Converter, as_type, constant, dtype_of, text


def _bit_shift(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    return shift(builder, inputs, dtype_of(inputs[0]), left=text(attributes, "direction", "") == "LEFT")


def _bit_cast(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    target = onnx.helper.tensor_dtype_to_np_dtype(attributes["to"]).name
    source = dtype_of(inputs[0])
    if DataType(source).bits != DataType(target).bits:
        raise ValueError(f"BitCast of {source} to {target}: these have different sizes")
    if source == target:
        return inputs[0]
    if "bool" in (source, target):
        if {source, target} - {"bool"} & {"float8_e4m3fn", "float8_e5m2"} or target == "bool":
            raise ValueError(f"BitCast of {source} to {target}")
        return relax.op.astype(inputs[0], target)  # bool is stored as 0 or 1
    return bit_cast(builder, inputs[0], target)


def _mod(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    tensors = all(isinstance(x.ty, relax.TensorType) for x in inputs)  # no extents
    if attributes.get("fmod", 0) or not tensors or dtype_of(inputs[0]).startswith(("int", "uint")):
        return convert("Mod", list(inputs), attributes)
    return remainder(builder, inputs, dtype_of(inputs[0]))


def _power(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Pow of integers by squaring; the result has the type of the base."""
    if not all(isinstance(x.ty, relax.TensorType) for x in inputs):
        return convert("Pow", list(inputs), attributes)
    base, exponent = dtype_of(inputs[0]), dtype_of(inputs[1])
    integers = ("int", "uint")
    if not base.startswith(integers):
        return convert("Pow", [inputs[0], as_type(builder, inputs[1], base)], attributes)
    if not exponent.startswith(integers):
        wide = builder.emit(relax.op.astype(inputs[0], "float64"))
        raised = relax.op.power(wide, builder.emit(relax.op.astype(inputs[1], "float64")))
        return relax.op.astype(builder.emit(raised), base)
    value = constant(inputs[1], attributes)
    if value is not None and value.min(initial=0) < 0:
        raise ValueError("Pow of an integer to a negative exponent")

    largest = None if value is None else int(value.max(initial=1))
    return integer_power(builder, inputs, base, largest)


CONVERTERS: Mapping[str, Converter] = {"BitShift": _bit_shift, "BitCast": _bit_cast, "Mod": _mod, "Pow": _power}
