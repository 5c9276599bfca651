"""Writes an ONNX file, with its initializers inside or in a safetensors file beside it.

ONNX lets initializers be bytes of any file: as those of a safetensors file they can be read by name without ONNX, and
``packager build --constants`` takes the file.
"""

from __future__ import annotations

from typing import Any, BinaryIO

import numpy as np
import onnx
from onnx import TensorProto, helper

from packager.bundle import safetensors
from packager.bundle.manifest import DATA_SHA256
from packager.emit.graph_writer import ELEMENT_TYPES
from packager.emit.onnx import PRODUCER, WrittenModel
from packager.errors import ModelError

EMBEDDED_LIMIT = 2**31 - 2**24
"""Bytes of initializers that a file holds: protocol buffers have less than 2 GiB."""
_EMBEDDED_ANYWAY = 1024  # bytes: shapes and scalars, which tools want to see in the model


def check(written: WrittenModel) -> None:
    """Check the model against the standard: operators, element types, shapes. Raises ModelError."""
    model = onnx.ModelProto()
    model.CopyFrom(written.proto)
    for name, array in written.arrays.items():  # as inputs, since only their types matter
        model.graph.input.append(helper.make_tensor_value_info(name, ELEMENT_TYPES[array.dtype.name], array.shape))
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(
            "ONNX does not have an operator for these element types or shapes",
            detail=str(error)[:400],
            hint="packager build compiles the model; only the export does not have it",
        ) from None


def tensor_of(name: str, array: Any) -> TensorProto:
    """Return an initializer without its data."""
    dtype = array.dtype.name
    return TensorProto(name=name, data_type=ELEMENT_TYPES[dtype], dims=array.shape)


def with_data(written: WrittenModel) -> onnx.ModelProto:
    """Return the model with its initializers inside."""
    model = onnx.ModelProto()
    model.CopyFrom(written.proto)
    for name, array in written.arrays.items():
        tensor = tensor_of(name, array)
        tensor.raw_data = _bytes(array)
        model.graph.initializer.append(tensor)
    return model


def with_external_data(written: WrittenModel, location: str) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return the model, whose larger initializers are in the file ``location``, and what ``write_weights`` writes."""
    outside = {name: array for name, array in written.arrays.items() if array.nbytes > _EMBEDDED_ANYWAY}
    header = safetensors.encode_header(outside, _metadata(outside))
    offset = len(header)
    model = onnx.ModelProto()
    model.CopyFrom(written.proto)
    for name, array in written.arrays.items():
        tensor = tensor_of(name, array)
        if name in outside:
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", location), ("offset", offset), ("length", array.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            offset += array.nbytes
        else:
            tensor.raw_data = _bytes(array)
        model.graph.initializer.append(tensor)
    return model, outside


def write_weights(stream: BinaryIO, outside: dict[str, Any]) -> None:
    """Write the file that ``with_external_data`` refers to."""
    safetensors.write(stream, outside, _metadata(outside))


def _metadata(outside: dict[str, Any]) -> dict[str, str]:
    return {DATA_SHA256: safetensors.data_sha256(outside)}


def _bytes(array: Any) -> bytes:
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def is_packagers(start: bytes) -> bool:
    """Whether a file that starts so is an ONNX model that packager wrote, or empty."""
    # Fields come in the order of their numbers: ir_version, a varint, then producer_name.
    named = b"\x12" + bytes([len(PRODUCER)]) + PRODUCER.encode()
    return not start or (start[:1] == b"\x08" and start[2:].startswith(named))
