"""Emits quantize, dequantize and sums of quantized tensors as elementwise operators."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from packager.bundle.arrays import Array
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import map_operands
from packager.transforms.quantize.constants import Constants
from packager.transforms.quantize.signedness import OTHER, flipped
from packager.transforms.quantize.values import (
    NO_BOUNDS,
    Concatenation,
    Linear,
    Quantized,
    Shifted,
    Term,
    Value,
    is_zero,
    union,
)

INT32 = np.iinfo(np.int32)
# Maximum magnitudes of integer types.
LARGEST = {"int8": 128.0, "uint8": 255.0, "int16": 2.0**15, "uint16": 2.0**16}
# float32 values below it convert safely to int32.
CONVERTIBLE = 2.0**30
# Relative tolerance between the scale of a bias and the product of the operands' scales.
SAME_SCALE = 1e-4


class Emitter:
    """Emits bindings into the rewritten ``main``, those of quantized values on demand.

    ``values`` maps original variables to quantized values, ``real`` to emitted expressions, ``limits`` to upper bounds
    on magnitudes. ``data`` is the one type of 8 bits that data of products become, or None: they stay as they are.
    """

    def __init__(self, constants: Constants, *, data: str | None = None) -> None:
        self.constants, self.data = constants, data
        self.builder = relax.BlockBuilder()
        self.values: IdentityMap[Value] = IdentityMap()
        self.real: IdentityMap[Any] = IdentityMap()
        self.limits: IdentityMap[float] = IdentityMap()

    def value(self, expr: Any) -> Value | None:
        """Return the quantized value of an operand, or None."""
        return self.values.get(expr)

    def emit(self, expr: Any, name: str = "") -> Any:
        """Add a binding and return its variable."""
        return self.builder.emit(expr, name)

    def computed(self, expr: Any, name: str = "") -> Any:
        """Return an expression with operands in the model's types, emitting lazy values."""
        if isinstance(expr, relax.Var):
            if expr not in self.real and expr in self.values:
                self.real[expr] = self._compute(self.values[expr], name or expr.name)
            return self.real.get(expr, expr)
        return map_operands(expr, self.computed)

    def _compute(self, value: Value, name: str) -> Any:
        match value:
            case Quantized():
                return dequantize(self, value, name)
            case Linear():
                return evaluate(self, value, name)
            case Shifted():
                return flipped(self.emit, value.value, name)
        parts = [dequantize(self, part, "") for part in value.parts]
        return self.emit(relax.op.concat(parts, value.axis), name)

    def linear(self, expr: Any) -> Linear | None:
        """Return a non-constant operand as a linear value, or None."""
        value = self.value(expr)
        if isinstance(value, Quantized):
            return as_linear(value) if value.array is None and value.is_uniform else None
        return value if isinstance(value, Linear) else None

    def limit(self, expr: Any) -> float:
        """Return an upper bound on the magnitude of an operand; infinity if unknown."""
        array, value = self.constants.array(expr), self.value(expr)
        if array is not None:
            with np.errstate(invalid="ignore"):  # NaN
                most = max((abs(float(end)) for end in (array.max(), array.min())) if array.size else (0.0,))
            return np.inf if np.isnan(most) else most
        if isinstance(value, Concatenation):
            return max(largest(part) for part in value.parts)
        if isinstance(value, Shifted):
            return LARGEST[OTHER[str(value.value.ty.dtype)]]
        if isinstance(value, Linear):
            return min(value.largest, max(abs(bound) for bound in value.bounds))
        return self.limits.get(expr, np.inf) if value is None else largest(value)


def is_unscaled(value: Quantized) -> bool:
    """Whether the numbers are the stored integers: scale 1 and zero point 0."""
    return value.scale.size == 1 and value.scale.item() == 1 and is_zero(value.zero)


def dequantized(value: Quantized) -> Array:
    """Dequantize a constant."""
    assert value.array is not None
    whole = value.array.astype(np.int32) - value.zero
    return np.asarray(whole.astype(np.float32) * value.scale if value.dtype == "float32" else whole)


