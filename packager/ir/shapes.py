"""Extents, conditions on them, and micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

# An extent: a number, or an integer expression over the symbolic dims ("n", "2*n+1").
Extent = int | str


@dataclass(frozen=True)
class Condition:
    """What a model demands of the extents of a run beyond the bounds of its dims: ``left operator right``, where the
    operator is ``==`` or ``<=``. ``node`` is the source graph's node that demands it."""

    left: Extent
    operator: str
    right: Extent
    node: str

    @property
    def text(self) -> str:
        """The condition as people write it."""
        return f"{self.left} {self.operator} {self.right}"


@dataclass(frozen=True)
class MicroBatches:
    """A run does everything ``count`` times, each time with an equal part of the first axis of all outputs and of all
    inputs but those of the names in ``whole``, and in memory of its own in the arena. ``count`` may be a dim, which the
    first axis of the inputs is then."""

    count: Extent = 1
    whole: tuple[str, ...] = ()


WHOLE = MicroBatches()
