"""Writes the graph of a bundle as an ONNX file, for viewers such as Netron: its operators are the bundle's functions.

Nothing can run it. Beside the bundle, embedded weights are external data in the bundle itself, so viewers show their
values; elsewhere they are inputs. The few messages of ONNX that it takes are encoded here: the deploy side has no
package for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packager.bundle.manifest import CONSTANTS_SECTION
from packager.bundle.reader import BundleFile
from packager.deploy.report.named_graph import NamedCall, NamedRun, NamedValue
from packager.version import __version__

_IR_VERSION, _OPSET = 10, 1
_DOMAIN = "packager"
_EXTERNAL, _INT, _STRING, _STRINGS = 1, 2, 3, 8  # TensorProto.DataLocation, AttributeProto.AttributeType
_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16, "float8_e4m3fn": 17,
}  # fmt: skip


def onnx_bytes(bundle: BundleFile, runs: Sequence[NamedRun], *, beside: bool) -> bytes:
    """Return a ModelProto with the calls of all runs, for a file ``beside`` the bundle or elsewhere."""
    stored = beside and bundle.manifest.form == "shared" and CONSTANTS_SECTION in bundle.elf.sections
    calls = [call for run in runs for call in run.calls]
    domains = dict.fromkeys(map(_domain, calls))
    graph = [
        *(_bytes(1, _node(call, f"{run.label}/{number}")) for run in runs for number, call in enumerate(run.calls, 1)),
        _bytes(2, bundle.manifest.model.name),
        *(_bytes(5, _initializer(bundle, value)) for run in runs for value in run.constants if stored),
        *(
            _bytes(11, _value(value))
            for run in runs
            for value in (run.inputs if stored else (*run.inputs, *run.constants))
        ),
        *(_bytes(12, _value(value)) for run in runs for value in run.outputs),
        *(_bytes(13, _value(value)) for run in runs for value in run.values if value not in run.outputs),
    ]
    model = [
        _int(1, _IR_VERSION),
        _bytes(2, "packager"),
        _bytes(3, __version__),
        *(_bytes(8, _bytes(1, domain) + _int(2, _OPSET)) for domain in domains),
        _bytes(7, b"".join(graph)),
        _bytes(14, _bytes(1, "content_sha256") + _bytes(2, bundle.manifest.content_sha256)),
    ]
    return b"".join(model)


def _domain(call: NamedCall) -> str:
    return f"{_DOMAIN}.{call.backend}" if call.backend else _DOMAIN


def _node(call: NamedCall, name: str) -> bytes:
    operator = call.label.replace(" ", "")
    attributes = [_attribute("symbol", call.symbol), _attribute("nodes", call.nodes)]
    if call.primitive is not None:
        attributes += [
            _attribute("flops", call.primitive.flops),
            _attribute("bytes_read", call.primitive.bytes_read),
            _attribute("bytes_written", call.primitive.bytes_written),
        ]
    return b"".join(
        [
            *(_bytes(1, read) for read in call.reads),
            *(_bytes(2, written) for written in call.writes),
            _bytes(3, name),
            _bytes(4, operator),
            *(_bytes(5, attribute) for attribute in attributes),
            _bytes(7, _domain(call)),
        ]
    )


def _attribute(name: str, value: str | int | tuple[str, ...]) -> bytes:
    match value:
        case str():
            return _bytes(1, name) + _bytes(4, value) + _int(20, _STRING)
        case int():
            return _bytes(1, name) + _int(3, value) + _int(20, _INT)
    return _bytes(1, name) + b"".join(_bytes(9, item) for item in value) + _int(20, _STRINGS)


def _initializer(bundle: BundleFile, value: NamedValue) -> bytes:
    constant = value.constant
    assert constant is not None
    offset = bundle.elf.sections[CONSTANTS_SECTION].offset + constant.offset
    where = {"location": bundle.path.name, "offset": str(offset), "length": str(constant.bytes)}
    return b"".join(
        [
            *(_int(1, extent) for extent in constant.shape),
            _int(2, _TYPES.get(constant.dtype, _TYPES["uint8"])),
            _bytes(8, value.name),
            *(_bytes(13, _bytes(1, key) + _bytes(2, text)) for key, text in where.items()),
            _int(14, _EXTERNAL),
        ]
    )


def _value(value: NamedValue) -> bytes:
    """Encode a ValueInfoProto."""
    extents = value.constant.shape if value.constant else value.tensor.shape
    dims = b"".join(_bytes(1, _int(1, e) if isinstance(e, int) else _bytes(2, e)) for e in extents)
    tensor = _int(1, _TYPES.get(value.tensor.dtype, _TYPES["uint8"])) + _bytes(2, dims)
    return _bytes(1, value.name) + _bytes(2, _bytes(1, tensor))


def _int(field: int, value: int) -> bytes:
    """Encode a field of type varint."""
    return bytes([*_varint(field << 3), *_varint(value)])


def _bytes(field: int, value: bytes | str) -> bytes:
    """Encode a field of bytes, a text or a message."""
    content = value.encode() if isinstance(value, str) else value
    return bytes([*_varint(field << 3 | 2), *_varint(len(content))]) + content


def _varint(value: int) -> Iterator[int]:
    while value > 0x7F:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value
