"""The graphs that engines of TensorRT are built from, in a bundle: ONNX models whose constants are the bundle's own.

The section ``.packager.engine_graphs``, which is not loaded, has for each graph the number of its bytes (little-endian,
64 bits) and those: a line of JSON, then the ONNX model without initializers for its constants and forms of them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packager.bundle.elf.window import open_window
from packager.bundle.manifest import CONSTANTS_SECTION
from packager.bundle.reader import BundleFile, read_section
from packager.errors import BundleError, UsageError

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

ENGINE_GRAPHS_SECTION = ".packager.engine_graphs"
_SIZE = struct.Struct("<Q")
# TensorProto.DataType of the types that constants of engines have.
_ELEMENT_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "bfloat16": 16,
}
LARGEST_MODEL = 2**31 - 1
"""Bytes of an ONNX model: what protocol buffers allow."""


Step = tuple[str, Any]
"""What is done to an array: ``("reshape", shape)``, ``("transpose", axes)``, ``("cast", dtype)``."""


@dataclass(frozen=True)
class Form:
    """An initializer that is made of a constant by steps."""

    source: str
    steps: tuple[Step, ...]

    def apply(self, array: Array) -> Array:
        """Return what the steps make of the constant. Raises ValueError for steps that there are not."""
        for name, argument in self.steps:
            if name == "reshape":
                array = array.reshape(argument)
            elif name == "transpose":
                array = array.transpose(argument)
            elif name == "cast":
                array = array.astype(argument)
            else:
                raise ValueError(f"there is no step {name!r}")
        return array

    def dtype(self, source: str) -> str:
        """Return the type of the initializer, by that of the constant."""
        return next((str(argument) for name, argument in reversed(self.steps) if name == "cast"), source)


@dataclass(frozen=True)
class EngineGraph:
    """What an engine is built from: its key, the library it is for, how, and the model that lacks its ``constants``.

    ``function`` is the symbol of the primitive function that runs it. ``forms`` are initializers of the model that are
    not constants, but made of them.
    """

    key: str
    function: str
    library: str
    settings: Mapping[str, Any]
    constants: tuple[str, ...]
    model: bytes
    forms: Mapping[str, Form] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[str, ...]:
        """The constants that the model and its forms need."""
        return tuple(dict.fromkeys([*self.constants, *(form.source for form in self.forms.values())]))

    def initializers(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return the initializers that the model lacks, by the arrays of its sources. Raises BundleError."""
        try:
            formed = {name: form.apply(arrays[form.source]) for name, form in self.forms.items()}
        except (ValueError, TypeError) as error:
            raise BundleError(
                f"the graph of engine {self.key[:12]} needs a constant in a form that it does not have: {error}",
                hint="copy the bundle again, or rebuild it",
            ) from None
        return {name: arrays[name] for name in self.constants} | formed

    def types(self, dtypes: Mapping[str, str]) -> dict[str, str]:
        """Return the types of the initializers, by those of the sources."""
        formed = {name: form.dtype(dtypes[form.source]) for name, form in self.forms.items() if form.source in dtypes}
        return {name: dtypes[name] for name in self.constants if name in dtypes} | formed


def encode_graphs(graphs: Sequence[EngineGraph]) -> bytes:
    """Return the bytes of the section."""
    parts = []
    for graph in graphs:
        facts = {
            "key": graph.key,
            "function": graph.function,
            "library": graph.library,
            "settings": dict(graph.settings),
            "constants": list(graph.constants),
            "forms": {name: [form.source, form.steps] for name, form in graph.forms.items()},
        }
        content = json.dumps(facts, sort_keys=True).encode() + b"\n" + graph.model
        parts += [_SIZE.pack(len(content)), content]
    return b"".join(parts)


