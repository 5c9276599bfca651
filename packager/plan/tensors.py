"""What the planner works on: tensors whose places are found one by one, and the calls that read and write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packager.ir.call_plan import Operand
from packager.ir.model import CallSource, NamedArray
from packager.ir.primitives import FunctionGroup, PrimitiveFunction
from packager.ir.shapes import Extent


class PlannedTensor:
    """A tensor while it is planned: where it lies, or which buffer it is an alias of."""

    def __init__(self, operand: Operand | None, shape: tuple[Any, ...], dtype: str) -> None:
        self.operand = operand  # None until the arena is placed
        self.shape = shape
        self.dtype = dtype
        self.constant: tuple[str, NamedArray] | None = None  # what it holds, if it is one of main's constants
        self.first: int | None = None  # steps between which it is alive
        self.last: int | None = None

    def touch(self, step: int) -> None:
        """Let it be alive in a step; steps come in order."""
        self.first = step if self.first is None else self.first
        self.last = step


class Alias(PlannedTensor):
    """A view of another tensor's memory with a shape of its own."""

    def __init__(self, source: PlannedTensor, view: PlannedTensor) -> None:
        super().__init__(None, view.shape, view.dtype)
        self.source = source


def root(tensor: PlannedTensor) -> PlannedTensor:
    """Return the tensor whose memory this is."""
    while isinstance(tensor, Alias):
        tensor = tensor.source
    return tensor


def operand_of(tensor: PlannedTensor) -> Operand:
    """Return where a tensor lies, when that is decided."""
    operand = root(tensor).operand
    assert operand is not None
    return operand


@dataclass
class PlannedCall:
    """A call of a primitive function of a group; ``names`` are the group's shape variables as extents over the dims.

    ``dropped``: it has nothing to do, since it would copy memory to itself. ``written`` is the number of bytes that it
    writes where that is less than its results have.
    """

    function: PrimitiveFunction
    group: FunctionGroup
    operands: list[PlannedTensor]
    names: Mapping[Any, Extent]
    source: CallSource
    dropped: bool = False
    written: int | None = None
