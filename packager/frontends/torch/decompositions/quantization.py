"""Decompositions of simulated quantization, in models that are trained for it, into quantization and its inverse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.ao.quantization.fx._decomposed  # registers the operators, which files may have as well

_ATEN = torch.ops.aten
_INTEGERS = torch.ops.quantized_decomposed


def _stored(x: Any, low: int, high: int) -> torch.dtype | None:
    """Return the type of 8 bits that holds the integers of a range, None if there is none."""
    if x.dtype is not torch.float32 or high - low > 255:
        return None
    return torch.uint8 if low >= 0 and high <= 255 else torch.int8 if low >= -128 and high <= 127 else None


def _per_tensor(x: Any, scale: Any, zero: Any, low: int, high: int) -> Any:
    stored = _stored(x, low, high)
    if stored is None:
        return _simulate(x, scale, zero, low, high)
    kind = "tensor" if isinstance(scale, torch.Tensor) else "default"
    quantize, dequantize = (
        getattr(getattr(_INTEGERS, name), kind) for name in ("quantize_per_tensor", "dequantize_per_tensor")
    )
    return dequantize(quantize(x, scale, zero, low, high, stored), scale, zero, low, high, stored)


def _per_channel(x: Any, scale: Any, zero: Any, axis: int, low: int, high: int) -> Any:
    stored = _stored(x, low, high)
    if stored is None or zero.is_floating_point():
        shape = [-1 if index == axis % x.ndim else 1 for index in range(x.ndim)]
        return _simulate(x, scale.reshape(shape), zero.reshape(shape), low, high)
    integers = _INTEGERS.quantize_per_channel.default(x, scale, zero, axis, low, high, stored)
    return _INTEGERS.dequantize_per_channel.default(integers, scale, zero, axis, low, high, stored)


def _simulate(x: Any, scale: Any, zero: Any, low: int, high: int) -> Any:
    """Round to a multiple of the scale, half to even, within the range of the integers."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (((torch.round(wide / scale) + zero).clamp(low, high) - zero) * scale).to(x.dtype)


def _with_mask(quantize: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decomposition of what ``quantize``'s operator itself becomes; its mask is for gradients."""
    return lambda x, *rest: (quantize(x, *rest), torch.ones_like(x, dtype=torch.bool))


QUANTIZATION: Mapping[Any, Callable[..., Any]] = {
    _ATEN.fake_quantize_per_tensor_affine.default: _per_tensor,
    _ATEN.fake_quantize_per_tensor_affine.tensor_qparams: _per_tensor,
    _ATEN.fake_quantize_per_channel_affine.default: _per_channel,
    _ATEN.fake_quantize_per_tensor_affine_cachemask.default: _with_mask(_per_tensor),
    _ATEN.fake_quantize_per_channel_affine_cachemask.default: _with_mask(_per_channel),
}