def read_graphs(bundle: BundleFile) -> dict[str, EngineGraph]:
    """Return the graphs of a bundle by their keys; none if it has none. Raises BundleError."""
    if ENGINE_GRAPHS_SECTION not in bundle.elf.sections:
        return {}
    try:
        graphs = list(_decode(read_section(bundle, ENGINE_GRAPHS_SECTION)))
    except (AttributeError, ValueError, KeyError, TypeError, struct.error) as error:
        raise BundleError(
            f"{bundle.path}: {ENGINE_GRAPHS_SECTION} is damaged: {error}", hint="copy the bundle again, or rebuild it"
        ) from None
    return {graph.key: graph for graph in graphs}


def _decode(content: bytes) -> Iterator[EngineGraph]:
    place = 0
    while place < len(content):
        (size,) = _SIZE.unpack_from(content, place)
        place += _SIZE.size
        text, _, model = content[place : place + size].partition(b"\n")
        if place + size > len(content):
            raise ValueError("it is cut short")
        place += size
        facts = json.loads(text)
        constants = tuple(facts["constants"])
        forms = {name: _form(*given) for name, given in facts.get("forms", {}).items()}
        yield EngineGraph(facts["key"], facts["function"], facts["library"], facts["settings"], constants, model, forms)


def _form(source: str, steps: Sequence[Sequence[Any]]) -> Form:
    as_tuples = ((name, tuple(argument) if isinstance(argument, list) else argument) for name, argument in steps)
    return Form(source, tuple(as_tuples))


def read_constants(bundle: BundleFile, names: Sequence[str]) -> dict[str, Array]:
    """Return constants of a bundle by name, from the file or its external weights. Raises BundleError, UsageError."""
    import numpy as np  # the deploy side verifies bundles without it

    from packager.bundle.safetensors import decode_header, header_size

    known = {name: one for one in bundle.manifest.constants for name in (one.name, *one.aliases)}
    if missing := [name for name in names if name not in known]:
        raise BundleError(f"{bundle.path}: an engine's graph needs constant {missing[0]!r}, which is not there")
    path, start = bundle.path, 0
    if bundle.manifest.weights.storage == "external":
        path = bundle.path.with_name(bundle.manifest.weights.file or "")
    elif names:
        start = bundle.elf.sections[CONSTANTS_SECTION].offset
    arrays = {}
    with open_window(path) as window:
        if path != bundle.path:
            start = header_size(window.read(0, 8, "header"), window.size)
            decode_header(window.read(0, start, "header"), window.size)
        for name in names:
            one = known[name]
            data = window.read(start + one.offset, one.bytes, f"constant {name}")
            dtype = np.dtype("uint16" if one.dtype == "bfloat16" else one.dtype)
            arrays[name] = np.frombuffer(data, dtype).reshape(one.shape)
    return arrays


def with_initializers(model: bytes, arrays: Mapping[str, Array], dtypes: Mapping[str, str] | None = None) -> bytes:
    """Return an ONNX model with these initializers beside its own: messages that follow each other are merged.

    ``dtypes`` names the types of arrays that numpy has none for. Raises UsageError if it gets too large.
    """
    parts = [model]
    for name, array in arrays.items():
        dtype = (dtypes or {}).get(name, array.dtype.name)
        tensor = b"".join([*(_integer(1, extent) for extent in array.shape), _integer(2, _ELEMENT_TYPES[dtype])])
        tensor += _field(8, name.encode()) + _head(9, array.nbytes)
        data = array.tobytes()
        inner = _head(5, len(tensor) + len(data)) + tensor
        parts += [_head(7, len(inner) + len(data)), inner, data]
    if sum(map(len, parts)) > LARGEST_MODEL:
        raise UsageError(
            "a partition's weights have 2 GiB or more, more than an ONNX model can",
            hint="give the Target a -max_partition_depth, or another Target's backend the largest layers",
        )
    return b"".join(parts)


def _integer(field: int, value: int) -> bytes:
    return bytes([field << 3]) + _varint(value)


def _head(field: int, size: int) -> bytes:
    return bytes([field << 3 | 2]) + _varint(size)


def _field(field: int, value: bytes) -> bytes:
    return _head(field, len(value)) + value


def _varint(value: int) -> bytes:
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])
