"""Converters of quantization as PyTorch 2 exports it: ``quantized_decomposed``'s operators, and products of integers.

They become Relax's ``quantize`` and ``dequantize``, which ``transforms.quantize`` rewrites to integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import relax

from packager.frontends.torch.ops.program import argument

_R = relax.op
_RANGES = {"int8": (-128, 127), "uint8": (0, 255)}
_LIBRARY = "quantized_decomposed"


def _quantize(importer: Any, node: Any, axis: int = -1, first: int = 3) -> Any:
    """Quantize to integers, clipped to what is left of their range; ``first`` is the argument for its minimum."""
    stored = importer.dtype(node)
    _check(stored)
    data = importer.tensor(node.args[0], "float32")
    scale, zero = importer.tensor(node.args[1], "float32"), importer.tensor(node.args[2], stored)
    result = _R.quantize(data, _flat(importer, scale, axis), _flat(importer, zero, axis), axis=axis, out_dtype=stored)
    low, high = (node.args[first], node.args[first + 1])
    if not isinstance(low, int) or not isinstance(high, int):
        raise ValueError("the range of the integers must be known")
    if low > _RANGES[stored][0]:
        result = _R.maximum(importer.emit(result), relax.const(low, stored))
    if high < _RANGES[stored][1]:
        result = _R.minimum(importer.emit(result), relax.const(high, stored))
    return result


def _dequantize(importer: Any, node: Any, axis: int = -1) -> Any:
    stored = importer.element_type(node.args[0].meta["val"].dtype)
    _check(stored)
    scale = importer.tensor(node.args[1], "float32")
    zero = argument(node, 2, "zero_point")
    zero = relax.const(0, stored) if zero is None else importer.tensor(zero, stored)
    operands = (_flat(importer, scale, axis), _flat(importer, zero, axis))
    result = _R.dequantize(importer.tensor(node.args[0]), *operands, axis=axis, out_dtype="float32")
    return importer.cast(importer.emit(result), importer.dtype(node))


def _per_channel(convert: Callable[..., Any], *first: int) -> Callable[[Any, Any], Any]:
    """Return a converter of scales along an axis."""

    def converted(importer: Any, node: Any) -> Any:
        return convert(importer, node, node.args[3] % node.args[0].meta["val"].ndim, *first)

    return converted


def _flat(importer: Any, value: Any, axis: int) -> Any:
    """Return one scale or zero point for a tensor as a scalar, torch may have a vector of it."""
    if axis >= 0 or value.ty.ndim == 0:
        return value
    return importer.emit(_R.reshape(value, []))


def _check(stored: str) -> None:
    if stored not in _RANGES:
        raise ValueError(f"quantization to {stored} is not supported")


def _integer_matmul(importer: Any, node: Any) -> Any:
    return _R.matmul(*(importer.tensor(operand, "int32") for operand in node.args))


QUANTIZATION: Mapping[str, Callable[[Any, Any], Any]] = {
    **{f"{_LIBRARY}::quantize_per_tensor.{kind}": _quantize for kind in ("default", "tensor")},
    **{f"{_LIBRARY}::dequantize_per_tensor.{kind}": _dequantize for kind in ("default", "tensor")},
    f"{_LIBRARY}::quantize_per_channel.default": _per_channel(_quantize, 4),
    f"{_LIBRARY}::dequantize_per_channel.default": _per_channel(_dequantize),
    "_int_mm.default": _integer_matmul,
}
