"""Match the epilogue of a matmul or conv2d: scale, bias, residual, activation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax

from packager.bundle.dtypes import FLOATS, HALVES
from packager.graph.dataflow import Dataflow, operator_of, same, scalar_of, shape_of
from packager.graph.products.activations import find_activations


@dataclass(frozen=True)
class Chained:
    """A matmul or conv2d, ``anchor``, and the operators that are fused into its epilogue.

    ``variables`` are bound to these, in order; the last one is the result.
    """

    anchor: Any
    variables: tuple[Any, ...]

    @property
    def result(self) -> Any:
        """The variable that holds the result."""
        return self.variables[-1]


@dataclass(frozen=True)
class Chain(Chained):
    """``result = activation(scale * anchor + bias + residual)``, with views and casts between.

    ``bias`` has one element per column (channel), of which ``axis`` is the axis, counted from the last; ``residual``
    has the shape of the result.
    """

    scale: float = 1.0
    bias: Any = None
    residual: Any = None
    activation: str = ""
    axis: int = -1


def only_reader(flow: Dataflow, variable: Any) -> Any | None:
    """Return the variable whose binding alone reads ``variable``; None if others do, or it is a result."""
    readers = () if flow.is_result(variable) else tuple(flow.readers(variable))
    return readers[0] if len(readers) == 1 else None


def chains(flow: Dataflow, anchor: Any, axis: int = -1) -> Iterator[Chain]:
    """Yield the chains of an anchor, longest first, the anchor alone last; ``axis`` is that of its columns."""
    found = [Chain(anchor, (anchor,), axis=axis)]
    while longer := _extend(flow, found[-1]):
        found += longer
    yield from reversed([chain for chain in found if _is_end(flow, chain)])


def _is_end(flow: Dataflow, chain: Chain) -> bool:
    """Whether a chain may end here: not in the middle of a pair of casts."""
    is_cast = len(chain.variables) > 1 and flow.call(chain.result, "astype") is not None
    return not is_cast or str(chain.result.ty.dtype) != "float32"


def _extend(flow: Dataflow, chain: Chain) -> list[Chain]:
    """Return the chain with one more step, with each of its activations if that is the step; empty if there is none."""
    result = chain.result
    if flow.is_result(result):
        return []
    if not chain.activation and (found := find_activations(flow, result)):
        return [replace(chain, variables=(*chain.variables, *members), activation=name) for name, members in found]
    longer = _with_reader(flow, chain, result)
    return [] if longer is None else [longer]


def _with_reader(flow: Dataflow, chain: Chain, result: Any) -> Chain | None:
    """Return the chain with the one call that reads its result; None if that is no part of an epilogue."""
    reader = only_reader(flow, result)
    if reader is None:
        return None
    call = flow.value(reader)
    longer = replace(chain, variables=(*chain.variables, reader))
    name = operator_of(call)
    if name == "astype" and str(reader.ty.dtype) in FLOATS:
        return longer
    if name == "reshape":
        before, after = shape_of(result), shape_of(reader)
        return longer if before and after and chain.axis == -1 and same(before[-1], after[-1]) else None
    if name in ("multiply", "divide", "add") and not chain.activation:
        return _combine(flow, longer, name, call, result)
    return None


def _combine(flow: Dataflow, longer: Chain, name: str, call: Any, result: Any) -> Chain | None:
    """Return the chain with a scale, a bias or a residual; ``longer`` already includes the call."""
    first, second = call.args
    if first.same_as(second):
        return None
    other = second if first.same_as(result) else first
    if name in ("multiply", "divide"):
        number = scalar_of(other)
        fits = number and longer.bias is None and longer.residual is None
        if not fits or (name == "divide" and other.same_as(first)):
            return None
        assert number is not None
        return replace(longer, scale=longer.scale * (number if name == "multiply" else 1 / number))
    extents, wanted = shape_of(other), shape_of(longer.result)
    if not extents or not wanted or not isinstance(other, relax.Var) or str(other.ty.dtype) not in FLOATS:
        return None
    place = len(extents) + longer.axis
    ones = (extent for index, extent in enumerate(extents) if index != place)
    is_row = place >= 0 and same(extents[place], wanted[longer.axis]) and all(same(extent, 1) for extent in ones)
    if is_row and longer.bias is None and longer.residual is None:
        return replace(longer, bias=other)
    if longer.residual is None and same(extents, wanted):
        return _with_residual(flow, longer, other)
    return None


def _with_residual(flow: Dataflow, longer: Chain, residual: Any) -> Chain:
    """Return the chain with a residual, read before a cast to float32 that only the sum needs.

    Reshapes between both do not change the order of its elements.
    """
    covered: list[Any] = []
    source = residual
    while (call := flow.call(source, "astype", "reshape")) is not None:
        if flow.is_result(source) or len(flow.readers(source)) != 1:
            break
        covered.append(source)
        source = call.args[0]
        if operator_of(call) == "astype":
            break
    if not covered or flow.call(covered[-1], "astype") is None or str(source.ty.dtype) not in HALVES:
        return replace(longer, residual=residual)
    *before, reader = longer.variables
    return replace(longer, residual=source, variables=(*before, *reversed(covered), reader))
