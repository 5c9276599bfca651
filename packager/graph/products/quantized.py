"""Match the epilogue of 8-bit products and convolutions: scale, bias, residual, activation, requantization.

Matches the output of ``packager.transforms.quantize`` and the same operators written in Relax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax

from packager.bundle.dtypes import FLOATS
from packager.graph.dataflow import Dataflow, operator_of, same, scalar_of, shape_of
from packager.graph.narrow_types import NATIVE
from packager.graph.products.activations import find_activations
from packager.graph.products.epilogues import Chained, only_reader
from packager.ir.activations import CLIP

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

FLOAT8 = NATIVE
RANGES = {"int8": (-128.0, 127.0), "uint8": (0.0, 255.0), FLOAT8: (-448.0, 448.0)}


@dataclass(frozen=True)
class QuantizedChain(Chained):
    """What follows a matmul or conv2d of 8 bits, ``anchor``:

    ``y = act((sum + offset) * scale + bias + beta * residual)``, and of 8 bits ``clip(round(y * gain) + zero)``.

    Offset, scale and bias are a number each and optionally a row, a constant with one element or one per column: the
    scale is the product of both, offset and bias the sum. ``beta`` scales the residual. ``gain`` and the fields after
    it requantize to 8 bits: ``low`` and ``high`` are the bounds of the result.
    """

    offset: int = 0
    offset_row: Any = None
    scale: float = 1.0
    scale_row: Any = None
    bias: float = 0.0
    bias_row: Any = None
    residual: Any = None
    beta: float = 1.0
    activation: str = ""
    gain: float = 1.0
    zero: float = 0.0
    low: float = -math.inf
    high: float = math.inf
    is_rounded: bool = False

    @property
    def dtype(self) -> str:
        """The element type of the result."""
        return str(self.result.ty.dtype)

    @property
    def is_linear(self) -> bool:
        """Whether accumulators have only been scaled."""
        shifted = self.bias_row is not None or self.bias or self.residual is not None or self.activation
        return not shifted and not self.is_rescaled

    @property
    def is_rescaled(self) -> bool:
        """Whether requantization has begun, which only results of 8 bits have."""
        return self.gain != 1.0 or self.is_rounded or self.zero != 0.0 or (self.low, self.high) != (-math.inf, math.inf)


def quantized_chains(flow: Dataflow, anchor: Any) -> Iterator[QuantizedChain]:
    """Yield the chains of an anchor, longest first, the anchor alone last."""
    if str(flow.value(anchor).args[0].ty.dtype) not in RANGES:
        return
    found = [QuantizedChain(anchor, (anchor,))]
    while longer := _extend(flow, found[-1]):
        found += longer
        if found[-1].dtype in RANGES:
            break
    yield from (chain for chain in reversed(found) if _is_end(chain))


def _is_end(chain: QuantizedChain) -> bool:
    """Whether a chain may end here: at accumulators, at floats before they are rounded, at 8 bits."""
    return chain.dtype in RANGES or not chain.is_rescaled


def _extend(flow: Dataflow, chain: QuantizedChain) -> list[QuantizedChain]:
    """Return the chain with one more step, with each of its activations if that is the step; empty if there is none."""
    result = chain.result
    if chain.dtype in FLOATS and not chain.activation and not chain.is_rescaled and not flow.is_result(result):
        found = [(name, members) for name, members in find_activations(flow, result) if not name.startswith(CLIP)]
        if found:  # a clip is the range of 8 bits
            return [replace(chain, variables=(*chain.variables, *members), activation=name) for name, members in found]
    longer = _with_reader(flow, chain, result)
    return [] if longer is None else [longer]


def _with_reader(flow: Dataflow, chain: QuantizedChain, result: Any) -> QuantizedChain | None:
    """Return the chain with the one call that reads its result; None if that is no part of an epilogue."""
    reader = only_reader(flow, result)
    if reader is None:
        return None
    call = flow.value(reader)
    match = STEPS.get(operator_of(call))
    longer = replace(chain, variables=(*chain.variables, reader))
    return match(_Step(flow, longer, call, result)) if match is not None else None


@dataclass(frozen=True)
class _Step:
    """A call that reads the result of a chain, ``source``; ``longer`` already includes it."""

    flow: Dataflow
    longer: QuantizedChain
    call: Any
    source: Any

    @property
    def other(self) -> Any:
        """The operand that is not ``source``; None if both are."""
        first, second = self.call.args
        if first.same_as(second):
            return None
        return second if first.same_as(self.source) else first


def _convert(step: _Step) -> QuantizedChain | None:
    longer = step.longer
    before, after = str(step.source.ty.dtype), longer.dtype
    if before == "int32" and after in FLOATS:
        return longer if not longer.is_rescaled else None
    if after == FLOAT8 and before in FLOATS:
        return None if longer.is_rounded else longer
    if before in FLOATS and after in FLOATS:
        return longer if not longer.is_rescaled else None
    # Kernels round to the nearest before they convert to integers.
    if longer.is_rounded and after == "int32" and before in FLOATS:
        return longer
    within = longer.is_rounded and after in RANGES and after != FLOAT8
    if not within:
        return None
    least, most = RANGES[after]
    inside = least <= longer.low and longer.high <= most
    return longer if inside else None


def _reshape(step: _Step) -> QuantizedChain | None:
    before, after = shape_of(step.source), shape_of(step.longer.result)
    return step.longer if before and after and same(before[-1], after[-1]) else None


def _multiply(step: _Step) -> QuantizedChain | None:
    longer, other = step.longer, step.other
    if longer.dtype not in FLOATS or longer.is_rounded:
        return None
    divides = operator_of(step.call) == "divide"
    if other is None or (divides and other.same_as(step.call.args[0])):
        return None
    number = scalar_of(other)
    if number is not None:
        if not number or not math.isfinite(number):
            return None
        factor = 1 / number if divides else number
        if longer.is_linear:
            return replace(longer, scale=longer.scale * factor)
        # Earlier bounds are of the value before this scale.
        if longer.zero or factor < 0:
            return None
        return replace(longer, gain=longer.gain * factor, low=longer.low * factor, high=longer.high * factor)
    fits = (
        longer.is_linear and longer.scale_row is None and not divides and _is_row(step.flow, longer, other, "float32")
    )
    return replace(longer, scale_row=other) if fits else None


def _add(step: _Step) -> QuantizedChain | None:
    longer, other = step.longer, step.other
    if other is None:
        return None
    number = scalar_of(other)
    if longer.is_rounded:
        if number is None or number != round(number) or longer.zero:
            return None
        return replace(longer, zero=number, low=longer.low + number, high=longer.high + number)
    if longer.dtype == "int32":
        if number is not None:
            return replace(longer, offset=longer.offset + int(number))
        fits = longer.offset_row is None and _is_row(step.flow, longer, other, "int32")
        return replace(longer, offset_row=other) if fits else None
    if longer.activation or longer.is_rescaled:
        return None
    if number is not None:
        return replace(longer, bias=longer.bias + number)
    if longer.bias_row is None and _is_row(step.flow, longer, other, *FLOATS):
        return replace(longer, bias_row=other)
    return _with_residual(step.flow, longer, other) if longer.residual is None else None


def _with_residual(flow: Dataflow, longer: QuantizedChain, residual: Any) -> QuantizedChain | None:
    """Return the chain with a residual, which may be dequantized from 8 bits."""
    if not isinstance(residual, relax.Var) or not same(shape_of(residual) or (), shape_of(longer.result) or (0,)):
        return None
    covered: list[Any] = []
    source, beta = residual, 1.0
    while (call := flow.call(source, "multiply", "astype")) is not None:
        if flow.is_result(source) or len(flow.readers(source)) != 1:
            break
        if operator_of(call) == "multiply":
            first, second = call.args
            factor, inner = (scalar_of(first), second) if scalar_of(second) is None else (scalar_of(second), first)
            if factor is None or scalar_of(inner) is not None:
                break
            if not same(shape_of(inner) or (), shape_of(source) or (0,)):
                break
            beta *= factor
        else:
            inner = call.args[0]
        covered.append(source)
        source = inner
        if str(source.ty.dtype) in RANGES:
            break
    *before, reader = longer.variables
    if covered and str(source.ty.dtype) in RANGES:
        return replace(longer, residual=source, beta=beta, variables=(*before, *reversed(covered), reader))
    return replace(longer, residual=residual) if str(residual.ty.dtype) in FLOATS else None


def _round(step: _Step) -> QuantizedChain | None:
    longer = step.longer
    if longer.dtype not in FLOATS or longer.is_rounded or longer.zero:
        return None
    return replace(longer, is_rounded=True, low=_rounded(longer.low), high=_rounded(longer.high))


def _rounded(bound: float) -> float:
    return float(round(bound)) if math.isfinite(bound) else bound


def _clip(step: _Step) -> QuantizedChain | None:
    low, high = map(scalar_of, step.call.args[1:3])
    return _bounded(step.longer, -math.inf if low is None else low, math.inf if high is None else high)


def _bound(step: _Step) -> QuantizedChain | None:
    """Return the chain after a maximum or minimum with a number."""
    number = scalar_of(step.other) if step.other is not None else None
    if number is None:
        return None
    is_low = operator_of(step.call) == "maximum"
    return _bounded(step.longer, *((number, math.inf) if is_low else (-math.inf, number)))


def _bounded(longer: QuantizedChain, low: float, high: float) -> QuantizedChain | None:
    """Return the chain with bounds; after them the result has to be of 8 bits."""
    if longer.dtype not in (*FLOATS, "int32") or (longer.dtype == "int32" and not longer.is_rounded) or low > high:
        return None
    return replace(longer, low=min(max(longer.low, low), high), high=max(min(longer.high, high), low))


def _is_row(flow: Dataflow, longer: QuantizedChain, vector: Any, *dtypes: str) -> bool:
    """Whether it is a constant with one element per column, or a single one."""
    extents, wanted = shape_of(vector), shape_of(longer.result)
    if extents is None or not wanted or not isinstance(vector, relax.Var) or str(vector.ty.dtype) not in dtypes:
        return False
    if not flow.is_constant(vector) or len(extents) > len(wanted):
        return False
    return all(same(extent, 1) for extent in extents[:-1]) and (
        not extents or same(extents[-1], 1) or same(extents[-1], wanted[-1])
    )


STEPS: dict[str, Callable[[_Step], QuantizedChain | None]] = {
    "astype": _convert,
    "reshape": _reshape,
    "multiply": _multiply,
    "divide": _multiply,
    "add": _add,
    "round": _round,
    "clip": _clip,
    "maximum": _bound,
    "minimum": _bound,
}


def pack_narrow_columns(array: Array) -> Array:
    """Return [k, n] of 8 bits as [n, k], the layout ``nk`` of constant matrices; floats as bytes."""
    columns = array.reshape(array.shape[-2:]).transpose()
    return columns if array.dtype == np.int8 else np.ascontiguousarray(columns).view(np.uint8)
