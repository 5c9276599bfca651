"""Build what the host has of CUTLASS kernels, linked with encoders of tensor maps, and ask it for launches.

The encoders stand in place of the driver's: they write down what they are asked for.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from packager.backends.base import Context, Target
from packager.backends.cutlass.core.compile_kernels import HEADER_FOLDERS, compile_host, find_cutlass
from packager.backends.cutlass.core.kernel import KernelConfig
from packager.codegen.cache import Cache
from packager.codegen.cuda_toolkit import find_cuda_toolkit
from packager.codegen.toolchain import find_toolchain

ARCHS = ("sm_90a",)
SIMT = Path(__file__).parent / "simt"
# As the runtime aligns arguments: some begin with tensor maps.
ALIGNMENT = 128
# In place of an address: no tensor map can be made at all.
EVERY = 2**64 - 1

ENCODERS = """
#include <stdint.h>
#include <string.h>
uint64_t refused, recorded[8][8];
int64_t window[12], volume[17];
int32_t maps;
static int32_t encode(void *map, uint64_t address) {
  if (refused == UINT64_MAX || refused == address) return 1;
  memset(map, 1, 128);
  return 0;
}
int32_t pk_tensor_map_encode(void *map, int32_t type, uint32_t rank, void *address, const uint64_t *extents,
                             const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int32_t interleave,
                             int32_t swizzle, int32_t promotion, int32_t fill) {
  if (encode(map, (uint64_t)address)) return 1;
  uint64_t *to = recorded[maps++ % 8];
  memset(to, 0, sizeof recorded[0]);
  to[0] = (uint64_t)address;
  for (uint32_t i = 0; i < rank && i < 4; i++) to[1 + i] = extents[i];
  for (uint32_t i = 0; i + 1 < rank && i < 3; i++) to[5 + i] = strides[i];
  return 0;
}
int32_t pk_tensor_map_encode_im2col(void *map, int32_t type, uint32_t rank, void *address, const uint64_t *extents,
                                    const uint64_t *strides, const int32_t *lower, const int32_t *upper,
                                    uint32_t channels, uint32_t pixels, const uint32_t *steps, int32_t interleave,
                                    int32_t swizzle, int32_t promotion, int32_t fill) {
  for (int i = 0; i < 3; i++) window[i] = extents[i], window[3 + i] = strides[i];
  for (int i = 0; i < 2; i++) window[6 + i] = lower[i], window[8 + i] = upper[i], window[10 + i] = steps[1 + i];
  if (rank == 5) {
    for (int i = 0; i < 4; i++) volume[i] = extents[i], volume[4 + i] = strides[i];
    for (int i = 0; i < 3; i++) volume[8 + i] = lower[i], volume[11 + i] = upper[i], volume[14 + i] = steps[1 + i];
  }
  return encode(map, (uint64_t)address);
}
"""
# The kernel's own symbols are hidden, as the bundle's linker leaves them.
TABLE = """
extern const uint32_t NAME_bytes, NAME_shared_bytes;
extern int32_t NAME_fill(const void *, const void *, void *, void *);
uint32_t bytes(void) { return NAME_bytes; }
uint32_t shared_bytes(void) { return NAME_shared_bytes; }
int32_t fill(const void *device, const void *problem, void *arguments, void *launch) {
  return NAME_fill(device, problem, arguments, launch);
}
"""


class Launch(ctypes.Structure):
    """As pk_cuda_launch_t."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
    )


@dataclass(frozen=True)
class HostKernel:
    """A kernel's host object, and the library that it is linked to with the encoders."""

    object: Path
    library: ctypes.CDLL

    @property
    def bytes(self) -> int:
        """How large the kernel's parameter is."""
        size: int = self.library.bytes()
        return size

    @property
    def shared_bytes(self) -> int:
        """How much shared memory it has."""
        size: int = self.library.shared_bytes()
        return size

    def fill(self, problem: ctypes.Structure, refused: int = 0) -> Launch | None:
        """Return the launch, None where the kernel does not take the problem.

        The address ``refused`` cannot have a tensor map, nor any address where it is EVERY.
        """
        ctypes.c_int32.in_dll(self.library, "maps").value = 0
        ctypes.c_uint64.in_dll(self.library, "refused").value = refused
        memory = ctypes.create_string_buffer(self.bytes + ALIGNMENT)
        place = ctypes.c_void_p(-(-ctypes.addressof(memory) // ALIGNMENT) * ALIGNMENT)
        launch, device = Launch(), (ctypes.c_int32 * 2)(90, 132)
        result = self.library.fill(device, ctypes.byref(problem), place, ctypes.byref(launch))
        assert result in (0, -1)
        return launch if result == 0 else None

    def maps(self) -> list[list[int]]:
        """Address, four extents and three strides of the tensor maps that were made last, windows apart."""
        count = ctypes.c_int32.in_dll(self.library, "maps").value
        return [list(row) for row in (ctypes.c_uint64 * 8 * 8).in_dll(self.library, "recorded")][:count]

    def window(self) -> list[int]:
        """Of the last window by TMA: three extents and strides, two lower and upper corners and steps."""
        return list((ctypes.c_int64 * 12).in_dll(self.library, "window"))

    def volume(self) -> list[int]:
        """Of the last window of three axes: four extents and strides, three lower and upper corners and steps."""
        return list((ctypes.c_int64 * 17).in_dll(self.library, "volume"))


def make_context(folder: Path) -> Context:
    """Return what kernels are compiled with, into a folder; objects of nvcc are shared with the session's builds."""
    return Context(folder, find_toolchain("x86_64"), Target("llvm", {}), 1, cache=Cache.of_user())


def link_host(name: str, host: Path, folder: Path) -> HostKernel:
    """Link a kernel's host object with the encoders."""
    table, library = folder / "table.c", folder / "kernel.so"
    table.write_text(ENCODERS + TABLE.replace("NAME", name), encoding="utf-8")
    compiler = find_toolchain("x86_64").cc
    subprocess.run([compiler, "-shared", "-fPIC", "-Wl,-z,defs", "-o", library, table, host], check=True)
    return HostKernel(host, ctypes.CDLL(str(library)))


def build_host(config: KernelConfig, folder: Path) -> HostKernel:
    """Compile a kernel for the host alone, and link it."""
    kernel = config.source(ARCHS)
    source, host = folder / "kernel.cu", folder / "kernel.o"
    source.write_text(kernel.text, encoding="utf-8")
    compile_host(kernel, source, host, find_cutlass(), find_cuda_toolkit(""), make_context(folder))
    return link_host(kernel.name, host, folder)


def build_simt(name: str, folder: Path) -> ctypes.CDLL:
    """Compile ``simt/<name>.cpp``, which runs a kernel's threads as fibers."""
    places = (SIMT, *HEADER_FOLDERS, *find_cuda_toolkit("").include)
    flags = [
        "-std=c++17",
        "-O2",
        "-w",
        "-fPIC",
        "-shared",
        "-DPK_HOST",
        "-DPK_SIMT",
        *(f"-I{place}" for place in places),
    ]
    library = folder / f"{name}.so"
    compiler = find_toolchain("x86_64").cc
    subprocess.run([compiler, *flags, SIMT / f"{name}.cpp", "-o", library, "-lstdc++"], check=True)
    return ctypes.CDLL(str(library))


def host_builds(kernels: Mapping[str, KernelConfig], factory: pytest.TempPathFactory) -> Callable[[str], HostKernel]:
    """Return a function that builds the kernel of a key, at its first call."""
    return functools.cache(lambda name: build_host(kernels[name], factory.mktemp(name)))
