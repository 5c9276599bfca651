"""Compile kernels with nvcc and for the host, in parallel; objects are cached by content.

A kernel's object does not depend on the sizes of a problem: partitions, models and builds share it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packager.backends.base import Context, Target
from packager.backends.cutlass.core.kernel import KernelSource
from packager.backends.cutlass.core.options import CutlassOptions
from packager.bundle.hashing import digest, digest_of_folder
from packager.bundle.staging import temporary_folder
from packager.codegen.cache import Cache
from packager.codegen.cuda_toolkit import CudaToolkit, compile_fatbin, find_cuda_toolkit
from packager.codegen.toolchain import find_toolchain, run
from packager.codegen.workers import workers
from packager.errors import ToolchainError
from packager.resources import folder

INSTALL = "pip install 'packager[cutlass]'"
DEVICE_FLAGS = (
    *("-DNDEBUG", "--expt-relaxed-constexpr"),
    # Waits of programmatic launches, and the tiles of N that are no power of two.
    *("-DCUTLASS_ENABLE_GDC_FOR_SM90=1", "-DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED=1"),
    "-diag-suppress=20012,20013,20014,20015,128,177,550,2361",
)
HOST_FLAGS = (
    *("-std=c++17", "-O2", "-g0", "-DNDEBUG", "-DPK_HOST", "-fPIC", "-fvisibility=hidden", "-w", "-fpermissive"),
    *("-ffunction-sections", "-fdata-sections", "-fno-rtti", "-fno-asynchronous-unwind-tables"),
    *("-fno-threadsafe-statics", "-DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED=1", "-DCUTLASS_ENABLE_GDC_FOR_SM90=1"),
)
# Kernels include packager's headers by their bare names.
HEADER_FOLDERS = (
    *(
        folder("templates") / "cutlass" / name
        for name in ("common", "gemm", "conv", "attention", "quantized", "recurrent")
    ),
    folder("runtime_stub") / "include",
)
# The share of the machine's memory that concurrent compilers may use.
MEMORY_SHARE = 0.7
# What nvcc takes for a kernel, until it is known for this machine.
TYPICAL_SECONDS = 30.0
DEFAULTS = CutlassOptions()
# Kernels that wait for other machines at a time: each has a thread here.
MOST_AT_ONCE = 64


@dataclass(frozen=True)
class CutlassSources:
    """CUTLASS's headers and examples: ``root`` has ``include`` and ``examples``."""

    root: Path
    version: str


@dataclass(frozen=True)
class KernelObject:
    """A compiled kernel: its fatbin and its host object. ``arch`` 0 is any, 90 is sm_90a."""

    source: KernelSource
    arch: int
    fatbin: Path
    host: Path


def find_cutlass() -> CutlassSources:
    """Return the sources of the wheel nvidia-cutlass. Raises ToolchainError if it is not installed."""
    try:
        version = importlib.metadata.version("nvidia-cutlass")
    except importlib.metadata.PackageNotFoundError:
        raise ToolchainError("no CUTLASS: nvidia-cutlass is not installed", hint=INSTALL) from None
    spec = importlib.util.find_spec("cutlass_library")
    roots = [Path(place) / "source" for place in (spec.submodule_search_locations or ())] if spec else []
    for root in roots:
        if (root / "include" / "cutlass" / "cutlass.h").is_file():
            return CutlassSources(root, version)
    raise ToolchainError("nvidia-cutlass is installed without its headers", hint=f"{INSTALL} --force-reinstall")


def compile_kernels(
    kernels: Sequence[tuple[KernelSource, int]],
    cutlass: CutlassSources,
    toolkit: CudaToolkit,
    context: Context,
    options: CutlassOptions = DEFAULTS,
) -> list[KernelObject]:
    """Compile kernels, each for an architecture, or fetch them from the cache. ``options`` set the parallelism.

    Raises ToolchainError with the compiler's message.
    """
    budget = _Budget(_memory_megabytes() * MEMORY_SHARE)
    at_a_time = max(1, context.jobs) if options.use_multiprocessing else 1
    remote = context.remote
    if remote is not None:
        at_a_time = min(MOST_AT_ONCE, at_a_time + remote.at_once)
    temporary = Path(options.tmp_dir) if options.tmp_dir else None

    def make(entry: tuple[KernelSource, int]) -> KernelObject:
        kernel, arch = entry
        fatbin, host = context.workdir / f"{kernel.name}.fatbin", context.workdir / f"{kernel.name}.host.o"
        result = KernelObject(kernel, arch, fatbin, host)
        key = _key(kernel, cutlass, toolkit, context)
        source = context.workdir / f"{kernel.name}.cu"
        source.write_text(kernel.text, encoding="utf-8")  # also for readers of a work folder that is kept
        if context.cache.fetch("object", key, context.workdir):
            steps.skip()
            return result
        if remote is not None:
            where = (context.base, context.toolchain.machine, options)
            made = remote.call(compile_elsewhere, kernel, arch, *where, megabytes=kernel.megabytes)
            if made is not None and made.key == key:
                fatbin.write_bytes(made.fatbin)
                host.write_bytes(made.host)
                context.cache.add("object", key, (fatbin, host))
                steps.skip()  # with the time that it waited, it is no measure of others
                return result
        compile_host(kernel, source, result.host, cutlass, toolkit, context)
        with budget.taken(kernel.megabytes), steps.step():
            flags = [*DEVICE_FLAGS, *_includes(kernel, cutlass), *(f"-D{macro}" for macro in kernel.macros)]
            flags += [f"--threads={options.threads}"] if options.threads > 1 else []
            real = [arch for arch in kernel.archs if arch.startswith("sm_")]
            virtual = [arch for arch in kernel.archs if not arch.startswith("sm_")]
            compile_fatbin(
                toolkit, source, result.fatbin, real, virtual, flags, context.toolchain.cc, temporary=temporary
            )
        context.cache.add("object", key, (result.fatbin, result.host))
        return result

    with (
        context.counted("compiling CUTLASS kernel", len(kernels), at_once=at_a_time, typical=TYPICAL_SECONDS) as steps,
        workers(at_a_time) as pool,
    ):
        try:
            return list(pool.map(make, kernels))
        except BaseException:
            if remote is not None:
                remote.stop()  # its threads here wait for it
            raise


