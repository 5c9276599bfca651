"""Find where the patterns of a backend match the flat ``main`` of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm import relax, tirx
from tvm.ir import GlobalVar, Op, is_prim_expr
from tvm.relax import dpl
from tvm.sym import Analyzer
from tvm_ffi import structural_walk

from packager.backends.base import Match, Pattern, Search
from packager.graph.dataflow import Dataflow, bindings_of, extents_of, variables_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import nodes_of
from packager.placement.emptiness import Emptiness

if TYPE_CHECKING:
    from packager.bundle.arrays import Array


class FlatMain:
    """The dataflow graph of ``main``: numbered bindings, and the variables that each reads.

    Variables share the numbers of their bindings; parameters follow. ``bound`` are the bindings that refer to functions
    of the module, so cannot leave it; ``no_tensors`` the variables that are not tensors of known rank; ``own_extents``
    the symbolic extents in shape and type arguments of bindings. ``scalars`` are those of run-time extents, which are
    read between calls; ``of_nothing`` the bindings with elements that may follow from no elements.
    """

    def __init__(
        self,
        main: relax.Function,
        num_inputs: int,
        array_of: Callable[[Any], Array | None],
        scalars: IdentityMap[Any] | None = None,
        emptiness: Emptiness | None = None,
    ) -> None:
        self.main = main
        self.bindings = bindings_of(main)
        self.values = relax.analysis.get_var2val(main)
        self.dataflow = Dataflow(main, main.params[num_inputs:], array_of)
        self.variables = [*self.dataflow.variables, *main.params]
        self.number = IdentityMap((variable, index) for index, variable in enumerate(self.variables))
        self.number_of_value: IdentityMap[int | None] = IdentityMap()
        for index, binding in enumerate(self.bindings):  # a value that two bindings share is ambiguous
            self.number_of_value[binding.value] = None if binding.value in self.number_of_value else index
        self.reads = [[self.number[variable] for variable in variables_of(binding.value)] for binding in self.bindings]
        self.readers: list[set[int]] = [set() for _ in self.variables]
        for index, variables in enumerate(self.reads):
            for variable in variables:
                self.readers[variable].add(index)
        self.results = {self.number[variable] for variable in variables_of(main.body.body)}
        self.bound = {index for index, binding in enumerate(self.bindings) if _names_function(binding.value)}
        self.no_tensors = {index for index, variable in enumerate(self.variables) if extents_of(variable) is None}
        stated = ((index, own_extents(binding.value)) for index, binding in enumerate(self.bindings))
        self.own_extents = {index: extents for index, extents in stated if extents}
        self.scalars = scalars or IdentityMap()
        extents = [tuple(extents_of(variable) or ()) for variable in self.variables]
        self.of_nothing = {
            index
            for index, reads in enumerate(self.reads)
            if emptiness is not None and emptiness.follows([extents[v] for v in reads], extents[index])
        }

    def predecessors(self) -> list[list[int]]:
        """Return the numbers of the bindings that each binding reads, for its operands or for its extents."""
        reads = [[variable for variable in variables if variable < len(self.bindings)] for variables in self.reads]
        for index, binding in enumerate(self.bindings if self.scalars else ()):
            parts = (binding.value, *(extents_of(binding.var) or ()))
            named = IdentitySet(variable for part in parts for variable in nodes_of(part, tirx.Var))
            scalars = [self.scalars[variable] for variable in named if variable in self.scalars]
            places = (self.number[scalar] for scalar in scalars)
            reads[index] += [place for place in places if place < len(self.bindings)]  # others are parameters
        return reads

    def binding_of(self, expr: Any) -> int | None:
        """Return the number of the binding whose value or variable ``expr`` is, or None."""
        value = self.number_of_value.get(expr)
        number = self.number.get(expr) if value is None else value
        return number if number is not None and number < len(self.bindings) else None

    def used_outside(self, index: int, nodes: frozenset[int]) -> bool:
        """Whether a binding's value is a result of ``main``, or read by a binding that is not among ``nodes``."""
        return index in self.results or bool(self.readers[index] - nodes)


def _names_function(value: Any) -> bool:
    return isinstance(value, relax.Call) and any(isinstance(part, GlobalVar) for part in (value.op, *value.args))


