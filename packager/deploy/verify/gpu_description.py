"""Describes a GPU by the numbers that plans of cuDNN are chosen for: ``-device`` of the Target ``cudnn``."""

from __future__ import annotations

import ctypes
from typing import Any

from packager.deploy.verify.gpus import DRIVER_LIBRARY
from packager.errors import UsageError

# The names of cuDNN's JSON, and the numbers of CUdevice_attribute that they are.
_ATTRIBUTES = {
    "maxThreadsPerBlock": 1,
    "maxSharedMemoryPerBlock": 8,
    "warpSize": 10,
    "regsPerBlock": 12,
    "smClockRateKHz": 13,
    "multiProcessorCount": 16,
    "pciDeviceId": 34,
    "isTccDriver": 35,
    "memClockRateKHz": 36,
    "memoryBusWidth": 37,
    "l2CacheSize": 38,
    "maxThreadsPerSM": 39,
    "maxRegistersPerSM": 82,
    "supportCoopLaunch": 95,
    "maxSharedMemoryPerBlockOptin": 97,
    "maxCtasPerSM": 106,
    "reservedSharedMemoryPerBlock": 111,
}
_BLOCK, _GRID = (2, 3, 4), (5, 6, 7)
_MAJOR, _MINOR = 75, 76
_NAME_BYTES = 256


def describe_gpu(index: int) -> dict[str, Any]:
    """Return the description of device ``index``. Raises UsageError without a driver or such a device."""
    try:
        library = ctypes.CDLL(DRIVER_LIBRARY)
    except OSError:
        raise UsageError("no NVIDIA driver", hint="run it on the machine with the GPU") from None
    device, version, memory = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_size_t(0)
    name = ctypes.create_string_buffer(_NAME_BYTES)
    failed = (
        library.cuInit(0)
        or library.cuDriverGetVersion(ctypes.byref(version))
        or library.cuDeviceGet(ctypes.byref(device), index)
        or library.cuDeviceGetName(name, _NAME_BYTES, device)
        or library.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    )
    if failed:
        raise UsageError(f"the driver has no device {index} that works: CUDA error {failed}")

    def attribute(number: int) -> int:
        value = ctypes.c_int(0)
        if failed := library.cuDeviceGetAttribute(ctypes.byref(value), number, device):
            raise UsageError(f"the driver does not tell attribute {number} of device {index}: CUDA error {failed}")
        return value.value

    return {
        "maxGridSize": [attribute(number) for number in _GRID],
        "maxBlockSize": [attribute(number) for number in _BLOCK],
        **{key: attribute(number) for key, number in _ATTRIBUTES.items()},
        "totalGlobalMem": memory.value,
        "cudaDeviceId": index,
        "deviceVer": 100 * attribute(_MAJOR) + 10 * attribute(_MINOR),
        "driverVer": version.value,
        "deviceName": name.value.decode(errors="replace"),
        "smCountOrigin": 0,  # the whole device
        "oversizedSharedMemoryPerBlock": 0,
    }
