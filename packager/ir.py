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

from packager.cpu_levels import form_name
from packager.manifest import (
    Constant,
    CpuLevel,
    Dim,
    Model,
    Primitive,
    Selection,
    StaticLibrary,
    TensorSpec,
    Weights,
)
from packager.primitives import BackendOutput, CallSite, CudaModule, FunctionGroup, Partition, PrimitiveFunction

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
class ImportedModel:
    """A model as one Relax function ``main``: its inputs are the first parameters, its weights the others.

    ``weights`` are in parameter order. ``nodes`` maps the name of a Relax variable to the source graph's node that
    it stands for. ``module`` is a ``tvm.IRModule``. ``sources`` tells of weights that were computed at import from
    which of the ``originals``; all others are constants of the model as they are.
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


@dataclass(frozen=True)
class Operand:
    """Where a call's argument lies: ``input``/``output`` number ``value``, byte offset ``value`` in the ``arena``, or
    slot ``value`` of the session's ``constants``."""

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
    """A plain copy of ``nbytes``: an output that is an input, a constant or another output."""

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
class CallPlan:
    """Everything that the entrypoint does in one run: the flat call sequence over one statically planned arena.

    ``functions`` are all primitive functions that it calls; those among them that are kernels are still to be compiled.
    """

    source: Model
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    dims: tuple[Dim, ...]
    steps: tuple[Call | Copy, ...]
    functions: tuple[PrimitiveFunction, ...]
    primitives: tuple[Primitive, ...]
    arena_bytes: int
    constants: ConstantTable
    selection: tuple[Selection, ...] = ()


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
    have the names of that level's forms (``packager.cpu_levels``).
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