@dataclass(frozen=True)
class Candidate:
    """A match: the numbers of its bindings, its pattern, and the problem that the pattern derives from it."""

    nodes: frozenset[int]
    pattern: Pattern | Search
    match: Match
    problem: Any = None


def find_candidates(graph: FlatMain, patterns: Sequence[Pattern | Search]) -> list[Candidate]:
    """Return all matches, most operators first, then in the order of the patterns, then of the graph.

    Excludes matches that cannot be outlined, and matches with taps if their pattern does not allow them.
    """
    by_operator: dict[str | None, list[tuple[int, Pattern | Search]]] = {}
    for rank, pattern in enumerate(patterns):
        by_operator.setdefault(_root(pattern), []).append((rank, pattern))
    found: list[tuple[int, int, int, Candidate]] = []
    for index, binding in enumerate(graph.bindings):
        if not isinstance(binding.value, relax.Call):
            continue
        operator = getattr(binding.value.op, "name", "")
        for rank, pattern in (*by_operator.get(operator, ()), *by_operator.get(None, ())):
            matches = _search(graph, index, pattern) if isinstance(pattern, Search) else _match(graph, index, pattern)
            found += [(-len(candidate.match.calls), rank, index, candidate) for candidate in matches]
    found.sort(key=lambda entry: entry[:3])
    return [candidate for *_, candidate in found]


def root_operators(patterns: Sequence[Pattern | Search]) -> set[str | None]:
    """Return the root operators of patterns, without ``relax.``; None stands for a pattern with several roots."""
    roots = (_root(pattern) for pattern in patterns)
    return {None if root is None else root.removeprefix("relax.") for root in roots}


def _root(pattern: Pattern | Search) -> str | None:
    return f"relax.{pattern.operator}" if isinstance(pattern, Search) else _root_operator(pattern.pattern)


def _root_operator(pattern: Any) -> str | None:
    """Return the operator at the root of a pattern, None if there may be several."""
    if isinstance(pattern, dpl.AttrPattern | dpl.DataTypePattern | dpl.ShapePattern):
        return _root_operator(pattern.pattern)
    if isinstance(pattern, dpl.CallPattern) and isinstance(pattern.op, dpl.ExprPattern):
        return str(pattern.op.expr.name) if isinstance(pattern.op.expr, Op) else None
    return None


def _search(graph: FlatMain, index: int, search: Search) -> list[Candidate]:
    """Return the matches that a search finds around a binding."""
    candidates = []
    for found in search.find(graph.dataflow, graph.bindings[index].var):
        nodes = {graph.number[variable] for variable in found.variables}
        members = frozenset(nodes | {field for node in nodes for field in _fields(graph, node)})
        may_leave = can_leave(graph, members) if search.merged else is_closed(graph, members)
        if may_leave and sum(graph.used_outside(node, members) for node in members) == 1:
            candidates.append(Candidate(members, search, _match_of(graph, members, {}), found.problem))
    return candidates


def _match_of(graph: FlatMain, members: frozenset[int], annotated: Mapping[str, Any]) -> Match:
    bindings = [graph.bindings[node] for node in sorted(members)]
    calls = [binding for binding in bindings if isinstance(binding.value, relax.Call)]
    return Match(
        calls=tuple(binding.value for binding in calls),
        annotated=annotated,
        constants=graph.dataflow.constants,
        variables=tuple(binding.var for binding in calls),
    )


def _match(graph: FlatMain, index: int, pattern: Pattern) -> list[Candidate]:
    """Return the match of a pattern whose root is a binding, if any."""
    matched = pattern.pattern.extract_matched_expr(graph.bindings[index].value, graph.values)
    if matched is None:
        return []
    by_part = IdentityMap(matched.items())
    nodes = {index}
    for part, expr in matched.items():
        # A wildcard matches an operand, which is not part of the match.
        if isinstance(part, dpl.CallPattern | dpl.TupleGetItemPattern | dpl.TuplePattern):
            if expr.same_as(graph.bindings[index].value):
                continue
            inner = graph.binding_of(expr)
            if inner is not None:
                nodes.add(inner)
            elif not isinstance(part, dpl.TuplePattern):  # a tuple may stand among the arguments of its reader
                return []
    members = frozenset(nodes | {field for node in nodes for field in _fields(graph, node)})
    has_taps = any(node != index and graph.used_outside(node, members) for node in nodes)
    if not is_closed(graph, members) or (has_taps and not pattern.taps):
        return []
    annotated = {name: by_part.get(part) for name, part in pattern.annotations.items()}
    match = _match_of(graph, members, annotated)
    return [Candidate(members, pattern, match, pattern.problem(match))] if pattern.check(match) else []


