"""Our reader and writer against the safetensors package, and against damaged headers."""

from __future__ import annotations

import hashlib
import io
import json
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from packager.bundle import safetensors as ours
from packager.bundle.dtypes import NARROW, PLAIN, typed
from packager.bundle.manifest import DATA_SHA256
from packager.errors import BundleError

NAMES = [name for name in PLAIN if name != "bfloat16"]


@pytest.fixture
def tensors() -> dict[str, np.ndarray[Any, Any]]:
    generator = np.random.default_rng(0)
    result = {name: generator.integers(0, 2, (3, 5)).astype(name) for name in NAMES}
    return result | {"empty": np.empty((0, 4), np.float32), "scalar": np.array(1.5), "view": np.arange(12.0)[::3]}


def test_the_package_reads_what_we_write(tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    image = ours.encode(tensors, {"key": "value"})
    read = safetensors.numpy.load(image)
    assert read.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(read[name], array, strict=True)
    stream = io.BytesIO()
    ours.write(stream, tensors, {"key": "value"})
    assert stream.getvalue() == image


def test_we_read_what_the_package_writes(tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    tensors["view"] = tensors["view"].copy()
    read = ours.decode(safetensors.numpy.save(tensors, {"key": "value"}))
    for name, array in tensors.items():
        np.testing.assert_array_equal(read[name], array, strict=True)
        assert not read[name].flags.writeable


def test_bfloat16_raw_and_with_ml_dtypes() -> None:
    values = np.array([1.0, -2.5, np.inf], ml_dtypes.bfloat16)
    image = ours.encode({"raw": values.view(np.uint16), "typed": values}, dtypes={"raw": "bfloat16"})
    for array in ours.decode(image).values():
        assert array.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(array, values)


@pytest.mark.parametrize("name", NARROW)
def test_narrow_types_have_a_byte_each(name: str) -> None:
    """Those that the format lacks or packs are held as bytes."""
    values = np.arange(4, dtype=np.uint8).view(getattr(ml_dtypes, name))
    read = ours.decode(ours.encode({"x": values}))["x"]
    assert read.dtype == (np.uint8 if NARROW[name].bits < 8 else values.dtype)
    assert typed(read, name).dtype == values.dtype
    np.testing.assert_array_equal(read.view(np.uint8), values.view(np.uint8))


def test_order_alignment_and_hash() -> None:
    tensors = {"z": np.arange(3, dtype=np.uint8), "a": np.arange(2, dtype=np.float64)}
    image = ours.encode(tensors, {DATA_SHA256: ours.data_sha256(tensors)})
    header = ours.decode_header(image, len(image))
    assert header.data_offset % 64 == 0
    assert [(entry.name, entry.offset, entry.bytes) for entry in header.entries] == [("z", 0, 3), ("a", 3, 16)]
    data = image[header.data_offset :]
    assert data == tensors["z"].tobytes() + tensors["a"].tobytes()
    assert header.metadata[DATA_SHA256] == hashlib.sha256(data).hexdigest()
    assert header.data_bytes == len(data) == 19


def test_big_endian_is_stored_little_endian() -> None:
    values = np.arange(4, dtype=">f4")
    np.testing.assert_array_equal(ours.decode(ours.encode({"x": values}))["x"], values.astype("<f4"), strict=True)
    assert ours.data_sha256({"x": values}) == ours.data_sha256({"x": values.astype("<f4")})


def test_types_that_the_format_lacks() -> None:
    with pytest.raises(ValueError, match="cannot hold 'x' of complex64"):
        ours.encode({"x": np.zeros(1, np.complex64)})
    with pytest.raises(ValueError, match="float32 does not hold bfloat16"):
        ours.encode({"x": np.zeros(1, np.float32)}, dtypes={"x": "bfloat16"})


def image(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(**changes: object) -> dict[str, object]:
    return {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]} | changes


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"{", b"", "not valid JSON"),
        ([], b"", "expected object"),
        ({"x": entry()}, b"123", "the file has 3"),
        ({"x": entry()}, b"12345", "the file has 5"),
        ({"x": entry(dtype="U9")}, b"1234", "unknown dtype"),
        ({"x": entry(shape=[5])}, b"1234", "do not fit"),
        ({"x": entry(shape=[-2, -2])}, b"1234", "none negative"),
        ({"x": entry(shape=["4"])}, b"1234", "expected integer"),
        ({"x": entry(data_offsets=[4, 8])}, b"12345678", "gap or overlap"),
        ({"x": entry(data_offsets=[0, 4, 8])}, b"1234", "two offsets"),
        ({"x": entry(data_offsets=[4, 0])}, b"1234", "do not fit"),
        ({"x": entry(), "y": entry()}, b"1234", "gap or overlap"),
        ({"x": entry(surplus=1)}, b"1234", "unknown key"),
        ({"__metadata__": {"a": 1}}, b"", "expected strings"),
        (b'{"x":1,"x":1}', b"", "twice"),
    ],
)
def test_strict_reader(header: object, data: bytes, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        ours.decode(image(header, data))


@pytest.mark.parametrize("content", [b"", b"1234567", struct.pack("<Q", 2**63), struct.pack("<Q", 10) + b"{}"])
def test_not_safetensors(content: bytes) -> None:
    with pytest.raises(BundleError, match="not a safetensors file"):
        ours.decode(content)


@given(st.data())
def test_damaged_headers_are_refused_or_read(data: st.DataObject) -> None:
    content = bytearray(ours.encode({"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": np.ones(1, np.int8)}))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 150))] = data.draw(st.integers(0, 255))
    try:
        read = ours.decode(bytes(content))
    except BundleError:
        return
    assert sum(array.nbytes for array in read.values()) == 25
