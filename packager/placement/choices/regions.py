"""Regions: operators of a model that groups of different layouts share, and what TVM fuses with them; their texts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from tvm import relax, tirx
from tvm.ir import is_prim_expr

from packager.graph.dataflow import operator_of, same, shape_of
from packager.graph.identity import IdentityMap
from packager.placement.match import FlatMain

Nodes = tuple[int, ...]
"""Bindings of ``main``, in order."""


def find_regions(groups: Iterable[frozenset[int]]) -> list[Nodes]:
    """Return the regions: groups that share a binding are in one, so each group is in one region as a whole."""
    first: dict[int, int] = {}

    def root(node: int) -> int:
        while first[node] != node:
            first[node] = node = first[first[node]]
        return node

    for group in groups:
        for node in group:
            first.setdefault(node, node)
        roots = {root(node) for node in group}
        for other in roots:
            first[other] = min(roots)
    regions: dict[int, list[int]] = {}
    for node in sorted(first):
        regions.setdefault(root(node), []).append(node)
    return [tuple(nodes) for nodes in regions.values()]


# Operators that TVM computes in the loop nest of an operand.
ELEMENTWISE = frozenset(
    (
        *(
            "nn.relu",
            "nn.relu6",
            "nn.gelu",
            "nn.gelu_tanh",
            "nn.silu",
            "nn.leakyrelu",
            "nn.softplus",
            "sigmoid",
            "tanh",
        ),
        *("add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "clip", "where", "astype"),
        *("exp", "log", "sqrt", "rsqrt", "erf", "sin", "cos", "sinh", "cosh", "abs", "negative", "square", "round"),
        *("floor", "ceil", "sign"),
    )
)
# Operators that TVM computes no operand in.
ANCHORS = frozenset(("matmul", *(f"nn.conv{n}d{kind}" for n in (1, 2, 3) for kind in ("", "_transpose"))))


def extend_regions(graph: FlatMain, regions: Iterable[Nodes], covered: Collection[int]) -> list[Nodes]:
    """Add to regions the elementwise operators on their results that TVM fuses with them, and no backend takes.

    Behind a choice they would not be fused: an alternative that is left to TVM would be slower than in a build without
    the others. Those that TVM fuses with what reads them are not added.
    """
    added = {
        node for node in range(len(graph.bindings)) if node not in covered and _operator(graph, node) in ELEMENTWISE
    }
    for node in sorted(added, reverse=True):
        if any(r not in added and r not in covered and _operator(graph, r) not in ANCHORS for r in graph.readers[node]):
            added.discard(node)
    found = {region[0]: list(region) for region in regions}
    owner = {node: first for first, nodes in found.items() for node in nodes}
    for node in sorted(added):
        made = [r for r in graph.reads[node] if r in owner and _same_shape(graph, r, node)]
        if made:
            owner[node] = owner[max(made)]
            found[owner[node]].append(node)
    return [tuple(sorted(nodes)) for nodes in found.values()]


def _operator(graph: FlatMain, node: int) -> str:
    return operator_of(graph.bindings[node].value)


def _same_shape(graph: FlatMain, first: int, second: int) -> bool:
    shapes = [shape_of(graph.bindings[node].var) for node in (first, second)]
    return None not in shapes and same(*shapes)


def operator_name(value: Any) -> str:
    """Return the name of the operator that a binding calls: ``conv2d``."""
    if not isinstance(value, relax.Call):
        return type(value).__name__
    if isinstance(value.args[0] if value.args else None, relax.ExternFunc):
        return str(value.args[0].global_symbol)
    return str(getattr(value.op, "name", value.op)).removeprefix("relax.").removeprefix("nn.")


class RegionText:
    """Writes what a region computes, such that equal regions have equal texts: operators, attributes, types, operands.

    Values of constants do not count.
    """

    def __init__(self, graph: FlatMain, nodes: Nodes) -> None:
        self.graph = graph
        self.nodes = nodes
        self.numbers: IdentityMap[str] = IdentityMap()

    def lines(self) -> list[str]:
        """Return a line for each binding, and which are results."""
        lines = []
        for position, node in enumerate(self.nodes):
            binding = self.graph.bindings[node]
            text = self._value(binding.value)
            self.numbers[binding.var] = f"%{position}"
            used = self.graph.used_outside(node, frozenset(self.nodes))
            lines.append(f"{'out ' if used else ''}%{position}: {_type(binding.var.ty)} = {text}")
        return lines

    def _value(self, value: Any) -> str:
        match value:
            case relax.Call():
                arguments = ", ".join(map(self._value, value.args))
                attributes = "" if value.attrs is None else str(value.attrs)
                types = ", ".join(_type(ty) for ty in value.ty_args)
                return f"{operator_name(value)}({arguments}){attributes}[{types}]"
            case relax.Tuple():
                return f"({', '.join(map(self._value, value.fields))})"
            case relax.TupleGetItem():
                return f"{self._value(value.tuple_value)}.{value.index}"
        if isinstance(value, relax.Var) and not is_prim_expr(value):
            return self._variable(value)
        return str(value)

    def _variable(self, variable: relax.Var) -> str:
        if variable not in self.numbers:
            mark = "const" if self.graph.dataflow.is_constant(variable) else "in"
            self.numbers[variable] = f"{mark}{len(self.numbers)}: {_type(variable.ty)}"
        return self.numbers[variable]


def _type(ty: Any) -> str:
    if isinstance(ty, relax.TupleType):
        return f"({', '.join(map(_type, ty.fields))})"
    shape = getattr(ty, "shape", None)
    extents = ",".join(map(_extent, shape.values)) if isinstance(shape, relax.ShapeExpr) else "?"
    return f"{getattr(ty, 'dtype', ty)}[{extents}]"


def _extent(extent: Any) -> str:
    return str(int(extent)) if isinstance(extent, tirx.IntImm) else str(extent)


def generalize(text: str) -> tuple[str, tuple[int, ...]]:
    """Return the text of a region with a mark for each static extent of its tensors, and these extents."""
    extents: list[int] = []

    def mark(found: re.Match[str]) -> str:
        parts = found[2].split(",")
        extents.extend(int(part) for part in parts if part.isdigit())
        return f"{found[1]}[{','.join('#' if part.isdigit() else part for part in parts)}]"

    return _TENSOR.sub(mark, text), tuple(extents)


_TENSOR = re.compile(r"\b((?:u?int|float|bfloat|bool)\w*)\[([^\[\] ]+)\]")


def result_shape(graph: FlatMain, nodes: Nodes) -> str:
    """Return the type of a region's last result as text."""
    results = [node for node in nodes if graph.used_outside(node, frozenset(nodes))] or nodes[-1:]
    return _type(graph.bindings[results[-1]].var.ty)


def runs_of(positions: Sequence[int]) -> Iterator[list[int]]:
    """Yield the runs of consecutive numbers."""
    run: list[int] = []
    for position in positions:
        if run and position != run[-1] + 1:
            yield run
            run = []
        run.append(position)
    if run:
        yield run
