"""DLTensor views of numpy arrays and of objects with ``__dlpack__``, without copies where possible."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from packager.deploy.abi import (
    ARGUMENT,
    CONSTANT,
    CPU_DEVICES,
    DEVICE,
    DTYPE,
    HINTS,
    LAYOUT,
    DLDataType,
    DLDevice,
    DLTensor,
)
from packager.dtypes import BY_DLPACK, DTYPES, bfloat16_dtype
from packager.errors import RunError

_NAMES = {ARGUMENT: "ARGUMENT", DTYPE: "DTYPE", DEVICE: "DEVICE", LAYOUT: "LAYOUT", CONSTANT: "CONSTANT"}
_FLAG_READ_ONLY = 1

_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.argtypes, _capsule_is.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p


class _VersionedHead(ctypes.Structure):
    """DLManagedTensorVersioned (DLPack 1.x)."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


@dataclass(frozen=True)
class Borrowed:
    """A DLTensor and what keeps its memory alive; valid as long as this object is."""

    tensor: DLTensor
    keeper: object


def refuse(status: int, message: str, hint: str | None = None) -> RunError:
    """Return the error for an argument that is refused before the bundle is called."""
    return RunError(message, status=status, name=f"PACKAGER_ERROR_{_NAMES[status]}", hint=hint or HINTS[status])


def dtype_name(tensor: DLTensor) -> str:
    """Return the name of a DLTensor's element type; for those that packager lacks a description."""
    known = BY_DLPACK.get((tensor.dtype.code, tensor.dtype.bits)) if tensor.dtype.lanes == 1 else None
    return known.name if known else f"DLPack type {tensor.dtype.code}/{tensor.dtype.bits}x{tensor.dtype.lanes}"


def borrow(value: Any, name: str, expected: str, *, writable: bool) -> Borrowed:
    """Return a view of a numpy array or DLPack object as tensor ``name`` of element type ``expected``.

    Inputs that are numpy arrays with gaps or misaligned are copied; outputs (``writable``) never. Raises RunError
    for another element type, byte order, device, or something that is not a tensor.
    """
    if isinstance(value, np.ndarray):
        return _from_numpy(value, name, expected, writable)
    if not hasattr(value, "__dlpack__") or not hasattr(value, "__dlpack_device__"):
        message = f"tensor {name!r} is {type(value).__name__}, neither a numpy array nor an object with __dlpack__"
        raise refuse(ARGUMENT, message, "convert it with numpy.asarray(value, dtype)")
    return _from_dlpack(value, name, expected, writable)


@functools.cache
def _numpy_dtype(name: str) -> np.dtype[Any] | None:
    return bfloat16_dtype() if name == "bfloat16" else np.dtype(name)


def _from_numpy(array: np.ndarray[Any, Any], name: str, expected: str, writable: bool) -> Borrowed:
    native = _numpy_dtype(expected)
    if native is None or array.dtype != native:  # numpy says that float64 == None
        if array.dtype.byteorder == ">":
            hint = 'convert it with array.astype(array.dtype.newbyteorder("="))'
            raise refuse(DTYPE, f"tensor {name!r} has big-endian elements", hint)
        raise refuse(DTYPE, f"tensor {name!r} has dtype {array.dtype.name}, expected {expected}")
    if writable:
        if not array.flags.writeable:
            raise refuse(ARGUMENT, f"output {name!r} is read-only", "give an array that can be written to")
        if not array.flags.c_contiguous:
            raise refuse(LAYOUT, f"output {name!r} is not contiguous", "give a contiguous array")
    elif not (array.flags.c_contiguous and array.flags.aligned):
        array = array.copy(order="C")
    dtype = DTYPES[expected]
    shape = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
    tensor = DLTensor(
        array.ctypes.data, DLDevice(1, 0), array.ndim, DLDataType(dtype.code, dtype.bits, 1), shape, None, 0
    )
    return Borrowed(tensor, (array, shape))


def _from_dlpack(value: Any, name: str, expected: str, writable: bool) -> Borrowed:
    try:
        device = int(value.__dlpack_device__()[0])
        if device not in CPU_DEVICES:
            raise refuse(DEVICE, f"tensor {name!r} is on DLPack device {device}, not in host memory")
        try:
            capsule = value.__dlpack__(max_version=(1, 0))
        except TypeError:  # an object from before DLPack 1.0
            capsule = value.__dlpack__()
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        # torch refuses tensors that require grad or are conjugated, numpy-likes read-only ones.
        raise refuse(
            ARGUMENT, f"tensor {name!r} cannot be shared through DLPack: {error}", "detach or copy it"
        ) from None
    # The capsule is not consumed: its destructor then releases the tensor when the last reference goes.
    if _capsule_is(capsule, b"dltensor_versioned"):
        head = _VersionedHead.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if head.major != 1:
            raise refuse(ARGUMENT, f"tensor {name!r} comes as DLPack {head.major}.{head.minor}, not 1.x")
        if writable and head.flags & _FLAG_READ_ONLY:
            raise refuse(ARGUMENT, f"output {name!r} is read-only", "give a tensor that can be written to")
        tensor = head.tensor
    elif _capsule_is(capsule, b"dltensor"):
        tensor = DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    else:
        raise refuse(ARGUMENT, f"tensor {name!r}: __dlpack__ did not return a DLPack capsule")
    if dtype_name(tensor) != expected:
        raise refuse(DTYPE, f"tensor {name!r} has dtype {dtype_name(tensor)}, expected {expected}")
    return Borrowed(tensor, (capsule, value))


def empty(name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return a new array for output ``name``. Raises RunError for bfloat16 without ml_dtypes."""
    if dtype != "bfloat16":
        return np.empty(shape, dtype)
    bfloat16 = bfloat16_dtype()
    if bfloat16 is None:
        hint = "pip install ml_dtypes, or pass outputs= with tensors of a library that has bfloat16"
        raise refuse(DTYPE, f"output {name!r} is bfloat16, which numpy lacks", hint)
    return np.empty(shape, bfloat16)
