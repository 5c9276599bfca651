"""Match gated products: one half of a product's columns times an activation of the others (GLU, arXiv:2002.05202).

Both halves are slices of one product, or two products of the same rows, as StarNet (arXiv:2403.19967) has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from packager.bundle.dtypes import HALVES
from packager.graph.dataflow import Dataflow, in_order, operator_of, same, shape_of, slice_of
from packager.graph.products.activations import find_activations
from packager.graph.products.epilogues import Chain, Chained, chains, only_reader


@dataclass(frozen=True)
class Gated(Chained):
    """``result = activation(gate) * factor``.

    The gate and the factor are the results of two ``products``, in this order, or halves of the columns of one, of
    which ``gate`` is the index. These have neither activation nor residual.
    """

    products: tuple[Chain, ...]
    activation: str
    gate: int = 0


@dataclass(frozen=True)
class _Factor:
    """What is multiplied: ``variables`` compute it of ``source``."""

    source: Any
    variables: tuple[Any, ...]
    activation: str

    @property
    def result(self) -> Any:
        return self.variables[-1] if self.variables else self.source


def gated_products(flow: Dataflow, anchor: Any) -> Iterator[Gated]:
    """Yield those that ``anchor``, a matmul or conv2d, is the only product of, or that of the gate."""
    for chain in chains(flow, anchor):
        if chain.activation or chain.residual is not None or flow.is_result(chain.result):
            continue
        halves = _halves(flow, chain)
        for gate, half in enumerate(halves):
            yield from _of_halves(flow, chain, gate, half, halves[1 - gate])
        if not halves:
            yield from _of_two(flow, chain)


def _halves(flow: Dataflow, chain: Chain) -> tuple[Any, ...]:
    """Return the first and the last half of the columns of a product that nothing else reads; or nothing."""
    columns, readers = (shape_of(chain.result) or (None,))[-1], flow.readers(chain.result)
    if chain.axis != -1 or not isinstance(columns, int) or columns % 2 or len(readers) != 2:
        return ()
    found: dict[tuple[int, int], Any] = {}
    for reader in readers:
        slices = slice_of(flow.value(reader))
        if (
            slices is None
            or flow.is_result(reader)
            or not all(map(_is_whole, slices[:-1], shape_of(chain.result) or ()))
        ):
            return ()
        begin, end, _ = slices[-1].indices(columns)
        found[begin, end] = reader
    halves = tuple(found.get(place) for place in ((0, columns // 2), (columns // 2, columns)))
    return () if None in halves else halves


def _is_whole(part: slice, extent: Any) -> bool:
    """Whether a slice is all of an axis."""
    return part == slice(None) or (isinstance(extent, int) and part.indices(extent) == (0, extent, 1))


def _of_halves(flow: Dataflow, chain: Chain, gate: int, half: Any, other: Any) -> Iterator[Gated]:
    for activated in _activated(flow, half):
        for variables in _multiplied(flow, activated, other):
            members = in_order(flow, (*chain.variables, half, *activated.variables, other, *variables))
            yield Gated(chain.anchor, members, (chain,), activated.activation, gate)


def _of_two(flow: Dataflow, chain: Chain) -> Iterator[Gated]:
    """Yield those whose gate is the result of this product."""
    for activated in _activated(flow, chain.result):
        reader = _end(flow, activated.result)
        for factor in flow.value(reader).args if reader is not None else ():
            for second in _products(flow, factor):
                if second.anchor.same_as(chain.anchor) or not _are_alike(flow, chain, second):
                    continue
                for variables in _multiplied(flow, activated, second.result):
                    members = (*chain.variables, *second.variables, *activated.variables, *variables)
                    yield Gated(chain.anchor, in_order(flow, members), (chain, second), activated.activation)


def _activated(flow: Dataflow, source: Any) -> Iterator[_Factor]:
    """Yield activations of a gate, and itself."""
    for name, members in reversed(find_activations(flow, source)):
        yield _Factor(source, tuple(members), name)
    yield _Factor(source, (), "none")


def _casts(flow: Dataflow, variable: Any) -> tuple[tuple[Any, ...], Any | None]:
    """Return the casts of a variable, each the only reader of the one before, and what alone reads the last."""
    found: list[Any] = []
    while (reader := only_reader(flow, found[-1] if found else variable)) is not None:
        if flow.call(reader, "astype") is None:
            return tuple(found), reader
        found.append(reader)
    return tuple(found), None


def _end(flow: Dataflow, variable: Any) -> Any | None:
    """Return the product of factors that alone reads a variable, or casts of it."""
    _, reader = _casts(flow, variable)
    return reader if reader is not None and flow.call(reader, "multiply") is not None else None


def _multiplied(flow: Dataflow, gate: _Factor, factor: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the variables that multiply both, longest first: casts of them, the product and casts of that."""
    (left, end), (right, other) = _casts(flow, gate.result), _casts(flow, factor)
    if end is None or other is None or not end.same_as(other) or flow.call(end, "multiply") is None:
        return
    behind, _ = _casts(flow, end)
    for count in range(len(behind), -1, -1):
        variables = (*left, *right, end, *behind[:count])
        if str(variables[-1].ty.dtype) in HALVES:
            yield variables


def _products(flow: Dataflow, factor: Any) -> Iterator[Chain]:
    """Yield the products whose result a factor is, or a cast of."""
    source = factor
    while (call := flow.call(source, "astype", "add", "reshape")) is not None:
        source = next((each for each in call.args if not flow.is_constant(each)), None)
    if flow.call(source, "matmul", "nn.conv2d") is not None:
        for chain in chains(flow, source):
            if not chain.activation and chain.residual is None and not flow.is_result(chain.result):
                yield chain


def _are_alike(flow: Dataflow, one: Chain, other: Chain) -> bool:
    """Whether two products have the same rows and as many columns, and both have a bias or neither."""
    first, second = flow.value(one.anchor), flow.value(other.anchor)
    if operator_of(first) != operator_of(second) or not first.args[0].same_as(second.args[0]):
        return False
    pairs = ((first.args[1], second.args[1]), (one.result, other.result))
    alike = all(same(shape_of(left) or (), shape_of(right) or ()) for left, right in pairs)
    return alike and one.scale == other.scale and (one.bias is None) == (other.bias is None)
