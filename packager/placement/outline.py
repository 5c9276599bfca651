"""Outline groups of bindings: extract a function per group, and replace the group in ``main`` by a call."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tvm import relax, tirx
from tvm_ffi import structural_equal, structural_hash

from packager.bundle.manifest import Dim
from packager.errors import BackendError
from packager.graph.cost import estimate_function
from packager.graph.dataflow import bindings_of, extents_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import map_operands, nodes_of, with_bindings
from packager.graph.symbolic import extent_interval, shape_variables, to_extent
from packager.ir.primitives import CallSite, Composite, Cost, Partition
from packager.ir.shapes import Extent
from packager.placement.match import ArgumentDims, Candidate, FlatMain, external_reads
from packager.placement.problems import facts_of, renamed


@dataclass(frozen=True)
class Group:
    """Bindings that become one call: their numbers, their pattern matches, and whether one of these is an anchor."""

    nodes: frozenset[int]
    candidates: tuple[Candidate, ...]
    anchored: bool

    @classmethod
    def of(cls, *candidates: Candidate) -> Group:
        """Return the group of disjoint matches."""
        nodes = frozenset[int]().union(*(candidate.nodes for candidate in candidates))
        return cls(nodes, candidates, any(candidate.pattern.anchor for candidate in candidates))

    @property
    def ordered(self) -> list[Candidate]:
        """The matches in the order of the composites of the partition."""
        return sorted(self.candidates, key=lambda candidate: max(candidate.nodes))


@dataclass(frozen=True)
class Cut:
    """A function extracted from ``main``: the variables that it reads there, their dims, and the function.

    ``renaming`` maps variables of ``main`` to those of the function: first the ones read, then the ones bound.
    """

    reads: Sequence[relax.Var]
    dims: ArgumentDims
    function: Any
    renaming: Sequence[tuple[relax.Var, relax.Var]]

    @functools.cached_property
    def has_shapes(self) -> bool:
        """Whether all shapes in the function are known.

        A shape may rely on an equality of dims of ``main`` that the arguments of the function do not imply.
        """
        known = IdentitySet(shape_variables(self.function.params))
        types = [*(binding.var.ty for binding in bindings_of(self.function)), self.function.ret_ty]
        fields = [field for ty in types for field in (ty.fields if isinstance(ty, relax.TupleType) else [ty])]
        shapes = [extents_of(field) for field in fields]
        if any(shape is None for shape in shapes):
            return False
        named = (variable for shape in shapes for extent in shape or () for variable in nodes_of(extent, tirx.Var))
        return all(variable in known for variable in named)


@dataclass(frozen=True)
class Outlined:
    """A partition of one backend, and the groups of its call sites, in the same order."""

    partition: Partition
    groups: tuple[Group, ...]


def outline(
    graph: FlatMain,
    groups: Sequence[tuple[Group, Cut]],
    *,
    kind: str,
    taken: Container[str],
    constants: Mapping[Any, str],
    nodes: Mapping[str, str],
    names: Mapping[Any, Extent],
    dims: Mapping[str, Dim],
) -> list[Outlined]:
    """Return the partitions of ``groups``; equal groups (see Partition) share one.

    Names are the backend's ``kind`` and a number; names in ``taken`` are skipped.
    ``constants`` gives the names of main's constant parameters, ``nodes`` the source node of each variable,
    ``names`` main's shape variables as extents.
    """
    found: list[_Found] = []
    by_hash: dict[int, list[_Found]] = {}
    for group, part in groups:
        site_constants = {i: constants[variable] for i, variable in enumerate(part.reads) if variable in constants}
        composites = _composites(group)
        numbers = IdentityMap((before, number) for number, (before, _) in enumerate(part.renaming))
        facts = tuple((one.name, one.ops, facts_of(one.problem, numbers)) for one in composites)
        new = _Found(part, frozenset(site_constants), composites, facts)
        alike = by_hash.setdefault(int(structural_hash(part.function)), [])
        entry = next((known for known in alike if known.equals(new)), None)
        if entry is None:
            alike.append(new)
            found.append(new)
        entry = entry or new
        entry.groups.append(group)
        entry.sites.append(CallSite(_source_nodes(graph, group.nodes, nodes), site_constants))
        own = [(dim, to_extent(expression, names)) for expression, dim in part.dims.expressions]
        extents = IdentityMap([*names.items(), *own])
        entry.costs.append(estimate_function(part.function, extents, dims))
        variables = shape_variables(part.function.params)
        entry.bounds.append([extent_interval(extents[variable], dims) for variable in variables])
    free = (name for name in (f"{kind}_{number}" for number in itertools.count()) if name not in taken)
    named = zip(free, found, strict=False)
    return [Outlined(_partition(kind, name, entry), tuple(entry.groups)) for name, entry in named]


@dataclass
class _Found:
    """A partition under construction. Its problems are those of its first call site, in variables of ``main``."""

    part: Cut
    constant_arguments: frozenset[int]
    composites: tuple[Composite, ...]
    facts: Any
    groups: list[Group] = field(default_factory=list)
    sites: list[CallSite] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    bounds: list[list[tuple[int, int]]] = field(default_factory=list)

    def equals(self, other: _Found) -> bool:
        """Whether both can share a partition."""
        alike = (self.constant_arguments, self.facts) == (other.constant_arguments, other.facts)
        return alike and bool(structural_equal(self.part.function, other.part.function))


def _partition(kind: str, name: str, found: _Found) -> Partition:
    function = relax.utils.copy_with_new_vars(found.part.function)
    copies = IdentityMap(zip(_variables(found.part.function), _variables(function), strict=True))
    renaming = [(before, copies[inner]) for before, inner in found.part.renaming]
    try:
        composites = tuple(replace(one, problem=renamed(one.problem, renaming)) for one in found.composites)
    except KeyError as error:
        raise BackendError(f"{kind}: the problem of {name} has {error.args[0]!r}, which its match has not") from None
    return Partition(
        name=name,
        composites=composites,
        function=function,
        constant_arguments=found.constant_arguments,
        sites=tuple(found.sites),
        cost=max(found.costs, key=lambda cost: (cost.flops, cost.bytes_read)),
        bounds=tuple(
            (min(low for low, _ in sites), max(high for _, high in sites)) for sites in zip(*found.bounds, strict=True)
        ),
    )


def _variables(function: relax.Function) -> list[relax.Var]:
    """Return the parameters of a function, then the variables that it binds."""
    return [*function.params, *(binding.var for binding in bindings_of(function))]


def _composites(group: Group) -> tuple[Composite, ...]:
    return tuple(
        Composite(
            candidate.pattern.name,
            tuple(_operator(call, candidate) for call in candidate.match.calls),
            candidate.problem,
        )
        for candidate in group.ordered
    )


def results_of(graph: FlatMain, nodes: frozenset[int]) -> list[relax.Var]:
    """Return the variables of these bindings that are used outside of them, in order."""
    return [graph.bindings[node].var for node in sorted(nodes) if graph.used_outside(node, nodes)]


def call_partitions(graph: FlatMain, order: Sequence[frozenset[int]], calls: Mapping[frozenset[int], str]) -> Any:
    """Return ``main`` with each group in ``calls`` replaced by a call of the partition of that name.

    ``order`` holds groups and single bindings in topological order. A call is bound to the variable of its result, or
    to a tuple of its results that has the name of the last one.
    """
    bindings: list[Any] = []
    for unit in order:
        if unit not in calls:
            bindings += [graph.bindings[node] for node in sorted(unit)]
            continue
        arguments = external_reads(graph, unit)
        results = results_of(graph, unit)
        types = [result.ty for result in results]
        call = relax.op.call_dps_packed(calls[unit], arguments, types if len(types) > 1 else types[0])
        if len(results) == 1:
            bindings.append(relax.VarBinding(results[0], call))
            continue
        together = type(results[-1])(results[-1].name, relax.TupleType(types))
        bindings.append(relax.VarBinding(together, call))
        bindings += [
            relax.VarBinding(result, relax.TupleGetItem(together, index)) for index, result in enumerate(results)
        ]
    return with_bindings(graph.main, bindings)


def cut(graph: FlatMain, nodes: frozenset[int]) -> Cut:
    """Extract bindings as a function: parameters are the variables they read, the result a tensor or a tuple.

    A symbolic extent of an argument that the arguments' plain dims do not determine becomes a dim of the function.
    """
    reads = external_reads(graph, nodes)
    dims = ArgumentDims(reads)
    replaced: IdentityMap[relax.Var] = IdentityMap()
    parameters = []
    for variable in reads:
        parameter = relax.Var(variable.name, relax.TensorType(_shape(variable.ty, dims), variable.ty.dtype))
        replaced[variable] = parameter
        parameters.append(parameter)
    builder = relax.BlockBuilder()
    with builder.function("main", parameters):
        with builder.dataflow():
            for node in sorted(nodes):
                binding = graph.bindings[node]
                value = _with_dims(binding.value, dims)
                value = _renamed(value, replaced)
                emit = builder.emit_output if graph.used_outside(node, nodes) else builder.emit
                replaced[binding.var] = emit(value)
            outputs = [replaced[result] for result in results_of(graph, nodes)]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    function = builder.get()["main"].without_attr("global_symbol")
    before = [*reads, *(graph.bindings[node].var for node in sorted(nodes))]
    return Cut(reads, dims, function, [(variable, replaced[variable]) for variable in before])


def _shape(ty: Any, dims: ArgumentDims) -> relax.ShapeExpr:
    found = ((extent, dims.dim_for(extent)) for extent in ty.shape.values)
    return relax.ShapeExpr([extent if dim is None else dim for extent, dim in found])


def _with_dims(value: Any, dims: ArgumentDims) -> Any:
    """Substitute dims of the function in the shape arguments and type arguments of a call."""
    if not isinstance(value, relax.Call) or not dims.expressions:
        return value
    arguments = []
    for argument in value.args:
        if isinstance(argument, relax.ShapeExpr):
            found = ((extent, dims.dim_for(extent)) for extent in argument.values)
            argument = relax.ShapeExpr([extent if dim is None else dim for extent, dim in found])  # noqa: PLW2901
        arguments.append(argument)
    return relax.Call(value.op, arguments, value.attrs, [_type(ty, dims) for ty in value.ty_args])


def _renamed(value: Any, replaced: IdentityMap[relax.Var]) -> Any:
    """Return a value that reads other variables. Its types, which may name dims of ``main``, are inferred anew."""
    if isinstance(value, relax.Var):
        return replaced.get(value, value)
    return map_operands(value, lambda operand: _renamed(operand, replaced))


def _type(ty: Any, dims: ArgumentDims) -> Any:
    if isinstance(ty, relax.TupleType):
        return relax.TupleType([_type(field, dims) for field in ty.fields])
    return relax.TensorType(_shape(ty, dims), ty.dtype) if extents_of(ty) is not None else ty


def _operator(call: relax.Call, candidate: Candidate) -> str:
    """Return the operator's name; for a call of an extern function, the name of its pattern."""
    name = str(getattr(call.op, "name", call.op)).removeprefix("relax.")
    return candidate.pattern.name if name == "call_dps_packed" else name


def _source_nodes(graph: FlatMain, members: frozenset[int], nodes: Mapping[str, str]) -> tuple[str, ...]:
    named = [graph.bindings[node].var.name for node in sorted(members)]
    return tuple(dict.fromkeys(nodes[name] for name in named if name in nodes))
