"""The manifest of a bundle (``docs/bundle-format.md``): its dataclasses and JSON text.

The dataclasses are the only definition: ``manifest_schema`` and the strict reader derive from them. Sizes are in bytes,
shapes in elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from packager.bundle import shape_expr, strict_json
from packager.bundle.fields import Count, DTypeName, FileName, Identifier, Name, Sha256, Symbol, TargetValue
from packager.bundle.origin import Provenance, RandomNode
from packager.bundle.requirements import Requirements
from packager.bundle.selection import PlacementChoice, PlacementRecord, Selection
from packager.bundle.strict_json import HasKey, Range, Unique

SCHEMA_VERSION: Literal[1] = 1
ABI_VERSION: Literal[1] = 1
ENTRY_SYMBOL = "packager_bundle_v1"  # of a shared library
DATA_SHA256 = "packager.data_sha256"  # key in the metadata of an external weights file
ALIGNMENT = 64
"""Alignment in bytes of each embedded constant, and of the data of an external weights file."""

SECTION_NAME = ".packager.manifest"
CONSTANTS_SECTION = ".packager.constants"
GOLDEN_SECTION = ".packager.golden"
SELECTION_SECTION = ".packager.selection"
LIBRARIES_SECTION = ".packager.libraries"
GRAPH_SECTION = ".packager.graph"


@dataclass(frozen=True)
class Model:
    """The compiled model file; ``opset`` maps ONNX domains to versions and is empty for other formats. ``random`` are
    its nodes that draw random numbers."""

    name: Name
    format: Name
    sha256: Sha256
    opset: dict[str, Count]
    producer: str | None
    random: Annotated[tuple[RandomNode, ...], Unique("node")] = ()


@dataclass(frozen=True)
class Dim:
    """A symbolic dim and its inclusive bounds; ``buckets``, if any, are its only sizes, rising, each compiled apart."""

    name: Identifier
    min: Count
    max: Count
    buckets: Annotated[tuple[Count, ...], Unique()] = ()


@dataclass(frozen=True)
class RunTimeExtent:
    """An extent that a run computes from data: from 0 to ``bound``, an integer or an expression over the dims and the
    run-time extents before it. ``node`` is the source graph's node whose result has it."""

    name: Identifier
    bound: Count | str
    node: str

    @property
    def parameter(self) -> str:
        """Name of main's parameter that has the extent as its shape; it is removed by the planner."""
        return f"{self.name}.run_time"

    @property
    def result(self) -> str:
        """Name of main's result that holds the extent's value; it is removed by the planner."""
        return f"{self.name}.value"


@dataclass(frozen=True)
class RunPart:
    """Part of a run of a CUDA bundle that is no CUDA graph as a whole.

    ``graph``: calls ``first`` to ``last``, numbered from 1, are a CUDA graph, one for each value of ``extents``.
    ``launches``: these calls are launched. ``wait``: the host waits to read ``extents``, or whether a loop goes on if
    there are none. ``repeated``: in a loop that the host repeats.
    """

    kind: Literal["graph", "launches", "wait"]
    first: Count = 0
    last: Count = 0
    extents: tuple[Identifier, ...] = ()
    repeated: bool = False


@dataclass(frozen=True)
class TensorSpec:
    """A model input or output; each extent is an integer, a dim, or (outputs only) an expression over dims and run-time
    extents. ``labels`` (outputs only) are names of classes: element ``i`` names the class ``i`` of an output of
    integers, and column ``i`` of a matrix of scores."""

    name: Name
    dtype: DTypeName
    shape: tuple[Count | str, ...]
    labels: tuple[str, ...] = ()

    def extents(self, dims: dict[str, int]) -> tuple[int, ...]:
        """Evaluate the shape for these values of the dims. Raises ShapeExpressionError."""
        return tuple(extent if isinstance(extent, int) else shape_expr.evaluate(extent, dims) for extent in self.shape)


@dataclass(frozen=True)
class StateSpec:
    """A tensor that a session keeps between runs: the model's input ``name``, updated by its output ``output``. It is
    stored at byte ``offset`` of the session's state memory. ``initial`` names the constant with its initial value; null
    means zeros."""

    name: Name
    output: Name
    dtype: DTypeName
    shape: tuple[Count, ...]
    offset: Count
    bytes: Count
    initial: Name | None


@dataclass(frozen=True)
class Entry:
    """One of several models of a bundle; ``states`` are the bundle's states that it reads or writes."""

    name: Name
    model: Model
    dims: Annotated[tuple[Dim, ...], Unique("name")]
    inputs: Annotated[tuple[TensorSpec, ...], Unique("name")]
    outputs: Annotated[tuple[TensorSpec, ...], Unique("name")]
    states: Annotated[tuple[Name, ...], Unique()]
    extents: Annotated[tuple[RunTimeExtent, ...], Unique("name")] = ()
    parts: tuple[RunPart, ...] = ()


