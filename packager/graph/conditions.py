"""Collects shape constraints that the bounds of the dims do not imply, as run-time checks.

A matmul requires equal reduction extents, a reshape an equal number of elements. TVM assumes such constraints to hold
for symbolic extents; a run that violates them would access memory out of bounds. So constraints that cannot be proved
at build time become conditions that every run checks first (``docs/dims.md``).
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

from packager.bundle.manifest import Dim
from packager.errors import ModelError
from packager.graph.dataflow import bindings_of, extents_of, operator_of
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import nodes_of
from packager.graph.symbolic import to_extent
from packager.ir.model import ImportedModel
from packager.ir.shapes import Condition

# (left, relation, right): extents that an operator requires to be equal ("=="), or ordered ("<=").
Constraint = tuple[Any, str, Any]


def bound_analyzer(parameters: Iterable[relax.Var], dims: Sequence[Dim]) -> Analyzer:
    """Return an analyzer with the bounds of the dims in the shapes of main's parameters."""
    bounds = {dim.name: dim for dim in dims}
    analyzer = Analyzer()
    for parameter in parameters:
        for extent in parameter.ty.shape.values:
            if isinstance(extent, tirx.Var):
                dim = bounds[extent.name]
                analyzer.bind(extent, tvm.ir.Range.from_min_extent(dim.min, dim.max - dim.min + 1), True)
    return analyzer


class Relations:
    """The distinct conditions of a model, in order.

    ``branches`` are those that nodes are computed in: a condition of one branch does not hold for other nodes.
    """

    def __init__(
        self,
        analyzer: Analyzer,
        conditions: Iterable[Condition] = (),
        branches: Mapping[str, tuple[tuple[str, int], ...]] | None = None,
    ) -> None:
        self.analyzer = analyzer
        self.branches = {} if branches is None else branches
        self.found = {self._key(condition): condition for condition in conditions}

    def _key(self, condition: Condition) -> tuple[Any, ...]:
        return condition.left, condition.operator, condition.right, self.branches.get(condition.node, ())

    def require(self, left: Any, relation: str, right: Any, node: str) -> None:
        """Add a constraint of ``node`` unless it always holds. Raises ModelError if it never does."""
        left, right = (tirx.IntImm("int64", e) if isinstance(e, int) else e for e in (left, right))
        analyzer = self.analyzer
        if analyzer.can_prove_equal(left, right) if relation == "==" else analyzer.can_prove(left <= right):
            return
        names = IdentityMap((v, v.name) for side in (left, right) for v in nodes_of(side, tirx.Var))
        condition = Condition(to_extent(left, names), relation, to_extent(right, names), node)
        if not names or (relation == "==" and analyzer.can_prove(tirx.NE(left, right))):
            raise ModelError(
                f"node {node!r} requires {condition.text}, which never holds within the bounds of the dims",
                hint="change the bounds with --dim, or fix the model",
            )
        self.found.setdefault(self._key(condition), condition)


def with_conditions(model: ImportedModel) -> ImportedModel:
    """Append the conditions of the model's operators to those of its frontend."""
    main, known = model.module["main"], model.signature
    if not known.dims:
        return model
    analyzer = bound_analyzer(main.params[: len(known.inputs)], known.dims)
    relations = Relations(analyzer, known.conditions, known.branches)
    for binding in bindings_of(main):
        call = binding.value
        if operator_of(call) in _RULES:
            node = model.nodes.get(binding.var.name, operator_of(call))
            for left, relation, right in _constraints(call):
                relations.require(left, relation, right, node)
    signature = dataclasses.replace(known, conditions=tuple(relations.found.values()))
    return dataclasses.replace(model, signature=signature)


def _constraints(call: relax.Call) -> Iterator[Constraint]:
    """Yield the constraints of a call's operator, by the rule on its attributes, result shape and argument shapes."""
    arguments = [part for a in call.args for part in (a.fields if isinstance(a, relax.Tuple) else [a])]
    shapes = [extents_of(argument) for argument in arguments if isinstance(argument.ty, relax.TensorType)]
    result = extents_of(call)
    if result is not None and all(shape is not None for shape in shapes):
        yield from _RULES[operator_of(call)](call.attrs, result, *shapes)


