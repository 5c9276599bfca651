"""The values passed between the stages of a build, in the order of the stages.

``ImportedModel -> PreparedModel -> PartitionedModel -> LoweredModel -> CallPlan -> LinkPlan -> Bundle``. All are
frozen; a stage is a function from one to the next. TVM's types appear only in annotations, so this module imports
without TVM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packager.bundle.buckets import Sizes, variant_label
from packager.bundle.manifest import Dim, Model, RunTimeExtent, TensorSpec
from packager.bundle.selection import PlacementRecord
from packager.ir.primitives import BackendOutput, CallSite, FunctionGroup, Partition
from packager.ir.shapes import WHOLE, Condition, MicroBatches

if TYPE_CHECKING:
    from packager.bundle.arrays import Array


@dataclass(frozen=True)
class NamedArray:
    """A constant with a stable name: the model's, or derived from the model's at build time.

    ``sources`` names the model's constants it derives from, possibly itself; empty if there are none (a backend's
    table). ``array`` is a view of the source's memory if it only reorders elements.
    """

    array: Array
    sources: tuple[str, ...]


@dataclass(frozen=True)
class State:
    """A tensor that a session keeps between runs.

    A run reads the state as the model's input ``name``, and writes it as the output ``output`` for the next run. In a
    bundle of several models an entry may have only one of them.

    ``initial`` is the initial value, of the input's type and shape; None means zeros.
    """

    name: str
    output: str
    initial: Array | None = None


@dataclass(frozen=True)
class ModelSignature:
    """A model's interface to callers. Written by the import stage; the other stages pass it on.

    ``states`` name inputs and outputs that the session keeps; until the plan stage these are among the others. So are a
    parameter and a result for each of ``extents``, the run-time extents, which are among the dims too.
    ``branches`` maps nodes of the source graph to the run-time extents, with their values, that they are computed for.
    ``output_dtypes`` are the element types of outputs that hold the bytes of a narrow type, None for others; empty if
    there are none. ``output_labels`` are names of classes (see TensorSpec).
    A merged model has its models' signatures as ``entries``; its inputs and outputs are their
    concatenation. ``sizes`` are those of an entry's bucketed dims: entries with the same name are variants of a model.
    """

    source: Model
    inputs: tuple[TensorSpec, ...]
    output_names: tuple[str, ...]
    dims: tuple[Dim, ...]
    states: tuple[State, ...] = ()
    conditions: tuple[Condition, ...] = ()
    output_dtypes: tuple[str | None, ...] = ()
    output_labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    batches: MicroBatches = WHOLE
    sizes: Sizes = field(default_factory=dict)
    entries: tuple[ModelSignature, ...] = ()
    extents: tuple[RunTimeExtent, ...] = ()
    branches: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Its name in messages, and in names that differ between variants: ``encoder[seq=128]``."""
        return variant_label(self.source.name, self.sizes)

    def every_entry(self) -> tuple[ModelSignature, ...]:
        """Return its entries: itself, or the merged models."""
        return self.entries or (self,)


@dataclass(frozen=True)
class ImportedModel:
    """A model as one Relax function ``main``: the first parameters are its inputs, the others its weights.

    ``weights`` are in parameter order. ``nodes`` maps names of Relax variables to the source graph's nodes. ``module``
    is a ``tvm.IRModule``. ``sources`` maps weights computed at import to the ``originals`` they derive from; all others
    are unchanged constants of the model. ``warnings`` say what is odd about the file.
    """

    signature: ModelSignature
    module: Any
    weights: Mapping[str, Array]
    nodes: Mapping[str, str]
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    originals: Mapping[str, Array] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def constants(self) -> dict[str, NamedArray]:
        """Return the weights, in order, with the model's constants that each derives from."""
        return {name: NamedArray(array, self.sources.get(name, (name,))) for name, array in self.weights.items()}

    def own_constants(self) -> dict[str, Array]:
        """Return the model's original constants by name."""
        plain = {name: array for name, array in self.weights.items() if name not in self.sources}
        return {**plain, **self.originals}


@dataclass(frozen=True)
class PreparedModel:
    """A model as backends see it: ``module`` is the Relax module after all passes.

    ``constants`` are the values of main's parameters after the inputs, in order; ``weights`` the model's constants
    by name; ``nodes`` as imported.
    """

    signature: ModelSignature
    module: Any
    constants: Mapping[str, NamedArray]
    weights: Mapping[str, Array]
    nodes: Mapping[str, str]


@dataclass(frozen=True)
class PlacedPartition:
    """A partition compiled by a backend, by name: its functions and its call sites."""

    partition: Partition
    backend: str
    group: FunctionGroup


@dataclass(frozen=True)
class PartitionedModel(PreparedModel):
    """A model whose ``main`` calls the partitions by ``call_dps_packed``, and keeps the operators that no backend took.

    ``sites`` maps the name of the Relax variable bound to a partition's call to its call site. ``placement`` is
    None unless it was measured; ``main`` may compute its regions in several ways (``graph.control_flow.ALTERNATIVES``).
    """

    partitions: Mapping[str, PlacedPartition]
    sites: Mapping[str, CallSite]
    backends: tuple[BackendOutput, ...]
    placement: PlacementRecord | None = None


@dataclass(frozen=True)
class CallSource:
    """The provenance of a call of a PrimFunc: its fused operators, and nodes of the source graph."""

    ops: tuple[str, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class LoweredModel:
    """A flat Relax ``main`` of calls of PrimFuncs and partitions, and the primitive functions of each by name.

    ``constants`` are the values of main's parameters after the inputs, in order; ``weights`` the model's constants;
    ``tables`` the backends' constants by name. ``call_sources`` are in call order. ``device`` is "cpu" or "cuda".
    """

    signature: ModelSignature
    main: Any
    groups: Mapping[str, FunctionGroup]
    weights: Mapping[str, Array]
    constants: Mapping[str, NamedArray]
    tables: Mapping[str, Array]
    call_sources: tuple[CallSource, ...]
    placement: PlacementRecord | None = None
    device: str = "cpu"
