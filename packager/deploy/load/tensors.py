"""DLTensor views of numpy arrays and objects with ``__dlpack__``, without copies where possible."""

from __future__ import annotations

import ctypes
import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from packager.bundle.dtypes import DTYPES, NARROW, extension_dtype, is_raw, storage_dtype
from packager.deploy.load.abi import (
    CPU_DEVICES,
    CUDA_DEVICES,
    CUDA_HOST,
    DLDataType,
    DLDevice,
    DLTensor,
    Status,
    dtype_name,
    refuse,
)

_FLAG_READ_ONLY = 1
FLAG_PADDED = 4  # sub-byte elements are padded to a byte each, not packed

_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.argtypes, _capsule_is.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p


class VersionedTensor(ctypes.Structure):
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
    """A DLTensor and the owner of its memory; valid as long as this object."""

    tensor: DLTensor
    keeper: object


@dataclass(frozen=True)
class Gpu:
    """The device and stream of a run of a CUDA bundle; it accepts tensors on this device and in host memory.

    ``stream`` is DLPack's stream number: the handle, or 1 and 2 for the default streams.
    """

    index: int
    stream: int


NO_SYNC = -1  # DLPack's stream number for no synchronization


def borrow(value: Any, name: str, expected: str, *, writable: bool, gpu: Gpu | None = None) -> Borrowed:
    """View a numpy array or DLPack object as tensor ``name`` of element type ``expected``.

    Inputs that are non-contiguous or misaligned numpy arrays are copied; outputs (``writable``) never. With ``gpu``,
    tensors on that device are accepted, and its stream waits for pending work on them. Raises RunError for another
    element type, byte order or device, and for values that are not tensors.
    """
    if isinstance(value, np.ndarray):
        return _from_numpy(value, name, expected, writable)
    if not hasattr(value, "__dlpack__") or not hasattr(value, "__dlpack_device__"):
        message = f"tensor {name!r} is {type(value).__name__}, neither a numpy array nor an object with __dlpack__"
        raise refuse(Status.ARGUMENT, message, "convert it with numpy.asarray(value, dtype)")
    borrowed = _from_dlpack(value, name, writable, gpu)
    if (found := dtype_name(borrowed.tensor.dtype)) != expected:
        raise refuse(Status.DTYPE, f"tensor {name!r} has dtype {found}, expected {expected}")
    return borrowed


