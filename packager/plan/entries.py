"""Splits ``main`` into the entries of a bundle, allocates shared states, and finishes each entry's plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

from packager.bundle.dtypes import DTYPES
from packager.bundle.manifest import StateSpec, TensorSpec
from packager.graph import symbolic
from packager.graph.dataflow import bindings_of
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import nodes_of
from packager.graph.run_time_extents import results_of
from packager.ir.call_plan import Check, Copy, EntryPlan, Operand, PlannedState, ReadExtent, Step
from packager.ir.model import ModelSignature, State
from packager.ir.shapes import Condition, Extent, MicroBatches
from packager.plan.arena import align
from packager.plan.calls import CallRecorder, PlannedCall, PlannedRead, PlannedTensor, operand_of
from packager.plan.constants import ConstantBuilder
from packager.plan.loops import PlannedMark, begin_step, end_step


@dataclass(frozen=True)
class Slice:
    """One entry's part of ``main``: its inputs and results, and all bindings in order, each with whether these need
    it."""

    inputs: slice
    outputs: slice
    bindings: tuple[tuple[Any, bool], ...]
    results: tuple[Any, ...]


def slices(main: relax.Function, counts: Sequence[tuple[int, int]]) -> list[Slice]:
    """Split ``main`` into the parts of models with ``counts`` of (inputs, results), in order.

    A single model gets everything.
    """
    bindings = bindings_of(main)
    places = IdentityMap((binding.var, index) for index, binding in enumerate(bindings))
    fields = results_of(main)
    found = []
    first_input = first_output = 0
    for inputs, outputs in counts:
        taken = slice(first_output, first_output + outputs)
        needed = set(range(len(bindings))) if len(counts) == 1 else _needed(fields[taken], bindings, places)
        marked = tuple((binding, index in needed) for index, binding in enumerate(bindings))
        found.append(Slice(slice(first_input, first_input + inputs), taken, marked, fields[taken]))
        first_input += inputs
        first_output += outputs
    return found


def _needed(results: tuple[Any, ...], bindings: list[Any], places: IdentityMap[int]) -> set[int]:
    """Return the indices of the bindings that results depend on."""
    needed: set[int] = set()
    waiting = [place for result in results for place in _used(result, places)]
    while waiting:
        place = waiting.pop()
        if place not in needed:
            needed.add(place)
            waiting += _used(bindings[place].value, places)
    return needed


def _used(expr: Any, places: IdentityMap[int]) -> list[int]:
    return [places[variable] for variable in nodes_of(expr, relax.Var) if variable in places]


class StateMemory:
    """Allocates the states of all entries, shared by name, and slots for their initial values."""

    def __init__(self, constants: ConstantBuilder, alignment: int) -> None:
        self.planned: dict[str, PlannedState] = {}
        self.nbytes = 0
        self._constants, self._alignment = constants, alignment

    def allocate(self, state: State, spec: TensorSpec) -> Operand:
        """Return the memory of a state; ``spec`` has its type, which is static."""
        if state.name not in self.planned:
            initial, slot = None, None
            if state.initial is not None and state.initial.tobytes().strip(b"\0"):
                slot = self._constants.add_derived(f"{state.name}.initial", np.asarray(state.initial))
                initial = self._constants.name_of(slot)
            extents = tuple(extent for extent in spec.shape if isinstance(extent, int))
            nbytes = math.prod(extents) * DTYPES[spec.dtype].itemsize
            planned = StateSpec(state.name, state.output, spec.dtype, extents, self.nbytes, nbytes, initial)
            self.planned[state.name] = PlannedState(planned, slot)
            self.nbytes += align(nbytes, self._alignment)
        return Operand("state", self.planned[state.name].spec.offset)


@dataclass(frozen=True)
class PlannedCopy:
    """A copy of ``nbytes`` at the end of a run."""

    source: PlannedTensor
    target: PlannedTensor
    nbytes: Extent


@dataclass(frozen=True)
class PlannedEntry:
    """An entry with all tensors allocated."""

    entry: ModelSignature
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    calls: list[PlannedCall]
    marks: list[PlannedRead | PlannedMark]
    copies: list[PlannedCopy]
    lane_bytes: int  # of the arena, for one micro-batch

    @property
    def arena_bytes(self) -> int:
        """Memory for the micro-batches that run concurrently."""
        return self.lane_bytes * self._most()

    def finish(self, recorder: CallRecorder) -> EntryPlan:
        """Return the plan of the entry, and record its calls."""
        steps = [*self._steps(recorder)]
        steps += [Copy(operand_of(c.source), operand_of(c.target), c.nbytes) for c in self.copies]
        computed = {extent.name for extent in self.entry.extents}
        return EntryPlan(
            name=self.entry.source.name,
            source=self.entry.source,
            inputs=self.inputs,
            outputs=tuple(_whole(spec, self.entry.batches) for spec in self.outputs),
            dims=tuple(dim for dim in self.entry.dims if dim.name not in computed),
            steps=tuple(steps),
            states=tuple(state.name for state in self.entry.states),
            sizes=self.entry.sizes,
            conditions=self.entry.conditions,
            batches=self.entry.batches,
            parts=self._parts(),
            lane_bytes=self.lane_bytes,
            extents=self.entry.extents,
        )

    def _steps(self, recorder: CallRecorder) -> Iterator[Step]:
        """Yield the calls, the reads of run-time extents between them, and the checks that these allow."""
        computed = [extent.name for extent in self.entry.extents]
        waiting = {
            number: names
            for number, condition in enumerate(self.entry.conditions)
            if (names := (condition.names() | self._decide(condition)) & {*computed})
        }
        marks = iter(self.marks)
        mark = next(marks, None)
        for place, call in enumerate([*self.calls, None]):
            while mark is not None and mark.before == place:
                if isinstance(mark, PlannedMark):
                    yield end_step(mark.loop, computed) if mark.ends else begin_step(mark.loop)
                else:
                    yield from self._read(mark, waiting)
                mark = next(marks, None)
            if call is not None and not call.dropped:
                yield recorder.step(call)

    def _decide(self, condition: Condition) -> set[str]:
        """Return the run-time extents that decide whether a condition's node is computed."""
        return {name for name, _ in self.entry.branches.get(condition.node, ())}

    def _read(self, read: PlannedRead, waiting: dict[int, set[str]]) -> Iterator[Step]:
        """Yield the read of a run-time extent, and the checks that waited for it."""
        extent, branches = self.entry.extents[read.number], self.entry.branches
        source = operand_of(read.scalar) if read.count is None else read.count
        yield ReadExtent(read.number, source, branches.get(extent.node, ()))
        for number, names in waiting.items():
            if names == {extent.name}:
                yield Check(number, branches.get(self.entry.conditions[number].node, ()))
            names.discard(extent.name)

    def _most(self) -> int:
        """Return the maximum number of micro-batches."""
        count = self.entry.batches.count
        return count if isinstance(count, int) else next(dim.max for dim in self.entry.dims if dim.name == count)

    def _parts(self) -> tuple[Extent, ...]:
        """Return the bytes per micro-batch of each input and output; ``inputs`` are whole, ``outputs`` are parts."""
        batches = self.entry.batches
        if batches.count == 1:
            return ()

        def nbytes(spec: TensorSpec) -> Extent:
            return symbolic.product((*spec.shape, DTYPES[spec.dtype].itemsize))

        def part(spec: TensorSpec) -> Extent:
            if spec.name in batches.whole:
                return 0
            first, *others = spec.shape
            rows = first // batches.count if isinstance(first, int) and isinstance(batches.count, int) else 1
            return nbytes(replace(spec, shape=(rows, *others)))

        return (*map(part, self.inputs), *map(nbytes, self.outputs))


def _whole(spec: TensorSpec, batches: MicroBatches) -> TensorSpec:
    """Return the description of a whole tensor, given that of one micro-batch."""
    if batches.count == 1:
        return spec
    first, *others = spec.shape
    return replace(spec, shape=(symbolic.combine("*", first, batches.count), *others))
