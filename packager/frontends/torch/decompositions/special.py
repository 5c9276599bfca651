"""Decompositions of special functions into elementary ones, computed in float64 but for those of the error function.

Sources: Abramowitz and Stegun 1964, 6.3.18, 6.4.11, 9.6.12, 9.7.1; Lanczos 1964 with the coefficients of Godfrey for
``lgamma``; Wichura 1988, AS 241, for quantiles of the normal distribution; Press et al. 1992, ``erfcc``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

_ATEN = torch.ops.aten
_LANCZOS = (
    *(0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059),
    *(12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7),
)
# B_2k, the Bernoulli numbers.
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
# Arguments of polygamma functions are moved by so much, to where their asymptotic series is exact.
_MOVED = 10
# AS 241: numerators and denominators, from the constant on, of three intervals.
_CENTER = (
    (
        *(3.3871328727963665, 133.14166789178438, 1971.5909503065513, 13731.69376550946),
        *(45921.95393154987, 67265.7709270087, 33430.57558358813, 2509.0809287301227),
    ),
    (
        *(1.0, 42.31333070160091, 687.1870074920579, 5394.196021424751),
        *(21213.794301586597, 39307.89580009271, 28729.085735721943, 5226.495278852854),
    ),
)
_MIDDLE = (
    (
        *(1.4234371107496835, 4.630337846156546, 5.769497221460691, 3.6478483247632045),
        *(1.2704582524523684, 0.2417807251774506, 0.022723844989269184, 0.0007745450142783414),
    ),
    (
        *(1.0, 2.053191626637759, 1.6763848301838038, 0.6897673349851),
        *(0.14810397642748008, 0.015198666563616457, 0.0005475938084995345, 1.0507500716444169e-09),
    ),
)
_TAIL = (
    (
        *(6.657904643501103, 5.463784911164114, 1.7848265399172913, 0.29656057182850487),
        *(0.026532189526576124, 0.0012426609473880784, 2.7115555687434876e-05, 2.0103343992922881e-07),
    ),
    (
        *(1.0, 0.599832206555888, 0.1369298809227358, 0.014875361290850615),
        *(0.0007868691311456133, 1.8463183175100548e-05, 1.421511758316446e-07, 2.0442631033899397e-15),
    ),
)
_ERFC = (
    *(-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807),
    *(-1.13520398, 1.48851587, -0.82215223, 0.17087277),
)


def _polynomial(coefficients: Sequence[float], x: Any) -> Any:
    """Evaluate a polynomial, given from the constant on, by Horner's rule."""
    result = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        result = result * x + coefficient
    return result


