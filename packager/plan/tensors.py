"""The planner's mutable tensors, allocated step by step, and the calls that read and write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packager.ir.call_plan import Operand
from packager.ir.model import CallSource, NamedArray
from packager.ir.primitives import FunctionGroup, PrimitiveFunction
from packager.ir.shapes import Extent


class PlannedTensor:
    """A tensor during planning: its memory, or the buffer that it aliases."""

    def __init__(self, operand: Operand | None, shape: tuple[Any, ...], dtype: str) -> None:
        self.operand = operand  # None until the arena is allocated
        self.shape = shape
        self.dtype = dtype
        self.constant: tuple[str, NamedArray] | None = None  # its content, if it is a constant of main
        self.first: int | None = None  # its lifetime, in steps
        self.last: int | None = None

    def touch(self, step: int) -> None:
        """Extend its lifetime to a step; steps must not decrease."""
        self.first = step if self.first is None else self.first
        self.last = step


class Alias(PlannedTensor):
    """A view of another tensor's memory with another shape."""

    def __init__(self, source: PlannedTensor, view: PlannedTensor) -> None:
        super().__init__(None, view.shape, view.dtype)
        self.source = source


def root(tensor: PlannedTensor) -> PlannedTensor:
    """Return the tensor that owns the memory."""
    while isinstance(tensor, Alias):
        tensor = tensor.source
    return tensor


def operand_of(tensor: PlannedTensor) -> Operand:
    """Return the memory of an allocated tensor."""
    operand = root(tensor).operand
    assert operand is not None
    return operand


@dataclass
class PlannedCall:
    """A call of a primitive function; ``names`` maps its group's shape variables to extents over the dims.

    ``dropped``: a no-op, since it would copy memory to itself. ``written`` is the number of bytes written, if less than
    the size of its results.
    """

    function: PrimitiveFunction
    group: FunctionGroup
    operands: list[PlannedTensor]
    names: Mapping[Any, Extent]
    source: CallSource
    dropped: bool = False
    written: int | None = None