def dequantize(emitter: Emitter, value: Quantized, name: str) -> Any:
    """Emit the dequantized numbers."""
    if value.array is not None:
        return emitter.constants.make(dequantized(value), f"{_stem(value.sources)}.dequantize", value.sources)
    whole = value.value
    if value.stored != "int32":
        whole = emitter.emit(relax.op.astype(whole, "int32"))
    if not is_zero(value.zero):
        zero = value.zero
        if isinstance(zero, np.ndarray):
            zero = emitter.constants.make(zero, f"{_stem(value.sources)}.zero", value.sources)
        whole = emitter.emit(relax.op.subtract(whole, zero))
    if value.dtype == "int32":
        return whole
    scale = emitter.constants.make(value.scale, f"{_stem(value.sources)}.scale", value.sources)
    return emitter.emit(relax.op.multiply(emitter.emit(relax.op.astype(whole, "float32")), scale), name)


def largest(value: Quantized) -> float:
    """Return an upper bound on the magnitude of the numbers."""
    if not isinstance(value.zero, np.ndarray):
        return float(np.inf)
    whole = LARGEST.get(value.stored, 2.0**31) + float(np.abs(value.zero.astype(np.float64)).max(initial=0))
    return float(np.abs(value.scale).max(initial=0)) * whole


def as_linear(value: Quantized) -> Linear | None:
    """Return a per-tensor quantized tensor as a term and an offset."""
    if value.dtype != "float32":
        return None
    scale = value.scale.astype(np.float64)
    return Linear(
        (Term(value.value, scale, LARGEST.get(value.stored, 2.0**31)),), -scale * value.zero, NO_BOUNDS, value.sources
    )


def int32_bias(sum_: Linear, bias: Quantized) -> Array | None:
    """Return this bias as an int32 addend of a product's accumulator, or None if its scale does not match."""
    if len(sum_.terms) != 1 or bias.array is None or bias.stored != "int32" or not is_zero(bias.zero):
        return None
    (term,) = sum_.terms
    if str(term.value.ty.dtype) != "int32" or np.any(sum_.offset):
        return None
    if not np.allclose(bias.scale, term.factor, rtol=SAME_SCALE, atol=0):
        return None
    total = bias.array.astype(np.int64) + (0 if term.whole is None else term.whole)
    return in_range(total)


def in_range(whole: Array) -> Array | None:
    """Return integers as int32, or None if they do not fit."""
    fits = whole.size == 0 or (whole.min() >= INT32.min and whole.max() <= INT32.max)
    return whole.astype(np.int32) if fits else None


def evaluate(emitter: Emitter, sum_: Linear, name: str) -> Any:
    """Emit a linear value in float32."""
    low, high = sum_.bounds
    if (low, high) == NO_BOUNDS:
        return _total(emitter, sum_, 1.0, sum_.sources, name)
    total = _total(emitter, sum_, 1.0, sum_.sources, "")
    if (low, high) == (0.0, np.inf):
        return emitter.emit(relax.op.nn.relu(total), name)
    if low != -np.inf:
        total = emitter.emit(relax.op.maximum(total, relax.const(low, "float32")), name if high == np.inf else "")
    if high != np.inf:
        total = emitter.emit(relax.op.minimum(total, relax.const(high, "float32")), name)
    return total


def _total(emitter: Emitter, sum_: Linear, scale: float, sources: tuple[str, ...], name: str) -> Any:
    """Emit terms and offset divided by ``scale``, in float32."""
    stem = _stem(sources)
    total = None
    offset = (sum_.offset / scale).astype(np.float32)
    for number, term in enumerate(sum_.terms, 1):
        last = number == len(sum_.terms) and not offset.any()
        value = term.value
        if term.whole is not None and term.whole.any():
            value = emitter.emit(relax.op.add(value, emitter.constants.make(term.whole, f"{stem}.bias", sources)))
        value = emitter.emit(relax.op.astype(value, "float32"))
        factor = emitter.constants.make((term.factor / scale).astype(np.float32), f"{stem}.scale", sources)
        value = emitter.emit(relax.op.multiply(value, factor), name if last and total is None else "")
        total = value if total is None else emitter.emit(relax.op.add(total, value), name if last else "")
    if offset.any():
        total = emitter.emit(relax.op.add(total, emitter.constants.make(offset, f"{stem}.offset", sources)), name)
    return total


