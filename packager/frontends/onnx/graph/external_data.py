"""Detach the data of large ONNX initializers from the model; memory-map external data.

protobuf messages are copied often and limited to 2 GiB, so weights are kept outside. A detached initializer stays as a
declaration: name, type and shape, marked as external.
"""

from __future__ import annotations

import math
import mmap
import os
import warnings
from collections.abc import Container, Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from packager.bundle.arrays import Array

# Initializers above this size, in bytes, are detached; smaller ones may be shapes or axes that graph passes read.
LARGE_BYTES = 4096
# Packed elements, and those without a fixed size: numpy cannot view them.
NO_VIEWS = {getattr(TensorProto, name, None) for name in ("INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2", "STRING")}


def is_declared(tensor: TensorProto) -> bool:
    """Tell whether an initializer is a declaration, without data in the model."""
    return bool(external_data_helper.uses_external_data(tensor))


def all_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Return the tensors of a model: initializers and attributes, including those of subgraphs."""
    tensors: Iterator[TensorProto] = external_data_helper._get_all_tensors(model)
    return tensors


def declaration(name: str, data_type: int, shape: tuple[int, ...]) -> TensorProto:
    """Return an initializer without data."""
    return TensorProto(name=name, data_type=data_type, dims=shape, data_location=TensorProto.EXTERNAL)


def detach_large(graph: onnx.GraphProto) -> dict[str, Array]:
    """Return the data of large initializers by name, and leave declarations in the graph.

    Raises ValueError if the data size does not match the shape.
    """
    arrays: dict[str, Array] = {}
    for tensor in graph.initializer:
        if is_declared(tensor) or not _is_large(tensor):
            continue
        try:
            arrays[tensor.name] = numpy_helper.to_array(tensor)
        except (ValueError, TypeError) as error:
            raise ValueError(f"initializer {tensor.name!r}: {error}") from None
        tensor.CopyFrom(declaration(tensor.name, tensor.data_type, tuple(tensor.dims)))
    return arrays


def read_external(model: onnx.ModelProto, folder: Path, taken: Container[str]) -> dict[str, Array]:
    """Read external data: return large initializers as read-only views of mapped files, and leave declarations; copy
    small ones into the model.

    ``taken`` names initializers that are declarations already. Raises OSError; ValueError for a range outside its file
    or of the wrong size for the shape; onnx's ValidationError for a file outside ``folder``.
    """
    files: dict[str, Array] = {}
    arrays: dict[str, Array] = {}
    for tensor in model.graph.initializer:
        if tensor.external_data and is_declared(tensor) and _is_large(tensor):
            arrays[tensor.name] = _view(tensor, folder, files)
            tensor.CopyFrom(declaration(tensor.name, tensor.data_type, tuple(tensor.dims)))
    for tensor in all_tensors(model):
        if is_declared(tensor) and tensor.name not in taken and tensor.name not in arrays:
            external_data_helper.load_external_data_for_tensor(tensor, str(folder))
    return arrays


def _is_large(tensor: TensorProto) -> bool:
    """Tell whether an initializer is large, by its shape; elements that numpy cannot view count as small."""
    if tensor.data_type not in helper.get_all_tensor_dtypes() or tensor.data_type in NO_VIEWS:
        return False
    return _nbytes(tensor) > LARGE_BYTES


def _nbytes(tensor: TensorProto) -> int:
    """Return the size in bytes, by shape and type."""
    return math.prod(map(int, tensor.dims)) * int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _view(tensor: TensorProto, folder: Path, files: dict[str, Array]) -> Array:
    """Return a view of the external data of a tensor. ``files`` caches mapped files by location."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about unknown keys
        info = external_data_helper.ExternalDataInfo(tensor)
    if info.location not in files:
        descriptor = external_data_helper._open_external_data_fd(str(folder), info.location, tensor.name, True)
        files[info.location] = _mapped(descriptor)
    file, start = files[info.location], info.offset or 0
    length = file.size - start if info.length is None else info.length
    nbytes = _nbytes(tensor)
    if length != nbytes or start + length > file.size:
        raise ValueError(
            f"initializer {tensor.name!r} has {nbytes} bytes, its data are bytes {start} to {start + length} of "
            f"{info.location!r}, which has {file.size}"
        )
    array: Array = file[start : start + nbytes].view(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    return array.reshape(tuple(tensor.dims))


def _mapped(descriptor: int) -> Array:
    """Map a file as an array of bytes, and close the descriptor."""
    try:
        if os.fstat(descriptor).st_size == 0:
            return np.empty(0, np.uint8)
        return np.frombuffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), np.uint8)
    finally:
        os.close(descriptor)