def borrow_memory(value: Any, name: str, gpu: Gpu) -> tuple[Borrowed, int]:
    """View a contiguous tensor of any type on the GPU; return it with its size in bytes. Raises RunError."""
    if not hasattr(value, "__dlpack__") or not hasattr(value, "__dlpack_device__"):
        raise refuse(Status.ARGUMENT, f"{name} is {type(value).__name__}, not an object with __dlpack__")
    borrowed = _from_dlpack(value, name, True, gpu)
    tensor = borrowed.tensor
    if tensor.device.device_type not in CUDA_DEVICES:
        raise refuse(Status.DEVICE, f"{name} is in host memory, not on the GPU")
    extents = [tensor.shape[axis] for axis in range(tensor.ndim)]
    compact = [math.prod(extents[axis + 1 :]) for axis in range(tensor.ndim)]
    if tensor.strides and any(
        extent > 1 and tensor.strides[axis] != compact[axis] for axis, extent in enumerate(extents)
    ):
        raise refuse(Status.LAYOUT, f"{name} is not contiguous")
    return borrowed, math.prod(extents) * tensor.dtype.lanes * ((tensor.dtype.bits + 7) // 8)


@functools.cache
def _numpy_dtype(name: str) -> np.dtype[Any] | None:
    return extension_dtype(name) if name == "bfloat16" or name in NARROW else np.dtype(name)


def _from_numpy(array: np.ndarray[Any, Any], name: str, expected: str, writable: bool) -> Borrowed:
    native = _numpy_dtype(expected)
    if (native is None or array.dtype != native) and not is_raw(array.dtype, expected):  # numpy: float64 == None
        if array.dtype.byteorder == ">":
            hint = 'convert it with array.astype(array.dtype.newbyteorder("="))'
            raise refuse(Status.DTYPE, f"tensor {name!r} has big-endian elements", hint)
        raise refuse(Status.DTYPE, f"tensor {name!r} has dtype {array.dtype.name}, expected {expected}")
    if writable:
        if not array.flags.writeable:
            raise refuse(Status.ARGUMENT, f"output {name!r} is read-only", "give an array that can be written to")
        if not array.flags.c_contiguous:
            raise refuse(Status.LAYOUT, f"output {name!r} is not contiguous", "give a contiguous array")
    elif not (array.flags.c_contiguous and array.flags.aligned):
        array = array.copy(order="C")
    dtype = DTYPES[expected]
    shape = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
    tensor = DLTensor(
        array.ctypes.data, DLDevice(1, 0), array.ndim, DLDataType(dtype.code, dtype.bits, 1), shape, None, 0
    )
    return Borrowed(tensor, (array, shape))


def _from_dlpack(value: Any, name: str, writable: bool, gpu: Gpu | None) -> Borrowed:
    hint = "detach or copy it"
    try:
        device, index = map(int, value.__dlpack_device__())
        if device in CPU_DEVICES:
            capsule = _capsule(value)
        else:
            _check_device(device, index, name, gpu)
            assert gpu is not None  # else the device was refused
            hint = "detach or copy it; torch shares only tensors of its current device (torch.cuda.set_device)"
            capsule = _capsule(value, stream=gpu.stream)
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        # torch refuses tensors that require grad or are conjugated, numpy-likes read-only ones.
        raise refuse(Status.ARGUMENT, f"tensor {name!r} cannot be shared through DLPack: {error}", hint) from None
    # The capsule is not consumed: its destructor releases the tensor with the last reference.
    if _capsule_is(capsule, b"dltensor_versioned"):
        head = VersionedTensor.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if head.major != 1:
            raise refuse(Status.ARGUMENT, f"tensor {name!r} comes as DLPack {head.major}.{head.minor}, not 1.x")
        if writable and head.flags & _FLAG_READ_ONLY:
            raise refuse(Status.ARGUMENT, f"output {name!r} is read-only", "give a tensor that can be written to")
        tensor = head.tensor
        padded = bool(head.flags & FLAG_PADDED)
    elif _capsule_is(capsule, b"dltensor"):
        tensor = DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
        padded = False
    else:
        raise refuse(Status.ARGUMENT, f"tensor {name!r}: __dlpack__ did not return a DLPack capsule")
    if tensor.dtype.bits < 8 and not padded:
        raise refuse(Status.LAYOUT, f"tensor {name!r} is packed", "give each element a byte, as ml_dtypes does")
    if gpu and device == CUDA_HOST and tensor.device.device_type != CUDA_HOST:
        # torch reports pinned memory in __dlpack_device__, but not in the tensor. A GPU copies from it without staging.
        tensor = DLTensor.from_buffer_copy(tensor)
        tensor.device = DLDevice(CUDA_HOST, 0)
    return Borrowed(tensor, (capsule, value))


def _capsule(value: Any, **options: int) -> object:
    try:
        return value.__dlpack__(max_version=(1, 0), **options)
    except TypeError:  # an object older than DLPack 1.0
        return value.__dlpack__(**options)


def _check_device(device: int, index: int, name: str, gpu: Gpu | None) -> None:
    """Raise RunError unless the tensor's device is this GPU."""
    if gpu is None:
        raise refuse(Status.DEVICE, f"tensor {name!r} is on DLPack device {device}, not in host memory")
    if device not in CUDA_DEVICES:
        raise refuse(
            Status.DEVICE, f"tensor {name!r} is on DLPack device {device}, neither in host memory nor on a CUDA GPU"
        )
    if index != gpu.index:
        hint = "copy the tensor, or create the session with device="
        raise refuse(Status.DEVICE, f"tensor {name!r} is on CUDA device {index}, the session on {gpu.index}", hint)


def empty(name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Allocate an array for output ``name``; raw bytes for a narrow type without ml_dtypes.

    Raises RunError for bfloat16 without ml_dtypes.
    """
    if dtype != "bfloat16":
        return np.empty(shape, storage_dtype(dtype))
    bfloat16 = extension_dtype(dtype)
    if bfloat16 is None:
        hint = "pip install ml_dtypes, or pass outputs= with tensors of a library that has bfloat16"
        raise refuse(Status.DTYPE, f"output {name!r} is bfloat16, which numpy lacks", hint)
    return np.empty(shape, bfloat16)
