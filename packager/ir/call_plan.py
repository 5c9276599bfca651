"""CallPlan: the flat call sequence of each run, the memory of every operand, and the states.

The result of the plan stage (``ir.model`` has the values of earlier stages). Imports without TVM.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packager.bundle.buckets import Sizes
from packager.bundle.graph.call_graph import CallGraph
from packager.bundle.manifest import (
    Dim,
    Model,
    Primitive,
    RunTimeExtent,
    StateSpec,
    TensorSpec,
)
from packager.bundle.selection import PlacementChoice, PlacementRecord, Selection
from packager.ir.constants import ConstantTable
from packager.ir.primitives import PrimitiveFunction
from packager.ir.shapes import WHOLE, Condition, Extent, MicroBatches

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Operand:
    """The memory of a call's argument: ``input``/``output`` with index ``value``, byte offset ``value`` in the
    ``arena`` or in the session's ``state`` memory, or slot ``value`` of the session's ``constants``."""

    space: str
    value: int


@dataclass(frozen=True)
class Digit:
    """Which alternative of placement choice ``number`` the session runs."""

    number: int


# What decides about a case: a run-time extent, or a digit of the session.
Subject = str | Digit


@dataclass(frozen=True)
class Switch:
    """The memory of the case that a run takes, by the value of ``subject``; the last case has all other values."""

    subject: Subject
    cases: tuple[tuple[int, Memory], ...]


@dataclass(frozen=True)
class Iteration:
    """The number of the iteration of loop ``loop`` that runs, from 0 on, less ``back``."""

    loop: int
    back: int = 0


# Of a row, or of a value that each iteration makes anew: in the loop, or after it as an expression over the dims.
Index = Iteration | Extent


@dataclass(frozen=True)
class Row:
    """Row ``index`` of ``source``; a row has ``nbytes``."""

    source: Memory
    index: Index
    nbytes: Extent


@dataclass(frozen=True)
class Alternate:
    """Two memories that take turns: ``even`` in iterations 0, 2, 4, ..., ``odd`` in others."""

    even: Memory
    odd: Memory
    index: Index


@dataclass(frozen=True)
class Carried:
    """A state of a loop that nothing is copied to: ``initial`` in iteration 0, then ``following``, the memory that the
    iteration before has written."""

    initial: Memory
    following: Memory
    index: Index


Memory = Operand | Switch | Row | Alternate | Carried

# Run-time extents and digits, with their values, under which a step is done.
Branch = tuple[tuple[Subject, int], ...]


@dataclass(frozen=True)
class Call:
    """One call of a kernel. ``scalars`` and ``extent`` are expressions over the dims.

    ``selection`` is the index in the session's selection that chooses its candidate, if there are several. The call is
    left out if ``unless_empty``, the number of elements that it writes, is 0; None if it never is. It is left out, too,
    unless the run takes its ``branch``.
    """

    symbol: str
    operands: tuple[Memory, ...]
    scalars: tuple[Extent, ...]
    extent: Extent | None
    parallel: bool
    selection: int | None = None
    unless_empty: Extent | None = None
    branch: Branch = ()


@dataclass(frozen=True)
class ReadExtent:
    """Reads run-time extent number ``number`` of the entry from an int64 scalar; it is 0 in other branches.

    The number of iterations of a loop that has ended is no memory: the host knows it.
    """

    number: int
    source: Memory | Index
    branch: Branch = ()


@dataclass(frozen=True)
class Check:
    """Checks the entry's condition ``number``, which depends on run-time extents, in its branch."""

    number: int
    branch: Branch = ()


@dataclass(frozen=True)
class Copy:
    """A copy of ``nbytes``: for an output that is an input, a constant or another output, or for a state's next value
    that could not be written in place."""

    source: Memory
    destination: Memory
    nbytes: Extent


