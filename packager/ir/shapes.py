"""Extents, conditions on them, and micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

from packager.bundle import shape_expr

# An integer, or an integer expression over the symbolic dims ("n", "2*n+1").
Extent = int | str


@dataclass(frozen=True)
class Condition:
    """A run-time check on extents beyond the bounds of the dims: ``left operator right``, with operator ``==`` or
    ``<=``. ``node`` is the source graph's node that requires it."""

    left: Extent
    operator: str
    right: Extent
    node: str

    def names(self) -> set[str]:
        """Return the names of the dims and run-time extents in it."""
        return {name for side in (self.left, self.right) if isinstance(side, str) for name in shape_expr.names(side)}

    @property
    def text(self) -> str:
        """The condition in infix notation."""
        return f"{self.left} {self.operator} {self.right}"


@dataclass(frozen=True)
class MicroBatches:
    """Splits a run into ``count`` equal parts along the first axis of all outputs and of all inputs not in ``whole``.
    Each part has its own arena memory. If ``count`` is a dim, it is the extent of the inputs' first axis."""

    count: Extent = 1
    whole: tuple[str, ...] = ()


WHOLE = MicroBatches()
