"""Stages that write their results where a later stage would move them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from packager.backends.ccompiler.core.operations import Graph, Operation
from packager.backends.ccompiler.core.placed import find_placed

if TYPE_CHECKING:
    from packager.backends.ccompiler.core.stages import Stage


def write_in_place(stages: Sequence[Stage], graph: Graph, can_place: Callable[[Operation], bool]) -> list[Stage]:
    """Return stages without those that only move a result, which nothing else reads, of a stage that can place it.

    ``can_place`` says so of its anchor.
    """
    kept = {tensor.index for tensor in graph.results}
    readers: dict[int, int] = {}
    for operation in graph.operations:
        for use in operation.uses:
            readers[use.tensor.index] = readers.get(use.tensor.index, 0) + 1
    found = list(stages)
    for mover in stages:
        if mover.anchor is None or mover.after or len(mover.anchor.uses) != 1:
            continue
        source = mover.anchor.uses[0].tensor
        made = next((stage for stage in found if any(t.index == source.index for t in stage.stored)), None)
        if made is None or made.anchor is None or made.placed is not None or not can_place(made.anchor):
            continue
        placed = find_placed(mover.anchor, made.rows)
        if placed is not None and readers[source.index] == 1 and source.index not in kept:
            found[found.index(made)] = replace(made, placed=placed)
            found.remove(mover)
    return found
