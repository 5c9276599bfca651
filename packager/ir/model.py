"""The values that pass between the stages of a build, in the order in which they arise.

``ImportedModel -> PartitionedModel -> LoweredModel -> CallPlan -> LinkPlan -> Bundle``. Every one is frozen; a stage is
a function that takes one and returns the next. TVM's types appear only as annotations, so this module imports without
TVM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packager.bundle.buckets import Sizes
from packager.bundle.cpu_levels import form_name
from packager.bundle.manifest import Dim, Model, StaticLibrary, TensorSpec, Weights
from packager.bundle.requirements import CpuLevel
from packager.graph.states import State
from packager.ir.call_plan import WHOLE, CallPlan, Condition, MicroBatches
from packager.ir.primitives import BackendOutput, CallSite, CudaModule, FunctionGroup, Partition

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]

# An extent: a number, or an integer expression over the symbolic dims ("n", "2*n+1").
Extent = int | str


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
class ExternalWeights:
    """The weights file that a bundle is bound to: its name, its size in bytes and the header it starts with."""

    file_name: str
    file_bytes: int
    header: bytes


@dataclass(frozen=True)
class PreparedLibrary:
    """A static library of backend ``kind`` after its check: one object, in which all names but ``symbols`` are local.

    ``files`` are what it was made of, ``cpu_features`` what its code needs. ``uses_libgcc``: it leaves names undefined
    that the compiler's own archive defines. With a ``level`` its code lies in that level's section, and its functions
    have the names of that level's forms (``packager.bundle.cpu_levels``).
    """

    kind: str
    path: Path
    symbols: tuple[str, ...]
    files: tuple[StaticLibrary, ...]
    cpu_features: tuple[str, ...]
    uses_libgcc: bool
    cuda_modules: tuple[CudaModule, ...] = ()
    level: str = ""

    @property
    def defined(self) -> tuple[str, ...]:
        """The names in the linked file of what it provides, in the order of ``symbols``."""
        return tuple(form_name(symbol, self.level) for symbol in self.symbols)


@dataclass(frozen=True)
class LinkedFile:
    """A linked file, not sealed yet, and the CPU features that the code in it needs.

    ``levels`` are the CPU levels that a session can have, the least first; ``dispatched_features`` what code uses that
    asks the CPU itself.
    """

    path: Path
    cpu_features: tuple[str, ...]
    levels: tuple[CpuLevel, ...] = ()
    dispatched_features: tuple[str, ...] = ()


@dataclass(frozen=True)
class CudaCode:
    """What the runtime must know of a CUDA bundle's code: ``driver`` is the least version of CUDA that the driver must
    support, as ``cuDriverGetVersion`` tells it; ``description`` lists the architectures, for messages."""

    driver: int
    description: str


@dataclass(frozen=True)
class LinkPlan:
    """Everything that goes into the linked file: objects in link order, and what the manifest tells of them."""

    plan: CallPlan
    backends: tuple[BackendOutput, ...]
    libraries: tuple[PreparedLibrary, ...]
    runtime: tuple[Path, ...]
    targets: tuple[dict[str, Any], ...]
    machine: str
    entry_symbol: str
    static: bool
    weights: Weights
    weights_file: ExternalWeights | None
    toolchain: Mapping[str, str]
    manifest_room: int  # bytes of the manifest section
    cpu_levels: tuple[CpuLevel, ...] = ()  # as the backends' libraries make them; none in a CUDA bundle
    cuda: CudaCode | None = None  # None: a CPU bundle
