"""The manifest of a bundle (``docs/bundle-format.md``): its dataclasses and JSON text.

The dataclasses are the definition; ``manifest_schema`` and the strict reader follow from them. Sizes are in
bytes, shapes in elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from packager.bundle import shape_expr, strict_json
from packager.bundle.fields import Count, DTypeName, FileName, Identifier, Name, Sha256, Symbol, TargetValue
from packager.bundle.requirements import Requirements
from packager.bundle.strict_json import HasKey, Range, Unique

SCHEMA_VERSION: Literal[1] = 1
ABI_VERSION: Literal[1] = 1
ENTRY_SYMBOL = "packager_bundle_v1"  # of a shared library
ALIGNMENT = 64
"""Of each embedded constant and of the data of an external weights file, in bytes."""

SECTION_NAME = ".packager.manifest"
CONSTANTS_SECTION = ".packager.constants"
GOLDEN_SECTION = ".packager.golden"
SELECTION_SECTION = ".packager.selection"


@dataclass(frozen=True)
class Model:
    """The model file that was compiled; ``opset`` maps ONNX domains to versions and is empty for other formats."""

    name: Name
    format: Name
    sha256: Sha256
    opset: dict[str, Count]
    producer: str | None


@dataclass(frozen=True)
class Dim:
    """A symbolic dim and its bounds, both inclusive. With ``buckets`` these are the sizes that it can have, in rising
    order, and each has code of its own."""

    name: Identifier
    min: Count
    max: Count
    buckets: Annotated[tuple[Count, ...], Unique()] = ()


@dataclass(frozen=True)
class TensorSpec:
    """A model input or output; each extent is an integer, a dim or (outputs) an expression over dims."""

    name: Name
    dtype: DTypeName
    shape: tuple[Count | str, ...]

    def extents(self, dims: dict[str, int]) -> tuple[int, ...]:
        """Return the shape for these values of the dims. Raises ShapeExpressionError."""
        return tuple(extent if isinstance(extent, int) else shape_expr.evaluate(extent, dims) for extent in self.shape)


@dataclass(frozen=True)
class StateSpec:
    """A tensor that a session keeps between runs: the model's input ``name``, of which its output ``output`` is the
    next value. It lies ``offset`` bytes into the session's memory for states.

    ``initial`` is the constant that it begins with; null: zeros.
    """

    name: Name
    output: Name
    dtype: DTypeName
    shape: tuple[Count, ...]
    offset: Count
    bytes: Count
    initial: Name | None


@dataclass(frozen=True)
class Entry:
    """One of several models of a bundle; ``states`` are those of the bundle's states that it reads or writes."""

    name: Name
    model: Model
    dims: Annotated[tuple[Dim, ...], Unique("name")]
    inputs: Annotated[tuple[TensorSpec, ...], Unique("name")]
    outputs: Annotated[tuple[TensorSpec, ...], Unique("name")]
    states: Annotated[tuple[Name, ...], Unique()]


@dataclass(frozen=True)
class Primitive:
    """A primitive function; ``flops`` and bytes are per call, at the maxima of the dims.

    ``levels`` are the CPU levels, beside the least, that it has a form of its own for.
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


@dataclass(frozen=True)
class Selection:
    """A primitive function that the bundle has several candidates for, or one that was chosen by measurement.

    Candidate number ``chosen`` is used; this entry's byte of the selection section is that number. ``problem`` and
    ``revision`` are what measurements are kept by (``docs/tuning.md``).
    """

    symbol: Symbol
    problem: Name
    revision: Name
    candidates: Annotated[tuple[Name, ...], Unique()]
    chosen: Count


@dataclass(frozen=True)
class StaticLibrary:
    """An object or archive that was linked in; ``members`` are those of the archive that were."""

    name: Name
    sha256: Sha256
    members: tuple[Name, ...]


@dataclass(frozen=True)
class BackendRecord:
    """What one backend compiled."""

    kind: Name
    primitives: tuple[Primitive, ...]
    static_libraries: tuple[StaticLibrary, ...]


@dataclass(frozen=True)
class Constant:
    """A constant; ``offset`` counts from the start of the constants section or of the external file's data.

    ``sources`` are the model's constants that it, under whichever of its names, comes from: itself, or what it was
    computed from at build time; empty for what is in no model, such as a backend's table.
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
    """Where the constants are; ``bytes`` spans them with padding; the file is named only if external."""

    storage: Literal["embedded", "external", "none"]
    bytes: Count
    file: FileName | None
    file_sha256: Sha256 | None


@dataclass(frozen=True)
class Sizes:
    """Bytes of the whole file, of its executable sections, and of its constants section."""

    file: Count
    code: Count
    constants: Count


@dataclass(frozen=True)
class License:
    """A component whose code or data is in the bundle, and its SPDX license expression."""

    component: Name
    spdx: Name


@dataclass(frozen=True)
class Golden:
    """The golden section: ``cases`` input/output pairs that the model must reproduce within the tolerances."""

    cases: Annotated[int, Range(1, 2**31 - 1)]
    rtol: Annotated[float, Range(0)]
    atol: Annotated[float, Range(0)]
    bytes: Count
    sha256: Sha256


@dataclass(frozen=True)
class Manifest:
    """All that is known about a bundle without executing it.

    ``dims``, ``inputs`` and ``outputs`` are those of the first of its ``entries``, of which there are none in the
    bundle of one model.
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

    def to_json(self) -> bytes:
        """Return the canonical JSON text, without padding."""
        return strict_json.canonical(asdict(self))

    def every_entry(self) -> tuple[Entry, ...]:
        """Return the models of the bundle; that of one model is its only entry, by the model's name."""
        states = tuple(state.name for state in self.states)
        return self.entries or (Entry(self.model.name, self.model, self.dims, self.inputs, self.outputs, states),)

    def primitives(self) -> Iterator[tuple[str, Primitive]]:
        """Yield (backend kind, primitive) for all primitives."""
        for backend in self.backends:
            for primitive in backend.primitives:
                yield backend.kind, primitive


def manifest_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the manifest."""
    return strict_json.schema(Manifest, "urn:packager:manifest:1")
