"""What one run does: the flat call sequence, where every operand lies, the constants and the states.

The result of the plan stage (``ir.model`` has the other values between the stages). This module imports without TVM.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packager.bundle.buckets import Sizes
from packager.bundle.manifest import Constant, Dim, Model, Primitive, Selection, StateSpec, TensorSpec
from packager.ir.primitives import PrimitiveFunction
from packager.ir.shapes import WHOLE, Condition, MicroBatches

if TYPE_CHECKING:
    from packager.bundle.arrays import Array
    from packager.ir.shapes import Extent


@dataclass(frozen=True)
class Operand:
    """Where a call's argument lies: ``input``/``output`` number ``value``, byte offset ``value`` in the ``arena`` or in
    the session's memory for ``state``, or slot ``value`` of the session's ``constants``."""

    space: str
    value: int


@dataclass(frozen=True)
class Call:
    """One call of a kernel. ``scalars`` and ``extent`` are expressions over the dims.

    ``selection`` is the number of the plan's selection that says which candidate computes it, if there are several.
    """

    symbol: str
    operands: tuple[Operand, ...]
    scalars: tuple[Extent, ...]
    extent: Extent | None
    parallel: bool
    selection: int | None = None


@dataclass(frozen=True)
class Copy:
    """A plain copy of ``nbytes``: an output that is an input, a constant or another output; a state's next value that
    could not be written in its place."""

    source: Operand
    destination: Operand
    nbytes: Extent


@dataclass(frozen=True)
class ConstantForm:
    """How a slot reads ``source``, one of the model's constants: element by element over ``extents``, from element
    ``offset`` on, with ``strides`` in elements of the constant as the model has it."""

    source: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class ConstantSlot:
    """A constant as the code sees it: pointer number i of a session, at first ``offset`` bytes into the constants.

    Slots of equal content share an offset. ``sources`` are the model's constants that it comes from. ``form`` says how
    it follows from one of them; None where it was computed in another way.
    """

    name: str
    offset: int
    nbytes: int
    sources: tuple[str, ...]
    form: ConstantForm | None


@dataclass(frozen=True)
class ConstantTable:
    """All constants of a bundle: records sorted by offset, the arrays in the same order, and the code's slots.

    ``named`` are the model's own constants that some slot comes from: what a session may be asked to swap.
    """

    records: tuple[Constant, ...]
    arrays: tuple[Array, ...]
    nbytes: int
    slots: tuple[ConstantSlot, ...]
    named: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class PlannedState:
    """A state as the manifest tells of it. ``slot`` is the slot of the constant that it begins with; None: zeros."""

    spec: StateSpec
    slot: int | None


@dataclass(frozen=True)
class EntryPlan:
    """One model of a bundle: its tensors, and everything that a run of it does, in order.

    ``states`` are the names of those of the bundle's states that it reads or writes; ``source`` is the model's file.
    A model with bucketed dims has no steps, but ``variants``, one for each combination of ``sizes`` in the order of its
    dims; their inputs and outputs are its own with these sizes in place of the dims.
    """

    name: str
    source: Model
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    dims: tuple[Dim, ...]
    steps: tuple[Call | Copy, ...]
    states: tuple[str, ...] = ()
    sizes: Sizes = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    variants: tuple[EntryPlan, ...] = ()
    batches: MicroBatches = WHOLE
    parts: tuple[Extent, ...] = ()  # bytes of a micro-batch of each input and output, 0: all have the whole; (): one
    lane_bytes: int = 0  # of the arena, for one of several micro-batches

    def runs(self) -> tuple[EntryPlan, ...]:
        """Return what has steps: the variants, or the entry itself."""
        return self.variants or (self,)


@dataclass(frozen=True)
class CallPlan:
    """Everything that the entrypoint does: the runs of all models of the bundle, over one statically planned arena.

    ``functions`` are all primitive functions that it calls; those among them that are kernels are still to be compiled.
    ``states`` are none of the inputs and outputs; they lie in ``state_bytes`` of memory that the session keeps.
    """

    source: Model
    entries: tuple[EntryPlan, ...]
    functions: tuple[PrimitiveFunction, ...]
    primitives: tuple[Primitive, ...]
    arena_bytes: int
    constants: ConstantTable
    selection: tuple[Selection, ...] = ()
    states: tuple[PlannedState, ...] = ()
    state_bytes: int = 0


def fixed_reason(table: ConstantTable, name: str) -> str | None:
    """Return why a session cannot swap the model's constant ``name`` for new data, or None if it can."""
    for slot in table.slots:
        if name in slot.sources and (slot.form is None or slot.form.source != name):
            sources = slot.sources[:8] if len(slot.sources) <= 8 else (*slot.sources[:7], "others")
            *first, last = sources
            listed = f"{', '.join(first)} and {last}" if first else last
            what = "a form of it" if slot.name == name else slot.name
            return f"{what} is computed from {listed} at build time"
    return None
