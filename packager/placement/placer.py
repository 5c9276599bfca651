"""Assigns operators to one backend at a time, and rewrites ``main`` to call the partitions that result.

``main`` is rewritten last, so undoing a partition only drops its group.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax, tirx

from packager.backends.base import PartitionBackend, Target
from packager.backends.registry import blamed
from packager.bundle.selection import PlacementRecord
from packager.errors import BackendError
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import with_main
from packager.graph.run_time_extents import scalars_of
from packager.ir.model import PartitionedModel, PlacedPartition, PreparedModel
from packager.ir.primitives import BackendOutput, CallSite, FunctionGroup, Partition
from packager.ir.shapes import Extent
from packager.placement.check_output import result_types
from packager.placement.emptiness import Emptiness
from packager.placement.grouping import Grouping
from packager.placement.late_casts import late_casts
from packager.placement.match import Candidate, FlatMain, find_candidates, is_closed
from packager.placement.outline import Cut, Group, Outlined, call_partitions, cut, outline, results_of
from packager.placement.preparation import backend_of

# Of a value whose function they may be merged with: each may be a result more.
MOST_READERS = 8
# What a backend compiles of partitions, and what it gives back; groups of functions may be empty in a dry run.
Answer = Callable[[Target, Sequence[Partition]], BackendOutput]


@dataclass(frozen=True)
class Verdict:
    """The outcome of a partition: ``reason`` is why it was undone, None if its backend compiled it.

    ``given_back``: the backend undid it, whose pattern had matched; because of the composites ``left_out`` alone, if
    there are any.
    """

    backend: str
    partition: Partition
    reason: str | None
    given_back: bool = False
    left_out: tuple[int, ...] = ()


class Placer:
    """Assigns the operators of one model; ``grouping`` has the groups of bindings that are assigned."""

    def __init__(self, model: PreparedModel) -> None:
        self.candidates: dict[str, list[Candidate]] = {}  # of each backend that was asked
        self._cuts: dict[frozenset[int], Cut] = {}  # shared by fresh ones, whose groups are mostly equal
        main, constants = model.module["main"], model.constants
        num_inputs = len(model.signature.inputs)
        self.model = model
        parameters = main.params[num_inputs:]
        self.constant_names = IdentityMap(zip(parameters, constants, strict=True))
        extents = (extent for parameter in main.params[:num_inputs] for extent in parameter.ty.shape.values)
        self.names: IdentityMap[Extent] = IdentityMap((e, str(e.name)) for e in extents if isinstance(e, tirx.Var))
        self.dims = {dim.name: dim for dim in model.signature.dims}
        self.graph = FlatMain(
            main,
            num_inputs,
            lambda variable: constants[self.constant_names[variable]].array,
            scalars_of(main, model.signature),
            Emptiness(self.names, self.dims),
        )
        calls = (binding.value for binding in self.graph.bindings if isinstance(binding.value, relax.Call))
        symbols = {call.args[0].global_symbol for call in calls if isinstance(call.args[0], relax.ExternFunc)}
        self.taken = frozenset(map(str, symbols)) | {variable.name_hint for variable in model.module.functions}
        self._begin()

    def _begin(self) -> None:
        self.grouping = Grouping(self.graph.predecessors())
        self.calls: dict[frozenset[int], str] = {}
        self.placed: dict[str, PlacedPartition] = {}
        self.sites: dict[str, CallSite] = {}
        self.taken_groups: list[tuple[str, Group]] = []  # with the kinds of their backends

    def fresh(self) -> Placer:
        """Return a placer of the same model that has assigned nothing."""
        other = copy.copy(self)
        other._begin()
        return other

    def place(self, target: Target, answer: Answer) -> tuple[BackendOutput, list[Verdict]]:
        """Partition the unassigned operators for one backend; return its output and a verdict per partition."""
        backend = backend_of(target)
        options: Any = target.options
        groups = self._group(backend, target, options.max_partition_depth)
        verdicts: list[Verdict] = []
        while True:
            offered = []
            for outlined in self._outline(backend.kind, groups):
                flops = outlined.partition.cost.flops
                if flops < options.min_partition_flops:
                    reason = f"{flops} FLOPs a call, less than min_partition_flops={options.min_partition_flops}"
                    verdicts.append(self._undo(backend.kind, outlined, reason))
                else:
                    offered.append(outlined)
            output = answer(target, [outlined.partition for outlined in offered])
            if not output.left_out:
                return output, verdicts + self._take(target.kind, offered, output)
            groups = self._without(offered, output, options.max_partition_depth)
            verdicts += [
                _given_back(target.kind, outlined.partition, output)
                for outlined in offered
                if outlined.partition.name in output.left_out
            ]

    def _without(self, offered: Sequence[Outlined], output: BackendOutput, depth: int) -> list[Group]:
        """Return the groups that were offered, in place of some those around what ``output`` leaves out."""
        groups = []
        for outlined in offered:
            left_out = output.left_out.get(outlined.partition.name, ())
            for group in outlined.groups:
                if not left_out:
                    groups.append(group)
                    continue
                self.grouping.dissolve(group.nodes)
                kept = [one for place, one in enumerate(group.ordered) if place not in left_out]
                for candidate in kept:
                    self.grouping.add(candidate.nodes)
                groups += self.merge([Group.of(candidate) for candidate in kept], depth)
        return groups

    def assign(self, target: Target, groups: Sequence[Group], answer: Answer) -> tuple[BackendOutput, list[Verdict]]:
        """Compile these groups, which are unassigned, with one backend; return its output and a verdict per partition.

        Raises BackendError if calls of them would depend on each other in a circle.
        """
        for group in groups:
            if not self.grouping.is_free(group.nodes) or not self.grouping.is_convex(group.nodes):
                names = sorted({candidate.pattern.name for candidate in group.candidates})
                raise BackendError(f"{target.kind}: {', '.join(names)} depends on its own result")
            self.grouping.add(group.nodes)
        offered = self._outline(target.kind, list(groups))
        output = answer(target, [outlined.partition for outlined in offered])
        return output, self._take(target.kind, offered, output)

    def _take(self, kind: str, offered: Sequence[Outlined], output: BackendOutput) -> list[Verdict]:
        verdicts = []
        for outlined in offered:
            name = outlined.partition.name
            if name in output.groups:
                self._accept(kind, outlined, output.groups[name])
                verdicts.append(Verdict(kind, outlined.partition, None))
            else:
                for group in outlined.groups:
                    self.grouping.dissolve(group.nodes)
                verdicts.append(_given_back(kind, outlined.partition, output))
        return verdicts

    def _group(self, backend: PartitionBackend, target: Target, depth: int) -> list[Group]:
        """Return disjoint groups of bindings that match a backend's patterns, merged if the backend wants it."""
        taken: list[Group] = []
        for candidate in self.matches(target):
            nodes = candidate.nodes
            fits = not depth or self.grouping.depth(nodes) <= depth
            if fits and self.grouping.is_free(nodes) and self.grouping.is_convex(nodes):
                self.grouping.add(nodes)
                taken.append(Group.of(candidate))
        if backend.merges:
            taken = self.merge(taken, depth)
        return taken

    def matches(self, target: Target) -> list[Candidate]:
        """Return all matches of a backend's patterns, which may overlap; largest first."""
        if target.kind not in self.candidates:
            with blamed(target.kind):
                self.candidates[target.kind] = find_candidates(self.graph, backend_of(target).patterns(target))
        return self.candidates[target.kind]

    def outline_alone(self, target: Target) -> list[Outlined]:
        """Return a partition for each match of a backend, as if there were no other; equal ones together."""
        groups = [Group.of(candidate) for candidate in self.matches(target)]
        cuts = [(group, self.cut(group.nodes)) for group in groups if self.grouping.is_convex(group.nodes)]
        return self._outlined(target.kind, [entry for entry in cuts if entry[1].has_shapes])

    def merge(self, groups: list[Group], depth: int) -> list[Group]:
        """Merge groups with their producers, in topological order.

        Widening casts of the earlier operands of an operator are merged last: fused into the consumer, so that the
        intermediate tensor keeps its narrow element type.
        """
        group_of = {node: group for group in groups for node in group.nodes}
        late = self._late_casts
        for reader in sorted(sorted(group_of), key=lambda node: node in late):
            for producer in sorted(self.grouping.predecessors[reader]):
                first, second = group_of.get(producer), group_of.get(reader)
                if first is None or second is None or first is second:
                    continue
                nodes = first.nodes | second.nodes
                if (first.anchored and second.anchored) or (depth and self.grouping.depth(nodes) > depth):
                    continue
                if len(self.grouping.successors[producer]) > MOST_READERS:
                    continue
                if self.grouping.is_convex(nodes) and is_closed(self.graph, nodes):
                    self.grouping.add(nodes)
                    merged = Group.of(*first.candidates, *second.candidates)
                    group_of.update(dict.fromkeys(nodes, merged))
        return list({id(group): group for group in group_of.values()}.values())

    @functools.cached_property
    def _late_casts(self) -> set[int]:
        return late_casts([binding.value for binding in self.graph.bindings], self.grouping.predecessors)

    def _outline(self, kind: str, groups: list[Group]) -> list[Outlined]:
        return self._outlined(kind, self._cut(groups))

    def _outlined(self, kind: str, groups: Iterable[tuple[Group, Cut]]) -> list[Outlined]:
        return outline(
            self.graph,
            sorted(groups, key=lambda entry: min(entry[0].nodes)),
            kind=kind,
            taken=self.taken,
            constants=self.constant_names,
            nodes=self.model.nodes,
            names=self.names,
            dims=self.dims,
        )

    def _cut(self, groups: list[Group]) -> Iterator[tuple[Group, Cut]]:
        """Yield groups with their functions; a group with unknown shapes is split in two, again and again."""
        for group in groups:
            is_whole = is_closed(self.graph, group.nodes) and self.grouping.is_convex(group.nodes)
            whole = self.cut(group.nodes) if is_whole else None
            if whole is not None and whole.has_shapes:
                self.grouping.add(group.nodes)
                yield group, whole
                continue
            self.grouping.dissolve(group.nodes)
            if len(group.candidates) > 1:
                half = len(group.candidates) // 2
                yield from self._cut([Group.of(*group.ordered[:half]), Group.of(*group.ordered[half:])])

    def cut(self, nodes: frozenset[int]) -> Cut:
        """Return bindings as a function."""
        if nodes not in self._cuts:
            self._cuts[nodes] = cut(self.graph, nodes)
        return self._cuts[nodes]

    def _undo(self, kind: str, outlined: Outlined, reason: str) -> Verdict:
        for group in outlined.groups:
            self.grouping.dissolve(group.nodes)
        return Verdict(kind, outlined.partition, reason)

    def _accept(self, kind: str, outlined: Outlined, group: FunctionGroup) -> None:
        part = outlined.partition
        for members, site in zip(outlined.groups, part.sites, strict=True):
            self.calls[members.nodes] = part.name
            self.taken_groups.append((kind, members))
            self.sites[results_of(self.graph, members.nodes)[-1].name] = site
        self.placed[part.name] = PlacedPartition(part, kind, _complete(kind, part, group))

    def model_of(self, outputs: Sequence[BackendOutput], placement: PlacementRecord | None = None) -> PartitionedModel:
        """Return the model with its partitions called; ``outputs`` are those of the backends."""
        module = self.model.module
        if self.calls:
            main = call_partitions(self.graph, self.grouping.order(), self.calls)
            module = relax.transform.Normalize()(with_main(module, main))
        return PartitionedModel(
            signature=self.model.signature,
            module=module,
            weights=self.model.weights,
            constants=self.model.constants,
            nodes=self.model.nodes,
            partitions=self.placed,
            sites=self.sites,
            backends=tuple(outputs),
            placement=placement,
        )


def _given_back(kind: str, partition: Partition, output: BackendOutput) -> Verdict:
    name = partition.name
    return Verdict(kind, partition, output.given_back[name], True, tuple(output.left_out.get(name, ())))


def _complete(kind: str, part: Partition, group: FunctionGroup) -> FunctionGroup:
    """Add what the partition determines (shapes, composite, cost), and prefix the backend's constants with its kind."""
    types = [*(parameter.ty for parameter in part.function.params), *result_types(part)]
    shapes = [tuple(ty.shape.values) for ty in types]
    functions = tuple(
        replace(f, parameters=tuple(replace(p, name=f"{kind}.{p.name}") if p.name else p for p in f.parameters))
        for f in group.functions
    )
    composite = "+".join(dict.fromkeys(composite.name for composite in part.composites))
    return replace(group, functions=functions, parameters=tuple(shapes), composite=composite, cost=part.cost)
