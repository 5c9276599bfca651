"""Measures the CPU's roofline: peak FLOPS of vector FMAs, in hand-assembled machine code, and copy bandwidth.

Uses no compiler. numpy's GEMM is what bundles are compared with, so it cannot be the roofline.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from packager.deploy.verify.machine import this_machine

# Size of each of the two arrays of a copy: far larger than the caches of a core.
_COPY_BYTES = 128 << 20
_REPEATS = 10
_LOOPS = 200_000
# Unroll factor of the block of independent instructions, so that the branch is negligible.
_BLOCKS = 4
_PAGE = mmap.PAGESIZE


@dataclass(frozen=True)
class CpuPeak:
    """Totals over all threads, per second: float32 FLOPs, None if not measurable, and bytes read and written by
    copies."""

    threads: int
    flops_per_second: float | None
    copy_bytes_per_second: float


@dataclass(frozen=True)
class MachineCode:
    """The code of ``void f(long rounds)`` in the C calling convention."""

    code: bytes
    flops_per_round: int


def measure_peak(threads: int = 1) -> CpuPeak:
    """Measure the peak of ``threads`` threads of this process; takes about half a second."""
    return CpuPeak(threads, _flops_per_second(threads), _copy_bytes_per_second(threads))


def fma_loop(machine: str, features: frozenset[str]) -> MachineCode | None:
    """Return the loop for the widest vectors of a CPU, given the kernel's feature names; None if unsupported."""
    if machine == "x86_64" and "avx512f" in features:
        return _x86_loop(wide=True)
    if machine == "x86_64" and {"avx", "fma"} <= features:
        return _x86_loop(wide=False)
    if machine == "aarch64":
        return _aarch64_loop()
    return None


def _x86_loop(*, wide: bool) -> MachineCode:
    """Accumulators: vectors 0 to 11, more than latency * FMA units; factors: 12 and 13; all are 0."""
    accumulators, first, second = range(12), 12, 13
    body = b"".join(_x86_fma(register, first, second, wide) for register in accumulators) * _BLOCKS
    loop = body + b"\x48\xff\xcf"  # dec rdi
    back = b"\x0f\x85" + (-len(loop) - 6).to_bytes(4, "little", signed=True)  # jnz
    code = b"".join(_x86_zero(register) for register in range(14)) + loop + back
    code += b"\xc5\xf8\x77\xc3"  # vzeroupper; ret
    return MachineCode(code, len(accumulators) * _BLOCKS * (16 if wide else 8) * 2)


def _x86_zero(register: int) -> bytes:
    """Vxorps ymm, ymm, ymm: also zeroes the upper half of zmm."""
    high = 0 if register >= 8 else 1
    prefix = bytes((0xC4, high << 7 | 1 << 6 | high << 5 | 1, (~register & 15) << 3 | 1 << 2, 0x57))
    return prefix + bytes((0xC0 | (register & 7) << 3 | register & 7,))


def _x86_fma(target: int, first: int, second: int, wide: bool) -> bytes:
    """Vfmadd231ps of registers below 16."""
    r, b = (0 if register >= 8 else 1 for register in (target, second))
    operands = bytes((0xB8, 0xC0 | (target & 7) << 3 | second & 7))
    if wide:
        return bytes((0x62, r << 7 | 1 << 6 | b << 5 | 1 << 4 | 2, (~first & 15) << 3 | 5, 0x48)) + operands
    return bytes((0xC4, r << 7 | 1 << 6 | b << 5 | 2, (~first & 15) << 3 | 5)) + operands


def _aarch64_loop() -> MachineCode:
    """Skips registers 8 to 15, which are callee-saved in part; factors: 30 and 31."""
    accumulators = [*range(8), *range(16, 30)]
    words = [0x6F00E400 | register for register in (*accumulators, 30, 31)]  # movi v.2d, #0
    body = [0x4E20CC00 | 31 << 16 | 30 << 5 | register for register in accumulators] * _BLOCKS  # fmla v.4s
    loop = [*body, 0xF1000400]  # subs x0, x0, #1
    words += [*loop, 0x54000001 | (-len(loop) & 0x7FFFF) << 5, 0xD65F03C0]  # b.ne; ret
    code = b"".join(word.to_bytes(4, "little") for word in words)
    return MachineCode(code, len(accumulators) * _BLOCKS * 4 * 2)


def _flops_per_second(threads: int) -> float | None:
    loop = fma_loop(platform.machine(), frozenset(this_machine(gpus=False).cpu_features))
    if loop is None:
        return None
    try:
        memory = _executable(loop.code)
    except OSError:  # executable mappings are forbidden
        return None
    with memory:
        view = np.frombuffer(memory, np.uint8)
        run = ctypes.CFUNCTYPE(None, ctypes.c_int64)(view.ctypes.data)
        seconds = _together([partial(run, _LOOPS)] * threads)
        del view  # the memory cannot be closed under it
    return threads * _LOOPS * loop.flops_per_round / seconds


def _executable(code: bytes) -> mmap.mmap:
    """Map code read-only and executable. mprotect also flushes the instruction cache."""
    file = os.memfd_create("packager", os.MFD_CLOEXEC)
    try:
        os.write(file, code.ljust(-(-len(code) // _PAGE) * _PAGE, b"\0"))
        return mmap.mmap(file, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
    finally:
        os.close(file)


def _copy_bytes_per_second(threads: int) -> float:
    size = _COPY_BYTES // threads
    pairs = [(np.ones(size, np.uint8), np.ones(size, np.uint8)) for _ in range(threads)]

    seconds = _together([partial(np.copyto, *pair) for pair in pairs])
    return 2 * size * threads / seconds


def _together(tasks: list[Callable[[], None]]) -> float:
    """Return the minimum seconds of running all tasks, one thread each; tasks must release the GIL."""
    best = float("inf")
    for _ in range(_REPEATS):
        barrier = threading.Barrier(len(tasks))
        times: list[tuple[float, float]] = []

        def run(task: Callable[[], None], barrier: threading.Barrier, times: list[tuple[float, float]]) -> None:
            barrier.wait()
            start = time.perf_counter()
            task()
            times.append((start, time.perf_counter()))

        workers = [threading.Thread(target=run, args=(task, barrier, times)) for task in tasks]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = min(best, max(end for _, end in times) - min(start for start, _ in times))
    return best