def _size(shape: Sequence[Any]) -> Any:
    return reduce(operator.mul, shape, tirx.IntImm("int64", 1))


def _reshape(_attrs: Any, result: Sequence[Any], data: Sequence[Any]) -> Iterator[Constraint]:
    yield _size(data), "==", _size(result)


def _broadcast_to(_attrs: Any, result: Sequence[Any], data: Sequence[Any]) -> Iterator[Constraint]:
    for have, wanted in zip(reversed(data), reversed(result), strict=False):
        if not (isinstance(have, tirx.IntImm) and have.value == 1):
            yield have, "==", wanted


def _matmul(_attrs: Any, _result: Sequence[Any], a: Sequence[Any], b: Sequence[Any]) -> Iterator[Constraint]:
    yield a[-1], "==", b[-2] if len(b) > 1 else b[0]


def _conv(attrs: Any, _result: Sequence[Any], data: Sequence[Any], weight: Sequence[Any]) -> Iterator[Constraint]:
    yield data[attrs.data_layout.index("C")], "==", weight[attrs.kernel_layout.index("I")] * attrs.groups


def _conv_transpose(
    attrs: Any, _result: Sequence[Any], data: Sequence[Any], weight: Sequence[Any]
) -> Iterator[Constraint]:
    yield data[attrs.data_layout.index("C")], "==", weight[attrs.kernel_layout.index("I")]


def _einsum(attrs: Any, _result: Sequence[Any], *operands: Sequence[Any]) -> Iterator[Constraint]:
    yield from einsum_constraints(str(attrs.subscripts), operands)


def einsum_constraints(subscripts: str, operands: Sequence[Sequence[Any]]) -> Iterator[Constraint]:
    """Yield the constraints that extents with the same label are equal."""
    extents: dict[str, Any] = {}
    for labels, shape in zip(subscripts.replace(" ", "").split("->")[0].split(","), operands, strict=True):
        before, _, after = labels.partition("...")
        named = [*zip(before, shape, strict=False), *zip(reversed(after), reversed(shape), strict=False)]
        for label, extent in named:
            yield extents.setdefault(label, extent), "==", extent


def _gather_elements(attrs: Any, _result: Any, data: Sequence[Any], indices: Sequence[Any]) -> Iterator[Constraint]:
    axis = int(attrs.axis) % len(data)
    for place, (extent, limit) in enumerate(zip(indices, data, strict=True)):
        if place != axis:
            yield extent, "<=", limit


def _scatter_elements(
    attrs: Any, result: Any, data: Sequence[Any], indices: Sequence[Any], updates: Sequence[Any]
) -> Iterator[Constraint]:
    yield from _gather_elements(attrs, result, data, indices)
    for extent, limit in zip(indices, updates, strict=True):
        yield extent, "==", limit


def _attention(
    _attrs: Any, _result: Any, query: Sequence[Any], key: Sequence[Any], value: Sequence[Any], *_bias: Sequence[Any]
) -> Iterator[Constraint]:
    yield query[0], "==", key[0]
    yield query[-1], "==", key[-1]
    yield key[0], "==", value[0]
    yield key[1], "==", value[1]


_RULES: Mapping[str, Callable[..., Iterator[Constraint]]] = {
    "reshape": _reshape,
    "broadcast_to": _broadcast_to,
    "matmul": _matmul,
    "einsum": _einsum,
    "gather_elements": _gather_elements,
    "scatter_elements": _scatter_elements,
    "nn.attention": _attention,
    "nn.attention_bias": _attention,
    **{f"nn.conv{n}d": _conv for n in (1, 2, 3)},
    **{f"nn.conv{n}d_transpose": _conv_transpose for n in (1, 2, 3)},
}
