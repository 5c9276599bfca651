"""A product or convolution of 8-bit operands, and what becomes of its sums: scaled, biased, rounded to 8 bits again.

The operators are those that ``packager.transforms.quantize.quantize`` writes, and those that people write in Relax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax

from packager.backends.cutlass.core.activations import find_activation
from packager.backends.cutlass.core.element_types import FLOATS, same, scalar_of, shape_of
from packager.graph.dataflow import Dataflow, operator_of

FLOAT8 = "float8_e4m3fn"
RANGES = {"int8": (-128.0, 127.0), "uint8": (0.0, 255.0), FLOAT8: (-448.0, 448.0)}
DATA = tuple(RANGES)


@dataclass(frozen=True)
class QuantizedChain:
    """What ``templates/cutlass/quantized/quantized.h`` says, of a matmul or conv2d of 8 bits, ``anchor``.

    ``variables`` are those whose bindings it covers, in order, the result last. Offset, scale and bias are a number
    each and perhaps a row, a constant with an element for each column or one: a scale is the product of both, an offset
    or a bias the sum. ``beta`` is the residual's. ``gain`` and what follows is of results of 8 bits: ``low`` and
    ``high`` are their bounds.
    """

    anchor: Any
    variables: tuple[Any, ...]
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
    def result(self) -> Any:
        """The variable that holds the result."""
        return self.variables[-1]

    @property
    def dtype(self) -> str:
        """The type of the variable that holds the result."""
        return str(self.result.ty.dtype)

    @property
    def is_linear(self) -> bool:
        """Whether sums have been scaled at most."""
        shifted = self.bias_row is not None or self.bias or self.residual is not None or self.activation
        return not shifted and not self.is_rescaled

    @property
    def is_rescaled(self) -> bool:
        """Whether what only results of 8 bits have has begun."""
        return self.gain != 1.0 or self.is_rounded or self.zero != 0.0 or (self.low, self.high) != (-math.inf, math.inf)


def quantized_chains(flow: Dataflow, anchor: Any) -> Iterator[QuantizedChain]:
    """Yield what can be taken with an anchor, longest first, the anchor alone last."""
    if str(flow.value(anchor).args[0].ty.dtype) not in DATA:
        return
    found = [QuantizedChain(anchor, (anchor,))]
    while (longer := _extend(flow, found[-1])) is not None:
        found.append(longer)
        if longer.dtype in RANGES:
            break
    yield from (chain for chain in reversed(found) if _is_end(chain))


def _is_end(chain: QuantizedChain) -> bool:
    """Whether a chain may end here: at sums, at floats before they are rounded, at 8 bits."""
    return chain.dtype in RANGES or not chain.is_rescaled


def _extend(flow: Dataflow, chain: QuantizedChain) -> QuantizedChain | None:
    """Return the chain with one more step, or None if there is none."""
    result = chain.result
    if flow.is_result(result):
        return None
    floats = chain.dtype in FLOATS
    if floats and not chain.activation and not chain.is_rescaled:
        found = find_activation(flow, result)
        if found is not None:
            return replace(chain, variables=(*chain.variables, *found[1]), activation=found[0])
    readers = flow.readers(result)
    if len(readers) != 1:
        return None
    (reader,) = readers
    call = flow.value(reader)
    take = STEPS.get(operator_of(call))
    longer = replace(chain, variables=(*chain.variables, reader))
    return take(_Step(flow, longer, call, result)) if take is not None else None


@dataclass(frozen=True)
class _Step:
    """A call that reads the result of a chain, ``source``; ``longer`` covers it already."""

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
    # Only what was rounded converts to integers as kernels have it.
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
        # Bounds that came before are of what is multiplied now.
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
    """Return the chain with a residual, which may be of 8 bits, converted and scaled."""
    if not isinstance(residual, relax.Var) or not same(shape_of(residual) or (), shape_of(longer.result) or (0,)):
        return None
    covered: list[Any] = []
    source, beta = residual, 1.0
    while (call := flow.call(source, "multiply", "astype")) is not None:
        if flow.is_result(source) or len(flow.readers(source)) != 1:
            break
        if operator_of(call) == "multiply":
            numbers = [scalar_of(argument) for argument in call.args]
            if numbers[0] is None and numbers[1] is not None:
                factor, inner = numbers[1], call.args[0]
            elif numbers[0] is not None and numbers[1] is None:
                factor, inner = numbers[0], call.args[1]
            else:
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


def _maximum(step: _Step) -> QuantizedChain | None:
    number = scalar_of(step.other) if step.other is not None else None
    return None if number is None else _bounded(step.longer, number, math.inf)


def _minimum(step: _Step) -> QuantizedChain | None:
    number = scalar_of(step.other) if step.other is not None else None
    return None if number is None else _bounded(step.longer, -math.inf, number)


def _bounded(longer: QuantizedChain, low: float, high: float) -> QuantizedChain | None:
    """Return the chain with bounds: the first are of floats, so that what follows has to be 8 bits."""
    if longer.dtype not in (*FLOATS, "int32") or (longer.dtype == "int32" and not longer.is_rounded) or low > high:
        return None
    return replace(longer, low=min(max(longer.low, low), high), high=max(min(longer.high, high), low))


def _is_row(flow: Dataflow, longer: QuantizedChain, vector: Any, *dtypes: str) -> bool:
    """Whether it is a constant with an element for each column, or one."""
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
    "maximum": _maximum,
    "minimum": _minimum,
}
