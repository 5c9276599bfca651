"""Stages that write their results where a later stage would move them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from packager.backends.ccompiler.core.moves import Permute
from packager.backends.ccompiler.core.operations import ANCHORS, Graph, Operation, Tensor
from packager.backends.ccompiler.core.placed import Placed, Turned, find_placed
from packager.backends.ccompiler.core.shapes import equal

if TYPE_CHECKING:
    from packager.backends.ccompiler.core.stages import Stage

CanPlace = Callable[[Operation], bool]  # whether what an anchor makes can be written by parts of its rows


def find_placeable(operations: Sequence[Operation], results: Sequence[Tensor], can_place: CanPlace) -> frozenset[int]:
    """Return the tensors that permutations of whole parts of rows make of what only they read of such anchors.

    The last axis moves only in results: what would move them further moves rows as they are.
    """
    made = {operation.result.index: operation for operation in operations}
    readers = _readers(operations)
    kept = {tensor.index for tensor in results}
    found = []
    for operation in operations:
        move = operation.attributes
        if not isinstance(move, Permute) or equal(operation.uses[0].shape[-1], 1):
            continue
        if move.axes[-1] != len(move.axes) - 1 and not (operation.result.index in kept and _is_transpose(move)):
            continue
        source = operation.uses[0].tensor.index
        if readers[source] > 1 or source in kept:
            continue
        anchor = made.get(source)
        while anchor is not None and anchor.name not in ANCHORS:
            full = [use.tensor.index for use in anchor.uses if use.shape == anchor.result.shape]
            anchor = next((made[index] for index in full if index in made), None)
        if anchor is not None and can_place(anchor):
            found.append(operation.result.index)
    return frozenset(found)


def _pays(convolution: Operation, placed: Placed | Turned) -> bool:
    """Whether blocks are written in place faster than by a copy after: those of a group have few columns."""
    return isinstance(placed, Placed) or int(convolution.attributes.groups) == 1


def _is_transpose(move: Permute) -> bool:
    """Whether the last axis moves, and the others keep their order."""
    rank = len(move.axes)
    return [axis for axis in move.axes if axis != rank - 1] == list(range(rank - 1))


def _readers(operations: Sequence[Operation]) -> dict[int, int]:
    """Return how often each tensor is read."""
    readers: dict[int, int] = {}
    for operation in operations:
        for use in operation.uses:
            readers[use.tensor.index] = readers.get(use.tensor.index, 0) + 1
    return readers


def write_in_place(stages: Sequence[Stage], graph: Graph, can_place: CanPlace) -> list[Stage]:
    """Return stages without those that only move a result, which nothing else reads, of a stage that can place it."""
    kept = {tensor.index for tensor in graph.results}
    readers = _readers(graph.operations)
    found = list(stages)
    for mover in stages:
        if mover.anchor is None or mover.after or len(mover.anchor.uses) != 1:
            continue
        source = mover.anchor.uses[0].tensor
        made = next((stage for stage in found if any(t.index == source.index for t in stage.stored)), None)
        if made is None or made.anchor is None or made.placed is not None or not can_place(made.anchor):
            continue
        placed = find_placed(mover.anchor, made.rows)
        if (
            placed is not None
            and _pays(made.anchor, placed)
            and readers[source.index] == 1
            and source.index not in kept
        ):
            found[found.index(made)] = replace(made, placed=placed)
            found.remove(mover)
    return found
