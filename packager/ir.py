"""The values that pass between the stages of a build, in the order in which they arise.

``ImportedModel -> LoweredModel -> CallPlan -> CompiledParts -> Bundle``. Every one is frozen; a stage is a function
that takes one and returns the next. TVM's types appear only as annotations, so this module imports without TVM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packager.manifest import Constant, Dim, Model, Primitive, TensorSpec, Weights

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]

# An extent: a number, or an integer expression over the symbolic dims ("n", "2*n+1").
Extent = int | str


@dataclass(frozen=True)
class ImportedModel:
    """A model as one Relax function ``main``: its inputs are the first parameters, its weights the others.

    ``weights`` are in parameter order. ``nodes`` maps the name of a Relax variable to the source graph's node that
    it stands for. ``module`` is a ``tvm.IRModule``.
    """

    source: Model
    module: Any
    inputs: tuple[TensorSpec, ...]
    output_names: tuple[str, ...]
    dims: tuple[Dim, ...]
    weights: Mapping[str, Array]
    nodes: Mapping[str, str]


@dataclass(frozen=True)
class KernelParameter:
    """What a primitive function's pointer parameter is: argument ``index`` of its call, or workspace ``index``."""

    kind: str  # "argument" | "workspace"
    index: int
    written: bool


@dataclass(frozen=True)
class Kernel:
    """A primitive function: C function ``int32_t symbol(pointers..., int64_t scalars..., [begin, end])``.

    ``extent`` is the extent of its parallel loop, iterations [begin, end) of which one call runs; None when the
    function takes no range. ``scalars`` and ``extent`` are ``tirx`` expressions over the shape variables of the
    PrimFunc that it was made from.
    """

    symbol: str
    primfunc: Any
    parameters: tuple[KernelParameter, ...]
    scalars: tuple[Any, ...]
    extent: Any | None


@dataclass(frozen=True)
class KernelGroup:
    """The kernels that together compute one PrimFunc, in order, with the workspaces that they share.

    ``parameters`` are the PrimFunc's own buffer parameters and scalars, ``workspaces`` buffers whose memory the
    plan provides.
    """

    kernels: tuple[Kernel, ...]
    parameters: tuple[Any, ...]
    workspaces: tuple[Any, ...]


@dataclass(frozen=True)
class CallSource:
    """What a call of a PrimFunc stands for: operators that were fused into it, and nodes of the source graph."""

    ops: tuple[str, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class LoweredModel:
    """A flat Relax ``main`` of calls of PrimFuncs, and the kernels of each PrimFunc by its name.

    ``constants`` are the values of main's parameters after the inputs, in order. ``call_sources`` are in call order.
    """

    source: Model
    main: Any
    groups: Mapping[str, KernelGroup]
    inputs: tuple[TensorSpec, ...]
    output_names: tuple[str, ...]
    dims: tuple[Dim, ...]
    constants: Mapping[str, Array]
    call_sources: tuple[CallSource, ...]


@dataclass(frozen=True)
class Operand:
    """Where a call's argument lies: ``input``/``output`` number ``value``, or byte offset ``value`` in the
    ``arena`` or among the ``constants``."""

    space: str
    value: int


@dataclass(frozen=True)
class Call:
    """One call of a kernel. ``scalars`` and ``extent`` are expressions over the dims."""

    symbol: str
    operands: tuple[Operand, ...]
    scalars: tuple[Extent, ...]
    extent: Extent | None
    parallel: bool


@dataclass(frozen=True)
class Copy:
    """A plain copy of ``nbytes``: an output that is an input, a constant or another output."""

    source: Operand
    destination: Operand
    nbytes: Extent


@dataclass(frozen=True)
class ConstantTable:
    """All constants of a bundle: records sorted by offset, and the arrays in the same order."""

    records: tuple[Constant, ...]
    arrays: tuple[Array, ...]
    nbytes: int


@dataclass(frozen=True)
class CallPlan:
    """Everything that the entrypoint does in one run: the flat call sequence over one statically planned arena."""

    source: Model
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    dims: tuple[Dim, ...]
    steps: tuple[Call | Copy, ...]
    kernels: tuple[Kernel, ...]
    primitives: tuple[Primitive, ...]
    arena_bytes: int
    constants: ConstantTable


@dataclass(frozen=True)
class ObjectFile:
    """An object file or archive with the symbols that it implements and the CPU features that its code uses."""

    path: Path
    symbols: tuple[str, ...]
    cpu_features: tuple[str, ...]


@dataclass(frozen=True)
class BackendOutput:
    """What one backend hands back for everything that it compiled."""

    kind: str
    static_libraries: tuple[ObjectFile, ...]
    primitives: tuple[Primitive, ...]
    toolchain: Mapping[str, str]


@dataclass(frozen=True)
class ExternalWeights:
    """The weights file that a bundle is bound to: its name, its size in bytes and the header it starts with."""

    file_name: str
    file_bytes: int
    header: bytes


@dataclass(frozen=True)
class LinkPlan:
    """Everything that goes into the linked file: objects in link order, and what the manifest tells of them."""

    plan: CallPlan
    backends: tuple[BackendOutput, ...]
    runtime: tuple[Path, ...]
    targets: tuple[dict[str, Any], ...]
    machine: str
    entry_symbol: str
    static: bool
    weights: Weights
    weights_file: ExternalWeights | None
    toolchain: Mapping[str, str]
    manifest_room: int  # bytes of the manifest section
