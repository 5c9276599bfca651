"""Engines as primitive functions: what a partition's engine is, what its function gets.

An engine that nobody could build yet is *pending*: its function is there, and fails until ``packager finalize`` has
appended the engine to the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from packager.backends.tensorrt.library import Form, symbol_of
from packager.graph.dataflow import same
from packager.ir.primitives import FunctionGroup, Parameter, PrimitiveFunction


@dataclass(frozen=True)
class EngineTensor:
    """An input or output of an engine: its name there, and argument ``argument`` of the partition.

    ``shape`` are extents: integers, or ``tirx`` expressions over the partition's shape variables. An engine that has
    such ones is built with one optimization profile, number 0, which includes all that the dims allow.
    """

    name: str
    dtype: str
    shape: tuple[Any, ...]
    argument: int


@dataclass(frozen=True)
class EngineConstant:
    """Weights that an engine was built with refittable under this name: constant argument ``argument``, as it is."""

    name: str
    dtype: str
    elements: int
    argument: int


@dataclass(frozen=True)
class Engine:
    """An engine, or what it is to be.

    ``key`` is a SHA-256, in hexadecimal, of the partition and of all options: ``packager finalize`` finds the engine's
    place by it. ``data`` is None while it is pending; then ``version`` and ``arch`` are nothing yet, too, and
    ``workspace_bytes`` is what is set aside in the arena, more than which a session allocates itself. ``version`` is
    that of the library, ``(10, 13, 3)``; ``arch`` the architecture of the GPU, 90, or 0 if it runs on several.
    """

    key: str
    library: Form
    data: bytes | None = None
    version: tuple[int, ...] = ()
    arch: int = 0
    workspace_bytes: int = 0


@dataclass(frozen=True)
class EngineFunction:
    """The primitive function of a partition's engine. One with ``constants`` is refitted where a session swaps them."""

    symbol: str
    inputs: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]
    engine: Engine
    constants: tuple[EngineConstant, ...] = ()

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Its pointers: inputs, constants, outputs, workspace."""
        return (
            *(Parameter("argument", one.argument) for one in self.inputs),
            *(Parameter("argument", constant.argument) for constant in self.constants),
            *(Parameter("argument", output.argument, written=True) for output in self.outputs),
            Parameter("workspace", 0, written=True),
        )

    @property
    def scalars(self) -> tuple[Any, ...]:
        """The extents that a run has to say, each once."""
        found: list[Any] = []
        for tensor in (*self.inputs, *self.outputs):
            for extent in tensor.shape:
                if not isinstance(extent, int) and not any(same(extent, known) for known in found):
                    found.append(extent)
        return tuple(found)


def group_of(function: EngineFunction) -> FunctionGroup:
    """Return the finished group of a partition."""
    return FunctionGroup(
        (PrimitiveFunction(function.symbol, function.parameters, function.scalars),),
        workspaces=(max(function.engine.workspace_bytes, 1),),
        libraries=(symbol_of(function.engine.library),),
    )
