"""Layouts: what each order of Targets takes of a model, as ``placement.place`` would, without compiling."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tvm_ffi import structural_equal

from packager.backends.base import Target
from packager.custom_ops.library import CALL_PREFIX
from packager.graph.dataflow import called_function
from packager.ir.primitives import BackendOutput, Partition
from packager.placement.match import FlatMain
from packager.placement.outline import Group
from packager.placement.place import foresee
from packager.placement.placer import Answer, Placer, Verdict
from packager.placement.preparation import needs_library

# Of more Targets not every order is tried: each alone, and each before all others.
MAX_PERMUTED = 3


@dataclass(frozen=True)
class Layout:
    """The groups of bindings that the backends take, with their kinds, in an order of Targets of these ``kinds``."""

    kinds: tuple[str, ...]
    groups: tuple[tuple[str, Group], ...]

    @property
    def name(self) -> str:
        """The order as text."""
        return " > ".join(self.kinds) if len(self.kinds) > 1 else f"{self.kinds[0]} alone"

    def needs(self, kinds: Collection[str]) -> bool:
        """Return whether it uses one of these backends."""
        return any(kind in kinds for kind, _ in self.groups)


def find_layouts(
    placer: Placer, orders: Iterable[Sequence[Target]], generator: str, answer: Answer = foresee
) -> list[Layout]:
    """Return the layouts of orders of Targets, the first order first; equal ones once, as that of fewest Targets.

    ``generator`` is the kind that compiles the rest. Orders that leave it operators of custom libraries are left out,
    but for the first.
    """
    required = _required(placer.graph)
    found: dict[tuple[tuple[str, frozenset[int]], ...], Layout] = {}
    for order in {tuple(target.kind for target in order): order for order in orders}.values():
        fresh = placer.fresh()
        for target in order:
            fresh.place(target, answer)
        groups = tuple(sorted(fresh.taken_groups, key=lambda taken: min(taken[1].nodes)))
        covered = frozenset[int]().union(*(group.nodes for _, group in groups))
        if found and not required <= covered:
            continue
        layout = Layout(tuple(target.kind for target in order) or (generator,), groups)
        key = tuple((kind, group.nodes) for kind, group in groups)
        found[key] = min(found.get(key, layout), layout, key=lambda layout: len(layout.kinds))
    return list(found.values())


def refusing(refused: Sequence[Verdict]) -> Answer:
    """Return what backends foresee, who also give back these partitions, or some of their composites."""

    def answer(target: Target, partitions: Sequence[Partition]) -> BackendOutput:
        output = foresee(target, partitions)
        own = [verdict for verdict in refused if verdict.backend == target.kind]
        back = {
            part.name: verdict
            for part in partitions
            for verdict in own
            if structural_equal(part.function, verdict.partition.function)
        }
        return BackendOutput(
            output.kind,
            groups={name: group for name, group in output.groups.items() if name not in back},
            given_back={**output.given_back, **dict.fromkeys(back, "its backend gave it back")},
            left_out={name: verdict.left_out for name, verdict in back.items() if verdict.left_out},
        )

    return answer


def without_libraries(targets: Sequence[Target]) -> list[Target]:
    """Return the Targets whose backends need no library of the target machine, in order."""
    return [target for target in targets if not needs_library(target)]


def every_order(targets: Sequence[Target]) -> Iterator[Sequence[Target]]:
    """Yield the given order, that without libraries, each Target alone, orders of all of them, and none of them."""
    yield targets
    yield without_libraries(targets)
    yield from ((target,) for target in targets)
    if len(targets) <= MAX_PERMUTED:
        yield from itertools.permutations(targets)
    else:
        yield from ((first, *(other for other in targets if other is not first)) for first in targets)
    yield ()


def _required(graph: FlatMain) -> frozenset[int]:
    """Return the bindings that TVM cannot compile: calls of operators of custom libraries."""
    values = ((number, binding.value) for number, binding in enumerate(graph.bindings))
    return frozenset(number for number, value in values if (called_function(value) or "").startswith(CALL_PREFIX))
