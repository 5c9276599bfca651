"""The arena over the calls of a run: which bytes a tensor occupies, from its first to its last call."""

from __future__ import annotations

from dataclasses import dataclass

from packager.bundle.graph.call_graph import RunGraph
from packager.bundle.manifest import Manifest
from packager.deploy.report.flow import MOST_CALLS, taken_calls


@dataclass(frozen=True)
class Block:
    """A tensor in the arena, live from call ``first`` to call ``last`` inclusive; ``backend`` writes it."""

    tensor: int
    offset: int
    bytes: int
    first: int
    last: int
    backend: str


@dataclass(frozen=True)
class Arena:
    """The memory of a run: ``peak`` are the most bytes that are live at once, ``end`` is where the last tensor ends.

    ``live`` has the bytes that are live at each call.
    """

    end: int
    peak: int
    live: tuple[int, ...]
    blocks: tuple[Block, ...]


def make_arena(manifest: Manifest, run: RunGraph) -> Arena:
    """Return the arena of a run with the bundle's choices."""
    kinds = {primitive.symbol: kind for kind, primitive in manifest.primitives()}
    spans: dict[int, tuple[int, int]] = {}
    writers: dict[int, str] = {}
    calls = taken_calls(manifest, run)[:MOST_CALLS]
    for number, call in enumerate(calls):
        for tensor in (*call.reads, *call.writes):
            if run.tensors[tensor].space in ("arena", "workspace"):
                spans[tensor] = (spans.get(tensor, (number, number))[0], number)
        for tensor in call.writes:
            writers.setdefault(tensor, kinds.get(call.symbol, ""))
    blocks = tuple(
        Block(
            tensor,
            run.tensors[tensor].place,
            run.tensors[tensor].bytes,
            first,
            last,
            writers.get(tensor, ""),
        )
        for tensor, (first, last) in spans.items()
    )
    changes = [0] * (len(calls) + 1)
    for block in blocks:
        changes[block.first] += block.bytes
        changes[block.last + 1] -= block.bytes
    live, now = [], 0
    for change in changes[:-1]:
        now += change
        live.append(now)
    return Arena(max((b.offset + b.bytes for b in blocks), default=0), max(live, default=0), tuple(live), blocks)
