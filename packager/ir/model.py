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
class ModelSignature:
    """What a model is to its callers. Only the importing stage writes it; the other stages pass it on.

    ``states`` name inputs and outputs that the session keeps; until the plan these stand among the others.
    ``output_dtypes`` are the element types of outputs that are the bytes of a narrow type, None for others; empty where
    no output is. A merged model has the signatures of its models as ``entries``: its inputs and outputs are theirs, one
    entry after the other. ``sizes`` are those of an entry's bucketed dims: entries of one name are variants of a model.
    """

    source: Model
    inputs: tuple[TensorSpec, ...]
    output_names: tuple[str, ...]
    dims: tuple[Dim, ...]
    states: tuple[State, ...] = ()
    conditions: tuple[Condition, ...] = ()
    output_dtypes: tuple[str | None, ...] = ()
    batches: MicroBatches = WHOLE
    sizes: Sizes = field(default_factory=dict)
    entries: tuple[ModelSignature, ...] = ()

    @property
    def label(self) -> str:
        """Its name in messages and in what the variants of an entry do not share: ``encoder[seq=128]``."""
        return variant_label(self.source.name, self.sizes)

    def every_entry(self) -> tuple[ModelSignature, ...]:
        """Return the models that it holds: itself, or those that were merged."""
        return self.entries or (self,)


@dataclass(frozen=True)
class ImportedModel:
    """A model as one Relax function ``main``: its inputs are the first parameters, its weights the others.

    ``weights`` are in parameter order. ``nodes`` maps the name of a Relax variable to the source graph's node that
    it stands for. ``module`` is a ``tvm.IRModule``. ``sources`` tells of weights that were computed at import from
    which of the ``originals``; all others are constants of the model as they are.
    """

    signature: ModelSignature
    module: Any
    weights: Mapping[str, Array]
    nodes: Mapping[str, str]
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    originals: Mapping[str, Array] = field(default_factory=dict)

    def constants(self) -> dict[str, NamedArray]:
        """Return the weights, in order, with the model's constants that each comes from."""
        return {name: NamedArray(array, self.sources.get(name, (name,))) for name, array in self.weights.items()}

    def own_constants(self) -> dict[str, Array]:
        """Return the model's constants as its file has them, by name."""
        plain = {name: array for name, array in self.weights.items() if name not in self.sources}
        return {**plain, **self.originals}


@dataclass(frozen=True)
class PreparedModel:
    """A model as backends see it: ``module`` is its Relax module after all passes.

    ``constants`` are the values of main's parameters after the inputs, in order; ``weights`` the model's own constants
    by name; ``nodes`` as imported.
    """

    signature: ModelSignature
    module: Any
    constants: Mapping[str, NamedArray]
    weights: Mapping[str, Array]
    nodes: Mapping[str, str]


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

    signature: ModelSignature
    module: Any
    weights: Mapping[str, Array]
    constants: Mapping[str, NamedArray]
    nodes: Mapping[str, str]
    partitions: Mapping[str, PlacedPartition]
    sites: Mapping[str, CallSite]
    backends: tuple[BackendOutput, ...]


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

    signature: ModelSignature
    main: Any
    groups: Mapping[str, FunctionGroup]
    weights: Mapping[str, Array]
    constants: Mapping[str, NamedArray]
    tables: Mapping[str, Array]
    call_sources: tuple[CallSource, ...]
