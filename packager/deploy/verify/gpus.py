"""Queries a machine's GPUs and driver, and checks whether a CUDA bundle runs on them."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from packager.bundle.elf.symbols import version_key
from packager.bundle.fields import Count, CudaVersion
from packager.bundle.gpu.arch import parse_arch
from packager.bundle.manifest import Manifest
from packager.bundle.requirements import CudaRequirements
from packager.bundle.strict_json import Pattern
from packager.deploy.verify.findings import Finding, error

DRIVER_LIBRARY = "libcuda.so.1"
DRIVER_FACTS = Path("/proc/driver/nvidia/version")
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute
_NAME_BYTES = 256
_MAX_DEVICES = 1024


@dataclass(frozen=True)
class Gpu:
    """A device; ``arch`` is its native architecture, ``sm_90`` for compute capability 9.0."""

    name: str
    arch: Annotated[str, Pattern(r"sm_[0-9]{2,3}", "a GPU architecture such as sm_90")]
    memory_bytes: Count


@dataclass(frozen=True)
class CudaDriver:
    """An NVIDIA driver: the CUDA version it supports, its own version if the kernel reports it, and its devices.

    The devices are those visible to a process, in its order: CUDA_VISIBLE_DEVICES applies.
    """

    driver: CudaVersion
    driver_version: str | None
    devices: tuple[Gpu, ...]


def this_cuda() -> CudaDriver | None:
    """Query this machine's driver; None if there is none, or it fails.

    Initializes the driver in this process, but creates no context and allocates no device memory. Raises nothing.
    """
    try:
        library = ctypes.CDLL(DRIVER_LIBRARY)
        version = ctypes.c_int(0)
        if library.cuDriverGetVersion(ctypes.byref(version)) or not 1000 <= version.value < 1000000:
            return None
        devices = _devices(library)
    except (OSError, AttributeError):  # no such library, or one without these functions
        return None
    return CudaDriver(f"{version.value // 1000}.{version.value % 1000 // 10}", driver_version(), devices)


def _devices(library: ctypes.CDLL) -> tuple[Gpu, ...]:
    """Return the working devices."""
    count = ctypes.c_int(0)
    if library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    found = []
    for index in range(min(count.value, _MAX_DEVICES)):
        device, major, minor, memory = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0), ctypes.c_size_t(0)
        name = ctypes.create_string_buffer(_NAME_BYTES)
        failed = (
            library.cuDeviceGet(ctypes.byref(device), index)
            or library.cuDeviceGetName(name, _NAME_BYTES, device)
            or library.cuDeviceGetAttribute(ctypes.byref(major), _CAPABILITY_MAJOR, device)
            or library.cuDeviceGetAttribute(ctypes.byref(minor), _CAPABILITY_MINOR, device)
            or library.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
        )
        if not failed:
            found.append(Gpu(name.value.decode(errors="replace"), f"sm_{major.value}{minor.value}", memory.value))
    return tuple(found)


def driver_version() -> str | None:
    """Return the version of the kernel module, or None."""
    try:
        text = DRIVER_FACTS.read_text("utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"NVRM version:.*?\s([0-9]+(?:\.[0-9]+)+)\s", text)
    return match[1] if match else None


def describe_cuda(cuda: CudaDriver | None) -> str:
    """Format as one line."""
    if cuda is None:
        return "no NVIDIA driver"
    own = f" (driver {cuda.driver_version})" if cuda.driver_version else ""
    return f"CUDA {cuda.driver}{own}, {_described(cuda.devices)}"


def cuda_findings(manifest: Manifest, cuda: CudaDriver | None) -> Iterator[Finding]:
    """Compare a CUDA bundle's requirements with a machine's driver and GPUs; CPU bundles have no findings."""
    wanted = manifest.requirements.cuda
    if wanted is None:
        return
    if cuda is None:
        yield error(
            "machine.cuda_driver",
            f"the bundle needs an NVIDIA driver for CUDA {wanted.driver} or newer, the machine has none",
            where="$.requirements.cuda.driver",
            why=f"the bundle uses the GPU through {DRIVER_LIBRARY}",
            hint="install the driver; if the machine's description is older, write it again",
        )
        return
    if version_key(cuda.driver) < version_key(wanted.driver):
        own = f" ({cuda.driver_version})" if cuda.driver_version else ""
        yield error(
            "machine.cuda_driver",
            f"the bundle needs a driver for CUDA {wanted.driver} or newer, the machine's{own} is for {cuda.driver}",
            where="$.requirements.cuda.driver",
            why="the driver does not load code newer than itself",
            hint="update the driver, or rebuild with an older CUDA toolkit: -home of the Target",
        )
    fitting = [device for device in cuda.devices if fits(wanted, device)]
    if not fitting:
        yield error(
            "machine.gpu_arch",
            f"the bundle has GPU code for {wanted.describe()}, the machine has {_described(cuda.devices)}",
            where="$.requirements.cuda.archs",
            why="none of its devices executes this code",
            hint=_rebuild_hint(cuda.devices),
        )
        return
    needed = manifest.arena_bytes + manifest.weights.bytes
    largest = max(device.memory_bytes for device in fitting)
    if needed > largest:
        yield error(
            "machine.gpu_memory",
            f"a session needs {needed} bytes of GPU memory, the machine's devices have {largest} at most",
            where="$.arena_bytes, $.weights.bytes",
            why="creating a session would fail",
            hint="use a larger GPU, lower the maxima of the dims, or a smaller dtype",
        )


def fits(wanted: CudaRequirements, device: Gpu) -> bool:
    """Whether a device runs the code of a bundle."""
    capability = parse_arch(device.arch).version
    codes = (*wanted.archs, *wanted.ptx)
    return not codes or any(parse_arch(code).runs_on(capability) for code in codes)


def _described(devices: tuple[Gpu, ...]) -> str:
    return ", ".join(sorted({f"{device.name} ({device.arch})" for device in devices})) or "no GPU"


def _rebuild_hint(devices: tuple[Gpu, ...]) -> str:
    archs = ",".join(sorted({device.arch for device in devices}))
    return f'rebuild with that architecture: --target "cuda -arch={archs}"' if archs else "use a machine with a GPU"
