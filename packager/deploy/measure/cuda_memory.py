"""Device memory, a stream and events for `packager bench`, through the CUDA driver API only.

Programs that run bundles use torch, CuPy or their own code for this.
"""

from __future__ import annotations

import ctypes
import math
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packager.bundle.dtypes import DTYPES
from packager.deploy.load.abi import DLDataType, DLDevice, DLTensor, Status, refuse
from packager.deploy.load.tensors import FLAG_PADDED, VersionedTensor, empty
from packager.errors import RunError

_DL_CUDA = 2
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR

_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cuEventDestroy_v2": (c_void_p,),
}

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.argtypes, _new_capsule.restype = (c_void_p, c_char_p, c_void_p), ctypes.py_object
_CAPSULE_NAME = b"dltensor_versioned"  # the capsule stores the address, so this object must stay alive


class DeviceArray:
    """A contiguous tensor in device memory, for `Session.run`. Valid until its Device exits."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: str, device: int) -> None:
        self.address = address
        self.shape = shape
        self.dtype = dtype
        self.device = device
        extents = (c_int64 * max(len(shape), 1))(*shape)
        kind = DTYPES[dtype]
        self._managed = VersionedTensor(1, 1, None, None, FLAG_PADDED)
        self._managed.tensor = DLTensor(
            address, DLDevice(_DL_CUDA, device), len(shape), DLDataType(kind.code, kind.bits, 1), extents, None, 0
        )

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None) -> object:
        """Return a capsule that is valid while this object lives. There is no pending work to wait for."""
        return _new_capsule(ctypes.addressof(self._managed), _CAPSULE_NAME, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_DL_CUDA, self.device)


class Device:
    """A CUDA device: within ``with`` its primary context is current in this thread; everything is freed at the end.

    Raises RunError with the statuses of the C ABI: DRIVER, MEMORY, GPU.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self._context = c_void_p()
        self._memory: list[int] = []
        self._events: list[c_void_p] = []
        self._stream = c_void_p()
        try:
            library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise refuse(Status.DRIVER, f"there is no CUDA driver: libcuda.so.1 cannot be opened: {error}") from None
        self._library = library
        for name, arguments in _FUNCTIONS.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                raise refuse(Status.DRIVER, f"the CUDA driver is too old: it has no {name}") from None
            function.argtypes, function.restype = arguments, c_int
        count, version = c_int(), c_int()
        self._call("cuInit", 0, status=Status.DRIVER)
        self._call("cuDriverGetVersion", byref(version))
        self._call("cuDeviceGetCount", byref(count))
        if not 0 <= index < count.value:
            raise refuse(Status.DRIVER, f"there is no CUDA device {index}: the driver has {count.value}")
        self.driver = f"{version.value // 1000}.{version.value % 1000 // 10}"
        device, text = c_int(), ctypes.create_string_buffer(256)
        self._call("cuDeviceGet", byref(device), index)
        self._device = device.value
        self._call("cuDeviceGetName", text, len(text), self._device)
        self.name = text.value.decode(errors="replace")
        self.arch = f"sm_{self._attribute(_MAJOR)}{self._attribute(_MINOR)}"

    def __enter__(self) -> Device:
        self._call("cuDevicePrimaryCtxRetain", byref(self._context), self._device)
        self._library.cuCtxPushCurrent_v2(self._context)  # a failure repeats in the next call
        try:
            self._call("cuStreamCreate", byref(self._stream), _NON_BLOCKING)
        except RunError:
            self._leave()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # Do not report consequences of an earlier fault.
        for event in self._events:
            self._library.cuEventDestroy_v2(event)
        for address in self._memory:
            self._library.cuMemFree_v2(address)
        self._library.cuStreamDestroy_v2(self._stream)
        self._leave()

    def _leave(self) -> None:
        self._library.cuCtxPopCurrent_v2(byref(c_void_p()))
        self._library.cuDevicePrimaryCtxRelease_v2(self._device)

    @property
    def stream(self) -> int:
        """The handle of the device's non-blocking stream."""
        return self._stream.value or 0

    def empty(self, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        """Allocate an uninitialized tensor."""
        return DeviceArray(self._allocate(math.prod(shape) * DTYPES[dtype].itemsize), shape, dtype, self.index)

    def upload(self, array: NDArray[Any], dtype: str) -> DeviceArray:
        """Copy an array with elements of ``dtype`` to device memory."""
        source = np.ascontiguousarray(array)
        copy = self.empty(array.shape, dtype)
        if copy.nbytes:
            self._call("cuMemcpyHtoDAsync_v2", copy.address, source.ctypes.data, copy.nbytes, self._stream)
            self.synchronize()  # the copy may return early, and other streams do not wait for it
        return copy

    def download(self, array: DeviceArray) -> NDArray[Any]:
        """Synchronize the stream and copy to host memory."""
        target = empty("copy", array.dtype, array.shape)
        if array.nbytes:
            self._call("cuMemcpyDtoHAsync_v2", target.ctypes.data, array.address, array.nbytes, self._stream)
        self.synchronize()
        return target

    def events(self, count: int) -> list[c_void_p]:
        """Create events."""
        made = []
        for _ in range(count):
            event = c_void_p()
            self._call("cuEventCreate", byref(event), 0)
            self._events.append(event)
            made.append(event)
        return made

    def record(self, event: c_void_p) -> None:
        """Record an event on the stream."""
        self._call("cuEventRecord", event, self._stream)

    def elapsed_ms(self, start: c_void_p, end: c_void_p) -> float:
        """Return the milliseconds between two completed events."""
        elapsed = c_float()
        self._call("cuEventElapsedTime", byref(elapsed), start, end)
        return elapsed.value

    def synchronize(self) -> None:
        """Wait for the work on the stream."""
        self._call("cuStreamSynchronize", self._stream)

    def _allocate(self, size: int) -> int:
        address = c_uint64()
        self._call("cuMemAlloc_v2", byref(address), max(size, 1), what=f" for {size} bytes of device memory")
        self._memory.append(address.value)
        return address.value

    def _attribute(self, attribute: int) -> int:
        value = c_int()
        self._call("cuDeviceGetAttribute", byref(value), attribute, self._device)
        return value.value

    def _call(self, name: str, *arguments: Any, status: Status = Status.GPU, what: str = "") -> None:
        result = getattr(self._library, name)(*arguments)
        if result == 0:
            return
        text = c_char_p()
        describe = self._library.cuGetErrorString
        describe.argtypes = (c_int, POINTER(c_char_p))
        describe(result, byref(text))
        told = (text.value or b"unknown error").decode(errors="replace")
        raise refuse(
            Status.MEMORY if result == _OUT_OF_MEMORY else status, f"{name}{what} failed: {told} (CUDA error {result})"
        )
