"""Relations between extents that a model demands and that bounds of its dims do not imply.

A matrix product wants two extents to be equal, a reshape wants as many elements as there are. Where the extents are
symbolic, TVM takes that for granted; a run with other sizes would read memory that is not its own. So what cannot be
proved when the model is built becomes a condition that every run checks before it begins (``docs/dims.md``).
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_walk

from packager.bundle.manifest import Dim
from packager.errors import ModelError
from packager.graph.dataflow import bindings_of, extents_of
from packager.graph.identity import IdentityMap
from packager.graph.symbolic import to_extent
from packager.ir.model import ImportedModel
from packager.ir.shapes import Condition

# A demand of an operator: extents that are to be equal, or of which the first is to be at most the second.
Demand = tuple[Any, str, Any]


def bound_analyzer(parameters: Iterable[relax.Var], dims: Sequence[Dim]) -> Analyzer:
    """Return an analyzer that knows the bounds of the dims in the shapes of main's parameters."""
    bounds = {dim.name: dim for dim in dims}
    analyzer = Analyzer()
    for parameter in parameters:
        for extent in parameter.ty.shape.values:
            if isinstance(extent, tirx.Var):
                dim = bounds[extent.name]
                analyzer.bind(extent, tvm.ir.Range.from_min_extent(dim.min, dim.max - dim.min + 1), True)
    return analyzer


class Relations:
    """The conditions of a model, in order, each once."""

    def __init__(self, analyzer: Analyzer, conditions: Iterable[Condition] = ()) -> None:
        self.analyzer = analyzer
        self.found = {(c.left, c.operator, c.right): c for c in conditions}

    def demand(self, left: Any, relation: str, right: Any, node: str) -> None:
        """Note what ``node`` demands, unless it always holds. Raises ModelError if it never does."""
        left, right = (tirx.IntImm("int64", e) if isinstance(e, int) else e for e in (left, right))
        if self._always(left, relation, right):
            return
        names = _names(left, right)
        condition = Condition(to_extent(left, names), relation, to_extent(right, names), node)
        if not names or (relation == "==" and self.analyzer.can_prove(tirx.NE(left, right))):
            raise ModelError(
                f"node {node!r} demands {condition.text}, which never holds within the bounds of the dims",
                hint="give the dims other bounds with --dim, or mend the model",
            )
        self.found.setdefault((condition.left, relation, condition.right), condition)

    def _always(self, left: Any, relation: str, right: Any) -> bool:
        if relation == "==":
            return bool(self.analyzer.can_prove_equal(left, right))
        return bool(self.analyzer.can_prove(left <= right))


def with_conditions(model: ImportedModel) -> ImportedModel:
    """Return the model with the conditions of its operators after those that its frontend found."""
    main, known = model.module["main"], model.signature
    if not known.dims:
        return model
    relations = Relations(bound_analyzer(main.params[: len(known.inputs)], known.dims), known.conditions)
    for binding in bindings_of(main):
        call = binding.value
        if isinstance(call, relax.Call) and isinstance(call.op, tvm.ir.Op) and call.op.name in _DEMANDS:
            node = model.nodes.get(binding.var.name, call.op.name.removeprefix("relax."))
            for left, relation, right in _DEMANDS[call.op.name](call):
                relations.demand(left, relation, right, node)
    signature = dataclasses.replace(known, conditions=tuple(relations.found.values()))
    return dataclasses.replace(model, signature=signature)


def _names(*expressions: Any) -> IdentityMap[Any]:
    """Return the dims in expressions by their variables."""
    found: list[Any] = []
    for expression in expressions:
        structural_walk(expression, [(tirx.Var, found.append)])
    return IdentityMap((variable, variable.name) for variable in found)


def _known(function: Callable[..., Iterator[Demand]]) -> Callable[[relax.Call], Iterator[Demand]]:
    """Return a rule on a call, for one on its attributes and the shapes of its result and arguments."""

    def rule(call: relax.Call) -> Iterator[Demand]:
        arguments = [part for a in call.args for part in (a.fields if isinstance(a, relax.Tuple) else [a])]
        shapes = [extents_of(argument) for argument in arguments if isinstance(argument.ty, relax.TensorType)]
        result = extents_of(call)
        if result is not None and all(shape is not None for shape in shapes):
            yield from function(call.attrs, result, *shapes)

    return rule