@dataclass(frozen=True)
class LoopBegin:
    """Begins loop ``number``: ``trip`` iterations at most, as long as ``going`` is not 0.

    ``trip`` is an expression over the dims and run-time extents, or the memory that holds it. ``going`` is None if it
    is always 1. ``index`` gets the number of each iteration, if something reads it. Before, ``extents`` are written,
    and ``states`` copied.
    """

    number: int
    trip: Memory | Extent
    going: Memory | None
    index: Memory | None
    extents: tuple[tuple[Memory, Extent], ...]
    states: tuple[Copy, ...]


@dataclass(frozen=True)
class LoopEnd:
    """Ends the body of loop ``number``: ``scanned`` are appended, ``states`` copied; ``again`` says whether to go on.

    ``again`` is None if that does not change. ``extents`` are written: memory, index of the run-time extent that bounds
    it, next value. Then ``count`` gets the number of iterations, if something reads it, and ``finals`` are copied:
    scalar, its memory in the loop.
    """

    number: int
    again: Memory | None
    extents: tuple[tuple[Memory, int, Extent], ...]
    states: tuple[Copy, ...]
    scanned: tuple[Copy, ...]
    count: Memory | None
    finals: tuple[tuple[Memory, Memory], ...]


# A step of a run. Calls and copies are numbered, for messages and profiles.
Step = Call | Copy | ReadExtent | Check | LoopBegin | LoopEnd


@dataclass(frozen=True)
class PlannedState:
    """A state and its manifest record. ``slot`` is the slot of its initial value; None means zeros."""

    spec: StateSpec
    slot: int | None


@dataclass(frozen=True)
class EntryPlan:
    """One model of a bundle: its tensors, and the steps of a run in order.

    ``states`` are the names of the bundle's states that it reads or writes; ``source`` is the model's file. A model
    with bucketed dims has ``variants`` instead of steps, one per combination of ``sizes`` in the order of its dims;
    their inputs and outputs have these sizes in place of the dims. ``dims`` are read from the inputs, ``extents`` by
    the run.
    """

    name: str
    source: Model
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    dims: tuple[Dim, ...]
    steps: tuple[Step, ...]
    states: tuple[str, ...] = ()
    sizes: Sizes = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    variants: tuple[EntryPlan, ...] = ()
    batches: MicroBatches = WHOLE
    parts: tuple[
        Extent, ...
    ] = ()  # bytes per micro-batch of each input and output, 0 if not split; (): no micro-batches
    lane_bytes: int = 0  # arena bytes per micro-batch
    extents: tuple[RunTimeExtent, ...] = ()

    def runs(self) -> tuple[EntryPlan, ...]:
        """Return the plans with steps: the variants, or the entry itself."""
        return self.variants or (self,)


@dataclass(frozen=True)
class CallPlan:
    """The runs of all models of a bundle, over one statically planned arena.

    ``functions`` are all primitive functions called; kernels among them are not compiled yet. ``states`` are not inputs
    or outputs; they occupy ``state_bytes`` of memory per session. A session's selection has the digits of ``choices``,
    then those of ``selection``. ``graph`` is set by the planner.
    """

    source: Model
    entries: tuple[EntryPlan, ...]
    functions: tuple[PrimitiveFunction, ...]
    primitives: tuple[Primitive, ...]
    arena_bytes: int
    constants: ConstantTable
    selection: tuple[Selection, ...] = ()
    placement: PlacementRecord | None = None
    states: tuple[PlannedState, ...] = ()
    state_bytes: int = 0
    graph: CallGraph | None = None

    @property
    def choices(self) -> tuple[PlacementChoice, ...]:
        """The regions that it has several alternatives of."""
        return self.placement.choices if self.placement else ()

    def count_alternatives(self) -> list[int]:
        """Return how many alternatives or candidates each digit of a session's selection tells apart."""
        return [*(len(c.alternatives) for c in self.choices), *(len(s.candidates) for s in self.selection)]
