"""Turn groups of bindings into functions of their own: partitions for a backend, and calls of them in ``main``."""

from __future__ import annotations

import itertools
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tvm import relax
from tvm_ffi import structural_equal, structural_hash, structural_map

from packager.bundle.manifest import Dim
from packager.errors import BackendError
from packager.graph.cost import estimate_function
from packager.graph.dataflow import bindings_of, extents_of
from packager.graph.identity import IdentityMap
from packager.graph.symbolic import to_extent
from packager.ir.primitives import CallSite, Composite, Cost, Partition
from packager.ir.shapes import Extent
from packager.placement.match import ArgumentDims, Candidate, FlatMain, external_reads
from packager.placement.problems import facts_of, renamed


@dataclass(frozen=True)
class Group:
    """Bindings that become one call: their numbers, the matches that they were taken for, whether one is an anchor."""

    nodes: frozenset[int]
    candidates: tuple[Candidate, ...]
    anchored: bool


@dataclass(frozen=True)
class Cut:
    """Bindings as a function of their own: what they read in ``main``, the dims of that, and the function.

    ``renaming`` says which variable of the function each of main's is: those that are read, then those that are bound.
    """

    reads: Sequence[relax.Var]
    dims: ArgumentDims
    function: Any
    renaming: Sequence[tuple[relax.Var, relax.Var]]

    @property
    def has_shapes(self) -> bool:
        """Whether all shapes in the function are known.

        An equation between two of main's dims need not follow from those of its arguments alone.
        """
        types = [binding.var.ty for binding in bindings_of(self.function)]
        fields = [field for ty in types for field in (ty.fields if isinstance(ty, relax.TupleType) else [ty])]
        return all(extents_of(field) is not None for field in fields)


@dataclass(frozen=True)
class Outlined:
    """A partition of one backend with the groups that are calls of it, in the order of its sites."""

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
    """Return the partitions of ``groups``: groups that are equal, as Partition says, are one.

    They are named after the backend's ``kind`` and numbered, without the names in ``taken``.
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
        entry.costs.append(estimate_function(part.function, IdentityMap([*names.items(), *own]), dims))
    free = (name for name in (f"{kind}_{number}" for number in itertools.count()) if name not in taken)
    named = zip(free, found, strict=False)
    return [Outlined(_partition(kind, name, entry), tuple(entry.groups)) for name, entry in named]


@dataclass
class _Found:
    """A partition while its call sites are found. Its problems are those of the first of them, in terms of ``main``."""

    part: Cut
    constant_arguments: frozenset[int]
    composites: tuple[Composite, ...]
    facts: Any
    groups: list[Group] = field(default_factory=list)
    sites: list[CallSite] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)

    def equals(self, other: _Found) -> bool:
        """Whether both can be one partition."""
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
        for candidate in sorted(group.candidates, key=lambda c: max(c.nodes))
    )


def results_of(graph: FlatMain, nodes: frozenset[int]) -> list[relax.Var]:
    """Return the variables that these bindings define for others, in order."""
    return [graph.bindings[node].var for node in sorted(nodes) if graph.used_outside(node, nodes)]


def call_partitions(graph: FlatMain, order: Sequence[frozenset[int]], calls: Mapping[frozenset[int], str]) -> Any:
    """Return ``main`` with each group in ``calls`` replaced by a call of the partition of that name.

    ``order`` are the groups and the single bindings in an order in which they can be computed. The call is bound to
    the variable of its last result, or to a tuple of all of them under that variable's name.
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
    main = graph.main
    dataflow = all(isinstance(block, relax.DataflowBlock) for block in main.body.blocks)
    block = relax.DataflowBlock(bindings) if dataflow else relax.BindingBlock(bindings)
    body = relax.SeqExpr([block], main.body.body)
    return relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)


def cut(graph: FlatMain, nodes: frozenset[int]) -> Cut:
    """Return a function of these bindings: its parameters are what they read, its result a tensor or a tuple of them.

    An extent of an argument that is an expression over other dims than the arguments have is a dim of the function.
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
                value = structural_map(value, (relax.Var, lambda v: replaced.get(v, v)))
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
    """Return a call with the dims of ``dims`` in the shapes and types that it states itself."""
    if not isinstance(value, relax.Call) or not dims.expressions:
        return value
    arguments = []
    for argument in value.args:
        if isinstance(argument, relax.ShapeExpr):
            found = ((extent, dims.dim_for(extent)) for extent in argument.values)
            argument = relax.ShapeExpr([extent if dim is None else dim for extent, dim in found])  # noqa: PLW2901
        arguments.append(argument)
    return relax.Call(value.op, arguments, value.attrs, [_type(ty, dims) for ty in value.ty_args])


def _type(ty: Any, dims: ArgumentDims) -> Any:
    if isinstance(ty, relax.TupleType):
        return relax.TupleType([_type(field, dims) for field in ty.fields])
    return relax.TensorType(_shape(ty, dims), ty.dtype) if extents_of(ty) is not None else ty


def _operator(call: relax.Call, candidate: Candidate) -> str:
    """Return the operator's name; a call of a function that is not in the model is what its pattern says."""
    name = str(getattr(call.op, "name", call.op)).removeprefix("relax.")
    return candidate.pattern.name if name == "call_dps_packed" else name


def _source_nodes(graph: FlatMain, members: frozenset[int], nodes: Mapping[str, str]) -> tuple[str, ...]:
    named = [graph.bindings[node].var.name for node in sorted(members)]
    return tuple(dict.fromkeys(nodes[name] for name in named if name in nodes))