def _size(shape: Sequence[Any]) -> Any:
    return reduce(operator.mul, shape, tirx.IntImm("int64", 1))


def _reshape(_attrs: Any, result: Sequence[Any], data: Sequence[Any]) -> Iterator[Demand]:
    yield _size(data), "==", _size(result)


def _broadcast_to(_attrs: Any, result: Sequence[Any], data: Sequence[Any]) -> Iterator[Demand]:
    for have, wanted in zip(reversed(data), reversed(result), strict=False):
        if not (isinstance(have, tirx.IntImm) and have.value == 1):
            yield have, "==", wanted


def _matmul(_attrs: Any, _result: Sequence[Any], a: Sequence[Any], b: Sequence[Any]) -> Iterator[Demand]:
    yield a[-1], "==", b[-2] if len(b) > 1 else b[0]


def _conv(attrs: Any, _result: Sequence[Any], data: Sequence[Any], weight: Sequence[Any]) -> Iterator[Demand]:
    yield data[attrs.data_layout.index("C")], "==", weight[attrs.kernel_layout.index("I")] * attrs.groups


def _conv_transpose(attrs: Any, _result: Sequence[Any], data: Sequence[Any], weight: Sequence[Any]) -> Iterator[Demand]:
    yield data[attrs.data_layout.index("C")], "==", weight[attrs.kernel_layout.index("I")]


def _einsum(attrs: Any, _result: Sequence[Any], *operands: Sequence[Any]) -> Iterator[Demand]:
    yield from einsum_demands(str(attrs.subscripts), operands)


def einsum_demands(subscripts: str, operands: Sequence[Sequence[Any]]) -> Iterator[Demand]:
    """Yield that extents of one label are equal."""
    extents: dict[str, Any] = {}
    for labels, shape in zip(subscripts.replace(" ", "").split("->")[0].split(","), operands, strict=True):
        before, _, after = labels.partition("...")
        named = [*zip(before, shape, strict=False), *zip(reversed(after), reversed(shape), strict=False)]
        for label, extent in named:
            yield extents.setdefault(label, extent), "==", extent


def _elements(attrs: Any, data: Sequence[Any], indices: Sequence[Any]) -> Iterator[Demand]:
    axis = int(attrs.axis) % len(data)
    for place, (extent, limit) in enumerate(zip(indices, data, strict=True)):
        if place != axis:
            yield extent, "<=", limit


def _gather_elements(attrs: Any, _result: Any, data: Sequence[Any], indices: Sequence[Any]) -> Iterator[Demand]:
    yield from _elements(attrs, data, indices)


def _scatter_elements(
    attrs: Any, _result: Any, data: Sequence[Any], indices: Sequence[Any], updates: Sequence[Any]
) -> Iterator[Demand]:
    yield from _elements(attrs, data, indices)
    for extent, limit in zip(indices, updates, strict=True):
        yield extent, "==", limit


def _attention(
    _attrs: Any, _result: Any, query: Sequence[Any], key: Sequence[Any], value: Sequence[Any], *_bias: Sequence[Any]
) -> Iterator[Demand]:
    yield query[0], "==", key[0]
    yield query[-1], "==", key[-1]
    yield key[0], "==", value[0]
    yield key[1], "==", value[1]


_DEMANDS: Mapping[str, Callable[[relax.Call], Iterator[Demand]]] = {
    "relax.reshape": _known(_reshape),
    "relax.broadcast_to": _known(_broadcast_to),
    "relax.matmul": _known(_matmul),
    "relax.einsum": _known(_einsum),
    "relax.gather_elements": _known(_gather_elements),
    "relax.scatter_elements": _known(_scatter_elements),
    "relax.nn.attention": _known(_attention),
    "relax.nn.attention_bias": _known(_attention),
    **{f"relax.nn.conv{n}d": _known(_conv) for n in (1, 2, 3)},
    **{f"relax.nn.conv{n}d_transpose": _known(_conv_transpose) for n in (1, 2, 3)},
}
