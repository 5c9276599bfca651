"""The content of the graph section: the calls of each run with their tensors, and where these are in memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from packager.bundle import strict_json
from packager.bundle.fields import Count, Name

GRAPH_VERSION: Literal[1] = 1
COPY = "copy"
"""The symbol of a copy by the bundle itself, as in profiles."""
Space = Literal["arena", "workspace", "input", "output", "state", "constant"]


@dataclass(frozen=True)
class GraphTensor:
    """A tensor of a run, or scratch memory, of ``bytes`` with the dims at their maxima.

    ``place`` is the byte offset in the arena, where a ``workspace`` is too, or in the memory for states; or the number
    of the input, of the output, or of the manifest's constant.
    """

    space: Space
    place: Count
    bytes: Count
    dtype: Name
    shape: tuple[Count | str, ...]


@dataclass(frozen=True)
class GraphCall:
    """A call of primitive function ``symbol`` for nodes of the source graph, or a copy.

    ``reads`` and ``writes`` are numbers of tensors. It is done only where the choices and run-time extents that
    ``branch`` names have these values.
    """

    symbol: Name
    nodes: tuple[str, ...]
    reads: tuple[Count, ...]
    writes: tuple[Count, ...]
    branch: dict[str, Count]


@dataclass(frozen=True)
class RunGraph:
    """The calls of a run of entry ``name``, in order; with buckets, of the variant with these ``sizes``."""

    name: Name
    sizes: dict[str, Count]
    tensors: tuple[GraphTensor, ...]
    calls: tuple[GraphCall, ...]


@dataclass(frozen=True)
class CallGraph:
    """The content of the graph section."""

    schema_version: Literal[1]
    runs: tuple[RunGraph, ...]

    def to_json(self) -> bytes:
        """Return the canonical JSON text."""
        return strict_json.canonical(asdict(self))