class Quantizer:
    """QuantizeLinear with a constant scale and zero point, to the integer type ``stored``."""

    def __init__(self, emitter: Emitter, scale: Array, zero: Array, stored: str, sources: tuple[str, ...]) -> None:
        self.emitter = emitter
        self.scale = scale
        self.zero = zero
        self.stored = stored
        self.sources = sources
        self.is_uniform = scale.size == 1 and zero.size == 1 and bool(np.all(scale > 0))

    def apply(self, value: Value | None, source: Any, name: str) -> Any:
        """Emit the quantized integers of an operand."""
        if isinstance(value, Quantized) and self._is_same(value):
            return value.value
        if isinstance(value, Concatenation) and self.is_uniform:
            return self.emitter.emit(relax.op.concat([self._part(part) for part in value.parts], value.axis), name)
        sum_ = self.emitter.linear(source)
        if sum_ is not None and self.is_uniform:
            return self._sum(sum_, name)
        converts = self.emitter.limit(source) / float(np.abs(self.scale).min()) < CONVERTIBLE
        return self._numbers(self.emitter.computed(source), name, converts=converts)

    def _is_same(self, value: Quantized) -> bool:
        return (
            value.array is None and value.dtype == "float32" and value.same_numbers(self.scale, self.zero, self.stored)
        )

    def _part(self, part: Quantized) -> Any:
        sum_ = as_linear(part)
        if self._is_same(part) or sum_ is None:
            return part.value
        return self._sum(sum_, "")

    def _sum(self, sum_: Linear, name: str) -> Any:
        scale = float(self.scale.item())
        total = _total(self.emitter, sum_, scale, union(sum_.sources, self.sources), "")
        low, high = (bound / scale for bound in sum_.bounds)
        return self._rounded(total, low, high, name, converts=sum_.largest / scale < CONVERTIBLE)

    def _numbers(self, numbers: Any, name: str, *, converts: bool) -> Any:
        """Quantize by a division, as in the specification."""
        emit = self.emitter.emit
        scale = self.emitter.constants.make(self.scale, f"{_stem(self.sources)}.scale", self.sources)
        divided = emit(relax.op.divide(numbers, scale))
        if self.zero.size == 1:
            return self._rounded(divided, -np.inf, np.inf, name, converts=converts)
        zero = self.emitter.constants.make(self.zero.astype(np.float32), f"{_stem(self.sources)}.zero", self.sources)
        limits = np.iinfo(self.stored)
        shifted = emit(relax.op.add(emit(relax.op.round(divided)), zero))
        clipped = emit(relax.op.clip(shifted, float(limits.min), float(limits.max)))
        return emit(relax.op.astype(emit(relax.op.astype(clipped, "int32")), self.stored), name)

    def _rounded(self, numbers: Any, low: float, high: float, name: str, *, converts: bool) -> Any:
        """Round quotients to integers, then clip: rounding is monotone, so the order does not matter.

        Unless ``converts`` guarantees the range of int32, they are clipped before rounding too.
        """
        emit, zero, limits = self.emitter.emit, int(self.zero.item()), np.iinfo(self.stored)
        low, high = (float(min(max(bound, limits.min - zero), limits.max - zero)) for bound in (low, high))
        if not converts:
            numbers = emit(relax.op.clip(numbers, -CONVERTIBLE, CONVERTIBLE))
        whole = emit(relax.op.astype(emit(relax.op.round(numbers)), "int32"))
        if zero:
            whole = emit(relax.op.add(whole, relax.const(zero, "int32")))
        whole = emit(relax.op.clip(whole, float(np.rint(low)) + zero, float(np.rint(high)) + zero))
        return emit(relax.op.astype(whole, self.stored), name)


def _stem(sources: tuple[str, ...]) -> str:
    return sources[0] if sources else "quantized"