@dataclass(frozen=True)
class Primitive:
    """A primitive function; ``flops`` and bytes are per call, with the dims at their maxima.

    ``levels`` are the CPU levels above the lowest that it has a clone for; ``libraries`` are the symbols of those of
    ``requirements`` that it calls.
    """

    symbol: Symbol
    composite: str | None
    ops: tuple[str, ...]
    nodes: tuple[str, ...]
    flops: Count
    bytes_read: Count
    bytes_written: Count
    calls: Count
    levels: Annotated[tuple[Name, ...], Unique()] = ()
    libraries: Annotated[tuple[Identifier, ...], Unique()] = ()


@dataclass(frozen=True)
class StaticLibrary:
    """A linked object or archive; ``members`` are the archive members that were linked."""

    name: Name
    sha256: Sha256
    members: tuple[Name, ...]


@dataclass(frozen=True)
class BackendRecord:
    """The primitive functions and libraries that one backend contributed."""

    kind: Name
    primitives: tuple[Primitive, ...]
    static_libraries: tuple[StaticLibrary, ...]


@dataclass(frozen=True)
class Constant:
    """A constant; ``offset`` is relative to the start of the constants section or of the external file's data.

    ``sources`` are the model's constants it derives from at build time: itself, or the inputs of constant folding;
    empty for constants that no model contains, such as a backend's table.
    """

    name: Name
    aliases: tuple[Name, ...]
    sources: Annotated[tuple[Name, ...], Unique()]
    dtype: DTypeName
    shape: tuple[Count, ...]
    offset: Count
    bytes: Count
    sha256: Sha256


@dataclass(frozen=True)
class Weights:
    """Where the constants are stored; ``bytes`` includes padding; ``file`` is set for external weights only."""

    storage: Literal["embedded", "external", "none"]
    bytes: Count
    file: FileName | None
    file_sha256: Sha256 | None


@dataclass(frozen=True)
class Sizes:
    """Sizes in bytes of the whole file, its executable sections, and its constants section."""

    file: Count
    code: Count
    constants: Count


@dataclass(frozen=True)
class License:
    """A component with code or data in the bundle, and its SPDX license expression."""

    component: Name
    spdx: Name


@dataclass(frozen=True)
class Golden:
    """The golden section: ``cases`` input/output pairs that the bundle must reproduce within the tolerances."""

    cases: Annotated[int, Range(1, 2**31 - 1)]
    rtol: Annotated[float, Range(0)]
    atol: Annotated[float, Range(0)]
    bytes: Count
    sha256: Sha256


@dataclass(frozen=True)
class Manifest:
    """Describes a bundle completely, without executing it.

    ``dims``, ``inputs``, ``outputs``, ``extents`` and ``parts`` repeat those of the first entry; ``entries`` is empty
    in a bundle of one model. Bundles of before 0.1.0 have no ``provenance``, no ``extents`` and no ``parts``.
    ``placement`` is null where it was not measured.
    """

    schema_version: Literal[1]
    packager_version: Name
    abi_version: Literal[1]
    form: Literal["shared", "static"]
    content_sha256: Sha256
    model: Model
    dims: Annotated[tuple[Dim, ...], Unique("name")]
    inputs: Annotated[tuple[TensorSpec, ...], Unique("name")]
    outputs: Annotated[tuple[TensorSpec, ...], Unique("name")]
    states: Annotated[tuple[StateSpec, ...], Unique("name")]
    entries: Annotated[tuple[Entry, ...], Unique("name")]
    targets: tuple[Annotated[dict[str, TargetValue], HasKey("kind")], ...]
    backends: Annotated[tuple[BackendRecord, ...], Unique("kind")]
    constants: tuple[Constant, ...]
    weights: Weights
    arena_bytes: Count
    requirements: Requirements
    sizes: Sizes
    toolchain: dict[str, str]
    licenses: tuple[License, ...]
    selection: Annotated[tuple[Selection, ...], Unique("symbol")]
    golden: Golden | None
    provenance: Provenance | None = None
    extents: Annotated[tuple[RunTimeExtent, ...], Unique("name")] = ()
    parts: tuple[RunPart, ...] = ()
    placement: PlacementRecord | None = None

    def to_json(self) -> bytes:
        """Return the canonical JSON text, without padding."""
        return strict_json.canonical(asdict(self))

    def every_entry(self) -> tuple[Entry, ...]:
        """Return the bundle's entries; a bundle of one model has one, named like the model."""
        states = tuple(state.name for state in self.states)
        tensors = self.dims, self.inputs, self.outputs
        first = Entry(self.model.name, self.model, *tensors, states, self.extents, self.parts)
        return self.entries or (first,)

    @property
    def choices(self) -> tuple[PlacementChoice, ...]:
        """The regions that it has several alternatives of."""
        return self.placement.choices if self.placement else ()

    def digits(self) -> bytes:
        """Return the bytes of the selection section."""
        return bytes([*(choice.chosen for choice in self.choices), *(entry.chosen for entry in self.selection)])

    def primitives(self) -> Iterator[tuple[str, Primitive]]:
        """Return (backend kind, primitive) for all primitives."""
        return ((backend.kind, primitive) for backend in self.backends for primitive in backend.primitives)


def manifest_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the manifest."""
    return strict_json.schema(Manifest, "urn:packager:manifest:1")
