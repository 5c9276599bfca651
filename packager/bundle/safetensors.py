"""Reads and writes safetensors files, strictly: header length (u64), JSON header, tensor data without gaps.

Element types: ``packager.bundle.dtypes``. bfloat16 is raw uint16 unless ml_dtypes is installed.
Source of the format: the README of huggingface/safetensors.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from packager.bundle import strict_json
from packager.bundle.dtypes import BY_SAFETENSORS, DTYPES, storage_dtype
from packager.bundle.hashing import chunks, sha256
from packager.bundle.manifest import ALIGNMENT
from packager.errors import BundleError

MAX_HEADER = 100_000_000
_METADATA = "__metadata__"
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Entry:
    """A tensor of a file; ``offset`` is in bytes from the start of the tensor data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int


@dataclass(frozen=True)
class Header:
    """The decoded header; the data starts at byte ``data_offset`` of the file."""

    entries: tuple[Entry, ...]
    metadata: dict[str, str]
    data_offset: int

    @property
    def data_bytes(self) -> int:
        """Size of the tensor data."""
        return sum(entry.bytes for entry in self.entries)


def _stored(tensors: Mapping[str, NDArray[Any]], dtypes: Mapping[str, str] | None) -> Iterator[tuple[str, str, Any]]:
    """Yield (name, dtype name, little-endian array)."""
    for name, array in tensors.items():
        dtype = (dtypes or {}).get(name) or array.dtype.name
        if name == _METADATA or dtype not in DTYPES:
            raise ValueError(f"safetensors cannot hold {name!r} of {dtype}")
        if array.dtype.itemsize != DTYPES[dtype].itemsize:
            raise ValueError(f"{name!r}: {array.dtype} does not hold {dtype}")
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))  # noqa: PLW2901
        yield name, dtype, array


def _data(tensors: Mapping[str, NDArray[Any]], dtypes: Mapping[str, str] | None) -> Iterator[memoryview]:
    for _, _, array in _stored(tensors, dtypes):
        yield from chunks(array)


def encode_header(
    tensors: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, str] | None = None,
    dtypes: Mapping[str, str] | None = None,
) -> bytes:
    """Encode length prefix and JSON header, padded with blanks to a multiple of ALIGNMENT bytes.

    ``dtypes`` names the element types that the arrays' numpy dtypes do not (bfloat16 in uint16).
    Raises ValueError for an element type that the format lacks.
    """
    header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    offset = 0
    for name, dtype, array in _stored(tensors, dtypes):
        end = offset + array.nbytes
        header[name] = {
            "dtype": DTYPES[dtype].safetensors,
            "shape": list(array.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = strict_json.canonical(header)
    size = -(-(_LENGTH.size + len(text)) // ALIGNMENT) * ALIGNMENT - _LENGTH.size
    return _LENGTH.pack(size) + text.ljust(size, b" ")


def write(
    stream: BinaryIO,
    tensors: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, str] | None = None,
    dtypes: Mapping[str, str] | None = None,
) -> None:
    """Stream a file, without copying all tensors at once. Raises ValueError, OSError."""
    stream.write(encode_header(tensors, metadata, dtypes))
    for part in _data(tensors, dtypes):
        stream.write(part)


def encode(
    tensors: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, str] | None = None,
    dtypes: Mapping[str, str] | None = None,
) -> bytes:
    """Return the bytes of a file; see encode_header."""
    return b"".join([encode_header(tensors, metadata, dtypes), *_data(tensors, dtypes)])


def data_sha256(tensors: Mapping[str, NDArray[Any]]) -> str:
    """Return the hex SHA-256 of all tensor bytes in this order."""
    return sha256(_data(tensors, None))


def header_size(prefix: bytes, file_size: int) -> int:
    """Return the offset of the data, given the first 8 bytes of a file. Raises BundleError."""
    if len(prefix) < _LENGTH.size:
        raise BundleError("not a safetensors file: shorter than its header's length")
    (size,) = _LENGTH.unpack_from(prefix)
    if size > MAX_HEADER or _LENGTH.size + size > file_size:
        raise BundleError("not a safetensors file, or cut short: its header does not fit in it")
    return _LENGTH.size + int(size)


def decode_header(header: bytes, file_size: int) -> Header:
    """Decode ``header``, the bytes before the data. ``file_size`` is in bytes.

    Raises BundleError for unknown keys or dtypes, wrong sizes, gaps, overlaps and missing or surplus bytes.
    """
    data_offset = header_size(header, file_size)
    try:
        value = strict_json.parse(header[_LENGTH.size : data_offset])
        if not isinstance(value, dict):
            raise strict_json.MismatchError("$", "expected object")
        metadata = value.pop(_METADATA, {})
        if not isinstance(metadata, dict) or not all(isinstance(item, str) for item in metadata.values()):
            raise strict_json.MismatchError(f"$.{_METADATA}", "expected strings")
        entries = sorted(
            (_entry(name, item) for name, item in value.items()), key=lambda entry: (entry.offset, entry.bytes)
        )
        _check_layout(entries, file_size - data_offset)
    except strict_json.MismatchError as mismatch:
        raise BundleError(f"damaged safetensors header: {mismatch}") from None
    return Header(tuple(entries), metadata, data_offset)


@dataclass(frozen=True)
class _JsonEntry:
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, ...]


def _entry(name: str, value: Any) -> Entry:
    path = f"$.{name}"
    item = strict_json.read(_JsonEntry, value, path)
    if item.dtype not in BY_SAFETENSORS:
        raise strict_json.MismatchError(f"{path}.dtype", f"unknown dtype {strict_json.shown(item.dtype)}")
    if len(item.data_offsets) != 2 or min((*item.shape, *item.data_offsets)) < 0 or len(item.shape) > 32:
        raise strict_json.MismatchError(path, "expected two offsets and at most 32 extents, none negative")
    dtype = BY_SAFETENSORS[item.dtype]
    begin, end = item.data_offsets
    if end - begin != math.prod(item.shape) * dtype.itemsize:
        raise strict_json.MismatchError(f"{path}.data_offsets", "do not fit the dtype and the shape")
    return Entry(name, dtype.name, item.shape, begin, end - begin)


def _check_layout(entries: Iterable[Entry], data_bytes: int) -> None:
    end = 0
    for entry in entries:
        if entry.offset != end:
            raise strict_json.MismatchError(f"$.{entry.name}.data_offsets", "leave a gap or overlap another tensor")
        end += entry.bytes
    if end != data_bytes:
        raise strict_json.MismatchError("$", f"describes {end} bytes of data, the file has {data_bytes}")


def decode(image: bytes | memoryview) -> dict[str, NDArray[Any]]:
    """Return the tensors of a file's bytes as read-only arrays that share its memory. Raises BundleError."""
    view = memoryview(image)
    data_offset = header_size(bytes(view[:8]), len(view))
    header = decode_header(bytes(view[:data_offset]), len(view))
    result = {}
    for entry in header.entries:
        start = header.data_offset + entry.offset
        raw = np.frombuffer(view[start : start + entry.bytes], np.uint8)
        array = raw.view(storage_dtype(entry.dtype)) if entry.bytes else np.empty(0, storage_dtype(entry.dtype))
        array = array.reshape(entry.shape)
        array.flags.writeable = False
        result[entry.name] = array
    return result