def _in_float64(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def compute(x: Any) -> Any:
        dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
        return function(x.to(torch.float64)).to(dtype)

    return compute


def _log_gamma(x: Any) -> Any:
    """Reflect arguments below 1/2; the sine is of what they have behind the point, to be 0 at the poles."""
    reflected = x < 0.5
    z = torch.where(reflected, 1 - x, x) - 1
    t = z + 7.5
    total = _LANCZOS[0] + sum(coefficient / (z + n) for n, coefficient in enumerate(_LANCZOS) if n)
    above = math.log(2 * math.pi) / 2 + (z + 0.5) * t.log() - t + total.log()
    sine = torch.sin(math.pi * (x - x.round())).abs()
    result = torch.where(reflected, math.log(math.pi) - sine.log() - above, above)
    return torch.where(torch.isinf(x), torch.inf, result)


def _digamma(x: Any) -> Any:
    reflected = x < 0.5
    z = torch.where(reflected, 1 - x, x)
    far = z + _MOVED
    square = 1 / (far * far)
    series = _polynomial([b / (2 * k) for k, b in enumerate(_BERNOULLI, 1)], square)
    above = far.log() - 0.5 / far - square * series - sum(1 / (z + n) for n in range(_MOVED))
    above = torch.where(torch.isinf(z), z, above)
    fraction = x - x.round()
    result = torch.where(reflected, above - math.pi / torch.tan(math.pi * fraction), above)
    pole = torch.where(x == 0, torch.copysign(torch.full_like(x, torch.inf), -x), torch.nan)
    return torch.where((fraction == 0) & (x <= 0), pole, result)


def _polygamma(n: int, x: Any) -> Any:
    """Compute derivative ``n`` of digamma by the zeta function of Hurwitz, and reflect arguments below 1/2."""
    if n == 0:
        return torch.digamma(x)

    def derivative(x: Any) -> Any:
        reflected = x < 0.5
        z = torch.where(reflected, 1 - x, x)
        inverse = 1 / (z + _MOVED)
        terms = [b / math.factorial(2 * k) * math.factorial(n + 2 * k - 1) for k, b in enumerate(_BERNOULLI, 1)]
        series = math.factorial(n - 1) + inverse * (math.factorial(n) / 2 + inverse * _polynomial(terms, inverse**2))
        near = sum(_whole_power(1 / (z + i), n + 1) for i in range(_MOVED))
        above = (-1) ** (n + 1) * (_whole_power(inverse, n) * series + math.factorial(n) * near)
        slope = math.pi ** (n + 1) * _polynomial(_cotangent(n), 1 / torch.tan(math.pi * (x - x.round())))
        return torch.where(reflected, (-1) ** n * above - slope, above)

    return _in_float64(derivative)(x)


def _whole_power(x: Any, n: int) -> Any:
    return math.prod([x] * n)


def _cotangent(order: int) -> list[float]:
    """Return the derivative of the cotangent as a polynomial of it: that of c is -(1 + c^2)."""
    terms = [0.0, 1.0]
    for _ in range(order):
        derived = [power * term for power, term in enumerate(terms)][1:]
        terms = [-sum(derived[i] for i in (n, n - 2) if 0 <= i < len(derived)) for n in range(len(derived) + 2)]
    return terms


def _quantile(p: Any, q: Any) -> Any:
    """Return the quantile of the normal distribution at ``p``, which is ``q + 1/2``."""
    center = q * _ratio(_CENTER, 0.180625 - q * q)
    small = torch.where(q < 0, p, 0.5 - q)
    root = torch.sqrt(-small.log())
    outer = torch.where(root <= 5, _ratio(_MIDDLE, root - 1.6), _ratio(_TAIL, root - 5))
    outer = torch.where(small == 0, torch.inf, outer)
    return torch.where(q.abs() <= 0.425, center, torch.where(q < 0, -outer, outer))


def _ratio(pair: tuple[Sequence[float], Sequence[float]], x: Any) -> Any:
    return _polynomial(pair[0], x) / _polynomial(pair[1], x)


def _inverse_erf(x: Any) -> Any:
    return _quantile(0.5 + x / 2, x / 2) / math.sqrt(2)


def _inverse_normal(p: Any) -> Any:
    return _quantile(p, p - 0.5)


def _bessel(order: int, *, scaled: bool) -> Callable[[Any], Any]:
    """Return the modified Bessel function of order 0 or 1: its power series, from 20 on its asymptotic one."""
    powers = [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(40)]
    far = [1.0]
    for k in range(1, 20):
        far.append(-far[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))

    def compute(x: Any) -> Any:
        size = x.abs()
        half = torch.clamp(size, max=20) / 2
        near = _polynomial(powers, half * half) * half**order * (torch.exp(-size) if scaled else 1)
        large = torch.clamp(size, min=20)
        growth = 1 if scaled else torch.exp(large)
        outer = growth / torch.sqrt(2 * math.pi * large) * _polynomial(far, 1 / large)
        result = torch.where(size > 20, outer, near)
        return torch.where(x < 0, -result, result) if order else result

    return _in_float64(compute)


def _scaled_erfc(x: Any) -> Any:
    """Return ``exp(x^2) erfc(x)``, exact to float32."""
    if x.dtype is torch.float64:
        return NotImplemented
    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    x = x.to(torch.float64)
    above = _scaled_above(x.abs())
    return torch.where(x < 0, 2 * torch.exp(x * x) - above, above).to(dtype)


def _scaled_above(size: Any) -> Any:
    t = 1 / (1 + size / 2)
    return t * torch.exp(_polynomial(_ERFC, t))


def _erfc(x: Any) -> Any:
    """Return ``1 - erf(x)``; of float32 also where that would cancel."""
    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    if dtype is torch.float64:
        return 1 - torch.erf(x)
    x = x.to(torch.float64)
    above = _scaled_above(x.abs()) * torch.exp(-x * x)
    return torch.where(x < 0, 2 - above, above).to(dtype)


SPECIAL: Mapping[Any, Callable[..., Any]] = {
    _ATEN.lgamma.default: _in_float64(_log_gamma),
    _ATEN.digamma.default: _in_float64(_digamma),
    _ATEN.polygamma.default: _polygamma,
    _ATEN.erfinv.default: _in_float64(_inverse_erf),
    _ATEN.special_ndtri.default: _in_float64(_inverse_normal),
    _ATEN.i0.default: _bessel(0, scaled=False),
    _ATEN.special_i0e.default: _bessel(0, scaled=True),
    _ATEN.special_i1.default: _bessel(1, scaled=False),
    _ATEN.special_i1e.default: _bessel(1, scaled=True),
    _ATEN.special_erfcx.default: _scaled_erfc,
    _ATEN.erfc.default: _erfc,
}
