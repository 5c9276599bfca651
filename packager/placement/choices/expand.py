"""Rewrites ``main`` to compute regions in several ways: a copy of a region's bindings for each alternative.

Behind each binding that is used outside of its region, ``ALTERNATIVES`` gives the variable the value of the alternative
that the session runs. Copies read copies, and whatever is outside of the region.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax
from tvm_ffi import structural_map

from packager.graph.control_flow import ALTERNATIVES, control_flow
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import with_bindings, with_main
from packager.ir.model import PreparedModel
from packager.placement.choices.classes import Classes
from packager.placement.choices.regions import Nodes
from packager.placement.match import FlatMain, external_reads
from packager.placement.outline import Group
from packager.placement.problems import renamed


@dataclass(frozen=True)
class Expanded:
    """A model whose regions are computed in several ways, and the groups of its bindings, with their kinds."""

    model: PreparedModel
    groups: tuple[tuple[str, Group], ...]


@dataclass
class _Copy:
    """One alternative of a region: the copies of its variables, and the numbers of its bindings in the new ``main``."""

    variables: IdentityMap[relax.Var]
    numbers: dict[int, int]


def expand(model: PreparedModel, graph: FlatMain, classes: Classes, chosen: Sequence[Sequence[int]]) -> Expanded:
    """Return a model that computes the regions of each class by all covers of ``chosen``, which numbers them.

    A class of several covers is choice ``n`` if there are ``n`` such classes before it.
    """
    expansion = _Expansion(model, graph)
    several = [(found, covers) for found, covers in zip(classes.classes, chosen, strict=True) if len(covers) > 1]
    for number, (found, covers) in enumerate(several):
        for region in found.regions:
            expansion.copy(region, number, len(covers))
    expanded = expansion.finish() if several else model
    groups = [
        (kind, expansion.group(classes.groups[kind, _nodes(region, places)], region, alternative))
        for found, covers in zip(classes.classes, chosen, strict=True)
        for region in found.regions
        for alternative, cover in enumerate(covers)
        for kind, places in found.covers[cover].groups
    ]
    return Expanded(expanded, tuple(sorted(groups, key=lambda group: min(group[1].nodes))))


def _nodes(region: Nodes, places: Sequence[int]) -> frozenset[int]:
    return frozenset(region[place] for place in places)


class _Expansion:
    """Copies of regions of one ``main``."""

    def __init__(self, model: PreparedModel, graph: FlatMain) -> None:
        self.model, self.graph = model, graph
        self.copies: dict[int, tuple[int, Nodes, list[_Copy]]] = {}  # by binding: choice, region, its copies
        self.numbers = {number: number for number in range(len(graph.bindings))}
        self.nodes = dict(model.nodes)

    def copy(self, region: Nodes, choice: int, count: int) -> None:
        """Let ``count`` copies of a region be made, as alternatives of a choice."""
        copies = [_Copy(IdentityMap(), {}) for _ in range(count)]
        self.copies.update((node, (choice, region, copies)) for node in region)

    def finish(self) -> PreparedModel:
        """Return the model with the copies."""
        bindings: list[Any] = []
        for number, binding in enumerate(self.graph.bindings):
            if number in self.copies:
                self._copy_binding(number, binding, bindings)
                continue
            self.numbers[number] = len(bindings)
            bindings.append(binding)
        main = with_bindings(self.graph.main, bindings)
        return replace(self.model, module=with_main(self.model.module, main), nodes=self.nodes)

    def _copy_binding(self, number: int, binding: Any, bindings: list[Any]) -> None:
        choice, region, copies = self.copies[number]
        for alternative, copy in enumerate(copies):
            name = f"{binding.var.name}.{alternative}"
            variable = relax.DataflowVar(name, binding.var.ty)
            value = structural_map(binding.value, (relax.Var, lambda v, own=copy.variables: own.get(v, v)))
            copy.variables[binding.var] = variable
            copy.numbers[number] = len(bindings)
            bindings.append(relax.VarBinding(variable, value))
            if binding.var.name in self.nodes:
                self.nodes[name] = self.nodes[binding.var.name]
        if self.graph.used_outside(number, frozenset(region)):
            values = [copy.variables[binding.var] for copy in copies]
            marker = control_flow(ALTERNATIVES, [*values, relax.prim_value(choice)], [binding.var.ty])
            bindings.append(relax.VarBinding(binding.var, marker))

    def group(self, group: Group, region: Nodes, alternative: int) -> Group:
        """Return a group of a region's bindings as that of its copy."""
        if region[0] not in self.copies:
            return _renumbered(group, self.numbers)
        copy = self.copies[region[0]][2][alternative]
        variables = [*external_reads(self.graph, frozenset(region)), *(self.graph.bindings[n].var for n in region)]
        renaming = [(variable, copy.variables.get(variable, variable)) for variable in variables]
        moved = _renumbered(group, copy.numbers)
        candidates = tuple(replace(c, problem=renamed(c.problem, renaming)) for c in moved.candidates)
        return replace(moved, candidates=candidates)


def _renumbered(group: Group, numbers: Mapping[int, int]) -> Group:
    def new(nodes: frozenset[int]) -> frozenset[int]:
        return frozenset(numbers[node] for node in nodes)

    candidates = tuple(replace(candidate, nodes=new(candidate.nodes)) for candidate in group.candidates)
    return replace(group, nodes=new(group.nodes), candidates=candidates)
