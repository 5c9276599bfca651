"""Decompositions of elementwise operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from packager.frontends.torch.decompositions.promotion import promoting

_ATEN = torch.ops.aten
# Floats: the integers of as many bits, the bits of the fraction and those of the exponent.
_BITS = {
    torch.float64: (torch.int64, 52, 11),
    torch.float32: (torch.int32, 23, 8),
    torch.float16: (torch.int16, 10, 5),
    torch.bfloat16: (torch.int16, 7, 8),
}


def _exp2(x: Any) -> Any:
    return torch.pow(2.0, x)


@promoting("x", "y")
def _hypot(x: Any, y: Any) -> Any:
    """Divide by the larger one, whose square may be infinite. An infinite operand counts even beside NaN."""
    x, y = x.abs(), y.abs()
    large, small = torch.maximum(x, y), torch.minimum(x, y)
    ratio = torch.where(large == 0, 0, small / large)
    length = torch.where(torch.isnan(x + y), torch.nan, large * torch.sqrt(1 + ratio * ratio))
    return torch.where(torch.isinf(x) | torch.isinf(y), torch.inf, length)


def _signbit(x: Any) -> Any:
    """Read the sign, which zeros and NaN have as well."""
    if x.dtype in _BITS:
        return x.view(_BITS[x.dtype][0]) < 0
    return x < 0


@promoting("x", "y")
def _copysign(x: Any, y: Any) -> Any:
    size = abs(x)
    return torch.where(torch.signbit(y), -size, size)


def _copysign_scalar(x: Any, y: Any) -> Any:
    size = x.abs().to(x.dtype if x.is_floating_point() else torch.get_default_dtype())
    return -size if math.copysign(1, y) < 0 else size


def _without_nan(choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a decomposition of ``fmin`` or ``fmax``: NaN only where both operands are."""

    @promoting("x", "y", floats=False)
    def chosen(x: Any, y: Any) -> Any:
        if not x.is_floating_point():
            return choose(x, y)
        return torch.where(torch.isnan(x), y, torch.where(torch.isnan(y), x, choose(x, y)))

    function: Callable[[Any, Any], Any] = chosen
    return function


@promoting("x", "y")
def _logaddexp(x: Any, y: Any) -> Any:
    """Equal operands may be infinite, so that their difference is NaN."""
    smaller = torch.log1p(torch.exp(-(x - y).abs()))
    return torch.where(x == y, x + math.log(2), torch.maximum(x, y) + smaller)


def _logaddexp2(x: Any, y: Any) -> Any:
    return torch.logaddexp(x * math.log(2), y * math.log(2)) / math.log(2)


def _angle(x: Any) -> Any:
    if x.is_complex():
        return NotImplemented
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    return torch.where(x < 0, math.pi, torch.where(torch.isnan(x), x, 0))


def _frexp(x: Any) -> Any:
    """Replace the bits of the exponent by those of numbers from 1/2 to 1; subnormal numbers are scaled before."""
    kind, fraction, exponents = _BITS[x.dtype]
    middle = 2 ** (exponents - 1) - 2
    least = torch.finfo(x.dtype).smallest_normal
    small = x.abs() < least
    bits = torch.where(small, x * 2.0**fraction, x).view(kind)
    mask = (2**exponents - 1) << fraction
    mantissa = ((bits & ~mask) | (middle << fraction)).view(x.dtype)
    exponent = ((bits & mask) >> fraction).to(torch.int32) - middle - torch.where(small, fraction, 0)
    special = (x == 0) | ~torch.isfinite(x)
    return torch.where(special, x, mantissa), torch.where(special, 0, exponent).to(torch.int32)


def _divide(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    return _floor_divide(x, y) if rounding_mode == "floor" else NotImplemented


def _floor_divide(x: Any, y: Any) -> Any:
    """Round a quotient of floats down as torch does: of 1.0 and 0.1 it is 9. By powers of two it is exact."""
    if not _is_float(x, y):
        return NotImplemented
    if isinstance(y, int | float) and y and math.isfinite(y) and abs(math.frexp(y)[0]) == 0.5:
        return NotImplemented
    y = y if isinstance(y, torch.Tensor) else torch.full((), y, dtype=torch.result_type(x, y))
    rest = torch.fmod(x, y)
    quotient = (x - rest) / y
    quotient = torch.where((rest != 0) & ((rest < 0) != (y < 0)), quotient - 1, quotient)
    down = torch.floor(quotient)
    down = torch.where(quotient - down > 0.5, down + 1, down)
    exact = torch.true_divide(x, y)
    return torch.where(y == 0, exact, torch.where(quotient == 0, exact * 0, down)).to(exact.dtype)


def _is_float(x: Any, y: Any) -> bool:
    return bool(torch.result_type(x, y).is_floating_point)


@promoting("x")
def _elu(x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    """Add the halves: one of them is 0."""
    below = torch.exp(torch.clamp(x, max=0) * input_scale) - 1
    return torch.relu(x) * scale + below * (alpha * scale)


def _leaky(
    x: Any, _noise: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, _g: Any = None
) -> Any:
    """Decompose ``rrelu``, whose slope is random only in training."""
    return NotImplemented if training else (torch.nn.functional.leaky_relu(x, (lower + upper) / 2), _noise)


ELEMENTWISE: Mapping[Any, Callable[..., Any]] = {
    _ATEN.exp2.default: _exp2,
    _ATEN.hypot.default: _hypot,
    _ATEN.signbit.default: _signbit,
    _ATEN.copysign.Tensor: _copysign,
    _ATEN.copysign.Scalar: _copysign_scalar,
    _ATEN.fmin.default: _without_nan(torch.minimum),
    _ATEN.fmax.default: _without_nan(torch.maximum),
    _ATEN.logaddexp.default: _logaddexp,
    _ATEN.logaddexp2.default: _logaddexp2,
    _ATEN.angle.default: _angle,
    _ATEN.frexp.Tensor: _frexp,
    _ATEN.floor_divide.default: _floor_divide,
    _ATEN.div.Tensor_mode: _divide,
    _ATEN.div.Scalar_mode: _divide,
    _ATEN.elu.default: _elu,
    _ATEN.rrelu_with_noise_functional.default: _leaky,
}