@dataclass(frozen=True)
class MadeElsewhere:
    """A kernel that another machine has compiled, with the key that it has there: equal keys mean equal content."""

    key: str
    fatbin: bytes
    host: bytes


def compile_elsewhere(
    kernel: KernelSource, arch: int, base: Target, machine: str, options: CutlassOptions
) -> MadeElsewhere:
    """Compile a kernel, or take it from this machine's cache, for a build on another. Raises ToolchainError."""
    toolkit, cutlass = find_cuda_toolkit(base.options.home), find_cutlass()
    with temporary_folder("kernel") as workdir:
        context = Context(workdir, find_toolchain(machine), base, 1, Cache.of_user())
        (made,) = compile_kernels([(kernel, arch)], cutlass, toolkit, context, options)
        key = _key(kernel, cutlass, toolkit, context)
        return MadeElsewhere(key, made.fatbin.read_bytes(), made.host.read_bytes())


def _includes(kernel: KernelSource, cutlass: CutlassSources) -> list[str]:
    folders = [*HEADER_FOLDERS, cutlass.root / "include", *(cutlass.root / name for name in kernel.folders)]
    return [f"-I{path}" for path in folders]


def compile_host(
    kernel: KernelSource,
    source: Path,
    output: Path,
    cutlass: CutlassSources,
    toolkit: CudaToolkit,
    context: Context,
) -> None:
    """Compile a kernel's file for the host alone; ``source`` and ``output`` are in the context's folder.

    Raises ToolchainError with the compiler's message.
    """
    shim = folder("templates") / "cutlass" / "common" / "host"
    major, minor = toolkit.version.split(".")[:2]
    argv = [
        context.toolchain.cc,
        *("-x", "c++"),
        *HOST_FLAGS,
        *(f"-DPK_NVCC_MAJOR={major}", f"-DPK_NVCC_MINOR={minor}"),
        *(f"-D{macro}" for macro in kernel.macros),
        f"-I{shim}",
        *_includes(kernel, cutlass),
        *(f"-I{place}" for place in toolkit.include),
        *("-include", "host.h", "-c", source.name, "-o", output.name),
    ]
    run(argv, cwd=context.workdir)


def _own_headers(text: str) -> dict[str, str]:
    """Return packager's headers that a file includes, directly or not, by name."""
    found: dict[str, str] = {}
    waiting = ["host/host.h", "host/iostream", *_included(text)]
    while waiting:
        name = waiting.pop()
        path = next((path / name for path in HEADER_FOLDERS if (path / name).is_file()), None)
        if path is not None and name not in found:
            found[name] = path.read_text(encoding="utf-8")
            waiting += _included(found[name])
    return found


def templates_digest() -> str:
    """Return a short hash of templates, headers and flags."""
    places = (folder("templates") / "cutlass", folder("runtime_stub") / "include")
    return digest([[digest_of_folder(place, "*") for place in places], DEVICE_FLAGS, HOST_FLAGS])[:12]


def _included(text: str) -> list[str]:
    return re.findall(r'^\s*#include\s+"([^"]+)"', text, flags=re.MULTILINE)


def _key(kernel: KernelSource, cutlass: CutlassSources, toolkit: CudaToolkit, context: Context) -> str:
    return digest(
        {
            "name": kernel.name,
            "text": kernel.text,
            "archs": kernel.archs,
            "macros": kernel.macros,
            "folders": kernel.folders,
            "flags": [DEVICE_FLAGS, HOST_FLAGS],
            "headers": _own_headers(kernel.text),
            "cutlass": cutlass.version,
            "nvcc": toolkit.version,
            "cc": context.toolchain.versions["cc"],
            "machine": context.toolchain.machine,
        }
    )


def _memory_megabytes() -> float:
    """Return the available memory of this machine, in megabytes."""
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    available = next(line for line in text.splitlines() if line.startswith("MemAvailable:"))
    return int(available.split()[1]) / 1024


class _Budget:
    """A memory budget; a request larger than the budget waits until it is alone."""

    def __init__(self, megabytes: float) -> None:
        self._total = megabytes
        self._left = megabytes
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, megabytes: float) -> Iterator[None]:
        """Hold memory for a block, as soon as it is available."""
        share = min(megabytes, self._total)
        with self._changed:
            self._changed.wait_for(lambda: self._left >= share)
            self._left -= share
        try:
            yield
        finally:
            with self._changed:
                self._left += share
                self._changed.notify_all()