def _fields(graph: FlatMain, node: int) -> set[int]:
    """Return the TupleGetItems of a tuple: they belong to its match, since a function returns tensors only."""
    binding = graph.bindings[node]
    if not isinstance(binding.var.ty, relax.TupleType):
        return set()
    return {reader for reader in graph.readers[node] if isinstance(graph.bindings[reader].value, relax.TupleGetItem)}


def is_closed(graph: FlatMain, nodes: frozenset[int]) -> bool:
    """Whether these bindings can be outlined: they can leave ``main``, and their arguments determine all dims."""
    if not can_leave(graph, nodes):
        return False
    own = [extent for node in graph.own_extents.keys() & nodes for extent in graph.own_extents[node]]
    if not own:
        return True
    reads = set().union(*(graph.reads[node] for node in nodes)) - nodes
    known = ArgumentDims([graph.variables[number] for number in reads])
    return all(known.has(extent) for extent in own)


def can_leave(graph: FlatMain, nodes: frozenset[int]) -> bool:
    """Whether bindings can be part of a function: inputs and outputs are tensors, and no function of the module is
    called."""
    if not graph.of_nothing.isdisjoint(nodes):  # code for loops that run at least once does not expect that
        return False
    if not graph.bound.isdisjoint(nodes) or any(graph.used_outside(node, nodes) for node in graph.no_tensors & nodes):
        return False
    reads = set().union(*(graph.reads[node] for node in nodes)) - nodes
    return reads.isdisjoint(graph.no_tensors)


class ArgumentDims:
    """The symbolic extents of a function's arguments: plain dims, and expressions, which get new dims."""

    def __init__(self, arguments: Sequence[relax.Var]) -> None:
        extents = [extent for argument in arguments for extent in argument.ty.shape.values]
        self.analyzer = Analyzer()
        self.plain = IdentitySet(extent for extent in extents if isinstance(extent, tirx.Var))
        self.expressions: list[tuple[Any, tirx.Var]] = []
        for extent in extents:
            if not self.has(extent):
                self.expressions.append((extent, tirx.Var(f"dim_{len(self.expressions)}", extent.ty)))

    def dim_for(self, extent: Any) -> tirx.Var | None:
        """Return the new dim for an argument's extent that is an expression, or None."""
        return next((dim for e, dim in self.expressions if self.analyzer.can_prove_equal(e, extent)), None)

    def has(self, extent: Any) -> bool:
        """Whether ``extent`` can be computed from the arguments' extents."""
        variables: list[Any] = []
        structural_walk(extent, [(tirx.Var, variables.append)])
        return all(variable in self.plain for variable in variables) or self.dim_for(extent) is not None


def own_extents(value: Any) -> list[Any]:
    """Return the symbolic extents in the shape arguments, scalar arguments and type arguments of a call."""
    if not isinstance(value, relax.Call):
        return []
    shapes = [argument for argument in value.args if isinstance(argument, relax.ShapeExpr)]
    types = [field for ty in value.ty_args for field in (ty.fields if isinstance(ty, relax.TupleType) else [ty])]
    shapes += [ty.shape for ty in types if extents_of(ty) is not None]
    scalars = [a for a in value.args if is_prim_expr(a)]
    extents = (*(extent for shape in shapes for extent in shape.values), *scalars)
    return [extent for extent in extents if not isinstance(extent, tirx.IntImm)]


def external_reads(graph: FlatMain, nodes: frozenset[int]) -> list[relax.Var]:
    """Return the variables that these bindings read but do not define, in order of first use."""
    found = dict.fromkeys(number for node in sorted(nodes) for number in graph.reads[node] if number not in nodes)
    return [graph.variables[number] for number in found]
