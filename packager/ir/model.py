"""The values that pass between the stages of a build, in the order in which they arise.

``ImportedModel -> PartitionedModel -> LoweredModel -> CallPlan -> LinkPlan -> Bundle``. Every one is frozen; a stage is
a function that takes one and returns the next. TVM's types appear only as annotations, so this module imports without
TVM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packager.bundle.buckets import Sizes, variant_label
from packager.bundle.manifest import Dim, Model, TensorSpec
from packager.ir.primitives import BackendOutput, CallSite, FunctionGroup, Partition
from packager.ir.shapes import WHOLE, Condition, MicroBatches
from packager.ir.states import State

if TYPE_CHECKING:
    from packager.bundle.arrays import Array


@dataclass(frozen=True)
class NamedArray:
    """A constant under a stable name: one of the model's own, or what was computed from such at build time.

    ``sources`` names the model's constants that it comes from: itself, or what it was computed from; empty for one that
    stands for itself alone (a backend's table). ``array`` is a view of the source's memory where it holds the same
    elements in another order.
    """

    array: Array
    sources: tuple[str, ...]


@dataclass(frozen=True)
class ModelEntry:
    """One of the models in a merged one: ``inputs`` and ``outputs`` count what it has of these, after those of the
    entries before it. ``states`` are those that it reads or writes. ``sizes`` are those of its bucketed dims: what has
    the same name is a variant of the same model."""

    name: str
    source: Model
    inputs: int
    outputs: int
    dims: tuple[Dim, ...]
    states: tuple[State, ...]
    sizes: Sizes = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    batches: MicroBatches = WHOLE


@dataclass(frozen=True)
class ImportedModel:
    """A model as one Relax function ``main``: its inputs are the first parameters, its weights the others.

    ``weights`` are in parameter order. ``nodes`` maps the name of a Relax variable to the source graph's node that
    it stands for. ``module`` is a ``tvm.IRModule``. ``sources`` tells of weights that were computed at import from
    which of the ``originals``; all others are constants of the model as they are. ``states`` name inputs and outputs
    that the session keeps; until the plan these stand among the others.
    """

    source: Model
    module: Any
    inputs: tuple[TensorSpec, ...]
    output_names: tuple[str, ...]
    dims: tuple[Dim, ...]
    weights: Mapping[str, Array]
    nodes: Mapping[str, str]
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    originals: Mapping[str, Array] = field(default_factory=dict)
    states: tuple[State, ...] = ()
    entries: tuple[ModelEntry, ...] = ()  # none: it is one model
    conditions: tuple[Condition, ...] = ()
    output_dtypes: tuple[str | None, ...] = ()  # of outputs that are the bytes of a narrow type; (): none is
    batches: MicroBatches = WHOLE

    def constants(self) -> dict[str, NamedArray]:
        """Return the weights, in order, with the model's constants that each comes from."""
        return {name: NamedArray(array, self.sources.get(name, (name,))) for name, array in self.weights.items()}

    def own_constants(self) -> dict[str, Array]:
        """Return the model's constants as its file has them, by name."""
        plain = {name: array for name, array in self.weights.items() if name not in self.sources}
        return {**plain, **self.originals}


@dataclass(frozen=True)
class PreparedModel:
    """A model as backends see it: ``module`` is its Relax module after all passes, ``constants`` the values of main's
    parameters after the inputs, in order. The rest is as imported."""

    imported: ImportedModel
    module: Any
    constants: Mapping[str, NamedArray]


@dataclass(frozen=True)
class PlacedPartition:
    """A partition, by its name, that a backend has compiled: how it is called, and what stands for it."""

    partition: Partition
    backend: str
    group: FunctionGroup


@dataclass(frozen=True)
class PartitionedModel:
    """A model whose ``main`` calls the partitions by ``call_dps_packed`` and keeps what no backend took.

    ``constants`` are the values of main's parameters after the inputs, in order; ``weights`` the model's own constants
    by name. ``sites`` maps the name of the Relax variable that a partition's call is bound to, to its call site.
    """

    source: Model
    module: Any
    inputs: tuple[TensorSpec, ...]
    output_names: tuple[str, ...]
    dims: tuple[Dim, ...]
    weights: Mapping[str, Array]
    constants: Mapping[str, NamedArray]
    nodes: Mapping[str, str]
    partitions: Mapping[str, PlacedPartition]
    sites: Mapping[str, CallSite]
    backends: tuple[BackendOutput, ...]
    states: tuple[State, ...] = ()
    entries: tuple[ModelEntry, ...] = ()  # none: it is one model
    conditions: tuple[Condition, ...] = ()
    output_dtypes: tuple[str | None, ...] = ()  # of outputs that are the bytes of a narrow type; (): none is
    batches: MicroBatches = WHOLE


@dataclass(frozen=True)
class CallSource:
    """What a call of a PrimFunc stands for: operators that were fused into it, and nodes of the source graph."""

    ops: tuple[str, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class LoweredModel:
    """A flat Relax ``main`` of calls of PrimFuncs and partitions, and the primitive functions of each by its name.

    ``constants`` are the values of main's parameters after the inputs, in order; ``weights`` the model's own constants;
    ``tables`` what backends hoisted, by name. ``call_sources`` are in call order.
    """

    source: Model
    main: Any
    groups: Mapping[str, FunctionGroup]
    inputs: tuple[TensorSpec, ...]
    output_names: tuple[str, ...]
    dims: tuple[Dim, ...]
    weights: Mapping[str, Array]
    constants: Mapping[str, NamedArray]
    tables: Mapping[str, Array]
    call_sources: tuple[CallSource, ...]
    states: tuple[State, ...] = ()
    entries: tuple[ModelEntry, ...] = ()  # none: it is one model
    conditions: tuple[Condition, ...] = ()
    output_dtypes: tuple[str | None, ...] = ()  # of outputs that are the bytes of a narrow type; (): none is
    batches: MicroBatches = WHOLE

    def every_entry(self) -> tuple[ModelEntry, ...]:
        """Return the models that it holds."""
        whole = (self.source, len(self.inputs), len(self.output_names), self.dims, self.states)
        return self.entries or (ModelEntry(self.source.name, *whole, conditions=self.conditions, batches=self.batches),)


@dataclass(frozen=True)
class Variant:
    """A model of entry ``entry``, for ``sizes`` of its bucketed dims; without such it is the whole entry."""

    entry: str
    sizes: Sizes
    model: ImportedModel

    @property
    def label(self) -> str:
        """Its name in messages and in what the variants of an entry do not share: ``encoder[seq=128]``."""
        return variant_label(self.entry, self.sizes)
