"""Splits a run on a GPU into segments, each a CUDA graph, between what the host does: reads, and loops that it repeats.

A segment computes the same, in the same memory, in all runs of the same dims: what the host reads does not matter, but
for extents that are 0 or 1, such as the condition of ``If``, of which there is a graph for each value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from packager.bundle.manifest import RunPart
from packager.graph import symbolic
from packager.ir.call_plan import (
    Alternate,
    Call,
    Carried,
    Copy,
    EntryPlan,
    Index,
    Iteration,
    LoopBegin,
    LoopEnd,
    Memory,
    ReadExtent,
    Row,
    Step,
    Switch,
)
from packager.ir.shapes import Extent


@dataclass(frozen=True)
class Segment:
    """Steps of a run, each with the number of calls until then, that become one graph.

    ``keys`` are the run-time extents with a graph for each value, ``launches`` how many nodes the graph has.
    """

    number: int
    steps: tuple[tuple[int, Step], ...]
    keys: tuple[str, ...]
    launches: Extent


# Part of a run: a segment, or a step with the number of calls until then.
Part = Segment | tuple[int, Step]

# A graph of fewer nodes is no faster than launches.
MIN_LAUNCHES = 2


@dataclass(frozen=True)
class _Loop:
    """A loop, and how many calls come before it and until its end."""

    begin: LoopBegin
    body: tuple[_Node, ...]
    end: LoopEnd
    before: int
    until: int


_Node = _Loop | tuple[int, Step]


@dataclass(frozen=True)
class _Needs:
    """What a node needs to be part of a graph: run-time extents, and iterations of loops around it; and its nodes."""

    names: frozenset[str]
    loops: frozenset[int]
    launches: Extent


def waits(step: Step) -> bool:
    """Tell whether the host has a part in a step: it reads what the run has computed, or stores a number for it."""
    match step:
        case ReadExtent():
            return not isinstance(step.source, Iteration | int | str)
        case LoopBegin():
            read = step.going is not None or not isinstance(step.trip, int | str)
            return read or step.index is not None or bool(step.extents)
        case LoopEnd():
            return step.again is not None or step.count is not None or bool(step.extents)
    return False


def is_split(run: EntryPlan) -> bool:
    """Tell whether a run may be other than one graph as a whole: it waits, or it has loops."""
    return any(waits(step) or isinstance(step, LoopBegin) for step in run.steps)


def split(run: EntryPlan) -> list[Part]:
    """Return the parts of a run. A run that neither waits nor loops has no segments: it is one graph as a whole."""
    nodes = _tree(_numbered(run.steps))
    if not is_split(run):
        return [node for node in nodes if not isinstance(node, _Loop)]
    return _Splitter({extent.name: extent.bound for extent in run.extents}).split(nodes)


def _numbered(steps: Sequence[Step]) -> Iterator[tuple[int, Step]]:
    number = 0
    for step in steps:
        number += isinstance(step, Call | Copy)
        yield number, step


def _tree(steps: Iterator[tuple[int, Step]]) -> tuple[_Node, ...]:
    """Return the steps until the end of the loop that they are in, loops as nodes."""
    found: list[_Node] = []
    for number, step in steps:
        if isinstance(step, LoopBegin):
            *body, end = _tree(steps)
            assert not isinstance(end, _Loop)
            assert isinstance(end[1], LoopEnd)
            found.append(_Loop(step, tuple(body), end[1], number, end[0]))
            continue
        found.append((number, step))
        if isinstance(step, LoopEnd):
            break
    return tuple(found)


class _Splitter:
    """Collects segments. ``bounds`` are those of the run-time extents, by name."""

    def __init__(self, bounds: Mapping[str, Extent]) -> None:
        self.bounds = bounds
        self.parts: list[Part] = []
        self.count = 0

    def split(self, nodes: Sequence[_Node]) -> list[Part]:
        """Return the parts of these nodes, and of the loops among them."""
        waiting: list[tuple[_Node, _Needs]] = []
        for node in nodes:
            needs = self._needs(node)
            if needs is not None and not needs.loops and all(self.bounds[name] == 1 for name in needs.names):
                waiting.append((node, needs))
                continue
            self._flush(waiting)
            waiting = []
            if isinstance(node, _Loop):
                self._repeat(node)
            else:
                self.parts.append(node)
        self._flush(waiting)
        return self.parts

    def _repeat(self, loop: _Loop) -> None:
        """Add a loop that the host repeats. The copies at the end of each iteration belong to its body."""
        end, copies = loop.end, []
        overwritten = {copy.destination for copy in end.states}
        if not end.extents and all(copy.source not in overwritten for copy in end.scanned):
            copies = [(loop.until, copy) for copy in end.states]
            end = replace(end, states=())
        self.parts.append((loop.before, loop.begin))
        self.split([*loop.body, *copies])
        self.parts.append((loop.until, end))

    def _flush(self, waiting: Sequence[tuple[_Node, _Needs]]) -> None:
        steps = tuple(step for node, _ in waiting for step in _flat(node))
        launches = _total(needs.launches for _, needs in waiting)
        if isinstance(launches, int) and launches < MIN_LAUNCHES:
            self.parts += steps
            return
        self.count += 1
        keys = sorted({name for _, needs in waiting for name in needs.names}, key=[*self.bounds].index)
        self.parts.append(Segment(self.count, steps, tuple(keys), launches))

    def _needs(self, node: _Node) -> _Needs | None:
        """Return what a node needs; None if it cannot be in a graph."""
        if isinstance(node, _Loop):
            return self._needs_of_loop(node)
        step = node[1]
        if isinstance(step, Copy):
            return self._gather((step.source, step.destination), (step.nbytes,), 1)
        if not isinstance(step, Call):
            return None
        written = () if step.unless_empty is None else (step.unless_empty,)
        extents = (*step.scalars, *written, *(subject for subject, _ in step.branch if isinstance(subject, str)))
        return self._gather(step.operands, extents, 1)

    def _needs_of_loop(self, loop: _Loop) -> _Needs | None:
        begin, end = loop.begin, loop.end
        if waits(begin) or waits(end):
            return None
        assert isinstance(begin.trip, int | str)
        before = [self._needs((0, copy)) for copy in begin.states]
        body = [*map(self._needs, loop.body), *(self._needs((0, copy)) for copy in (*end.scanned, *end.states))]
        found = [needs for needs in (*before, *body) if needs is not None]
        if len(found) < len(before) + len(body):
            return None
        once = _total(needs.launches for needs in body if needs is not None)
        own = self._gather((), (begin.trip,), symbolic.combine("*", begin.trip, once))
        return _Needs(
            own.names.union(*(needs.names for needs in found)),
            frozenset[int]().union(*(needs.loops for needs in found)) - {begin.number},
            symbolic.combine("+", own.launches, len(before)),
        )

    def _gather(self, memories: Sequence[Memory], extents: Sequence[Extent], launches: Extent) -> _Needs:
        """Return what memories and expressions need."""
        names = {name for extent in extents for name in symbolic.names_of(extent)}
        loops: set[int] = set()
        for memory in memories:
            for index in _indices(memory):
                if isinstance(index, Iteration):
                    loops.add(index.loop)
                else:
                    names |= symbolic.names_of(index)
        return _Needs(frozenset(names & {*self.bounds}), frozenset(loops), launches)


def _total(counts: Iterable[Extent]) -> Extent:
    total: Extent = 0
    for count in counts:
        total = symbolic.combine("+", total, count)
    return total


def _flat(node: _Node) -> Iterator[tuple[int, Step]]:
    if not isinstance(node, _Loop):
        yield node
        return
    yield node.before, node.begin
    for inner in node.body:
        yield from _flat(inner)
    yield node.until, node.end


def _indices(memory: Memory) -> Iterator[Index]:
    """Yield what a memory depends on beside its parts."""
    match memory:
        case Switch():
            if isinstance(memory.subject, str):
                yield memory.subject
            for _, case in memory.cases:
                yield from _indices(case)
        case Row():
            yield memory.index
            yield memory.nbytes
            yield from _indices(memory.source)
        case Alternate():
            yield memory.index
            yield from (*_indices(memory.even), *_indices(memory.odd))
        case Carried():
            yield memory.index
            yield from (*_indices(memory.initial), *_indices(memory.following))


def parts_of(run: EntryPlan) -> tuple[RunPart, ...]:
    """Return the manifest's description of the parts of a run; () of one that is a graph as a whole."""
    if not is_split(run):
        return ()
    found: list[RunPart] = []
    repeated = 0  # loops around

    def add(part: RunPart) -> None:
        """Add a part; what is alike and in a row is one."""
        last = found[-1] if found and part.kind != "graph" and found[-1].kind == part.kind else None
        if last is None or last.repeated != part.repeated or not (part.extents or part.kind == "launches"):
            found.append(part)
            return
        found[-1] = replace(last, last=part.last, extents=(*last.extents, *part.extents))

    for part in split(run):
        if isinstance(part, Segment):
            calls = [number for number, step in part.steps if isinstance(step, Call | Copy)]
            add(RunPart("graph", min(calls), max(calls), part.keys, repeated > 0))
            continue
        number, step = part
        if isinstance(step, Call | Copy):
            add(RunPart("launches", number, number, (), repeated > 0))
        elif isinstance(step, ReadExtent) and waits(step):
            add(RunPart("wait", extents=(run.extents[step.number].name,), repeated=repeated > 0))
        elif isinstance(step, LoopBegin):
            if step.going is not None or not isinstance(step.trip, int | str):
                add(RunPart("wait", repeated=repeated > 0))
            repeated += 1
        elif isinstance(step, LoopEnd):
            if step.again is not None:
                add(RunPart("wait", repeated=True))
            repeated -= 1
    return tuple(found)
