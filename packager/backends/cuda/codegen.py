"""Compile kernels to one object: CUDA C++ by TVM, fatbins by nvcc, and C functions that launch them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm

from packager.backends.base import Context, Target
from packager.bundle.gpu.arch import parse_arch
from packager.bundle.manifest import License
from packager.codegen.c_text import c_expression
from packager.codegen.cuda_toolkit import CudaToolkit, compile_fatbin, fatbin_key, find_cuda_toolkit
from packager.codegen.templates import render
from packager.codegen.toolchain import run
from packager.codegen.workers import workers
from packager.errors import BackendError
from packager.graph.identity import IdentityMap
from packager.graph.symbolic import to_extent
from packager.ir.primitives import BackendOutput, CudaModule, Kernel, StaticLibrary
from packager.lower.cuda.kernels import Launch, lower_cuda_kernels
from packager.resources import folder

LICENSES = (License("Apache TVM generated code", "Apache-2.0"),)
C_FLAGS = ("-std=gnu11", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-fno-asynchronous-unwind-tables")
# Kernels per file: amortizes nvcc's start of a second or two, and keeps all cores busy. The output of a build must not
# depend on the number of cores.
KERNELS_PER_FILE = 8
AXES = ("x", "y", "z")
# The first architecture with programmatic dependent launch.
_PROGRAMMATIC = (9, 0)
# The definition of a kernel in TVM's text, up to its body.
_KERNEL = re.compile(r"\b__global__\b[^;{}]*?\b(\w+)\([^;{}()]*\)\s*\{")
# Let the next kernel be placed, and wait until the kernel before is complete and its writes are visible. It has waited
# for the one before itself, and so on: every kernel runs after all earlier ones, however many are placed and wait.
# Arguments can be read before.
_WAIT = """
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
"""


def generate(kernels: Sequence[Kernel], target: Target, context: Context) -> BackendOutput:
    """Compile kernels into ``cuda.o`` in the work folder. Raises BackendError, ToolchainError."""
    toolkit = find_cuda_toolkit(target.options.home)
    toolchain = {"tvm": tvm.__version__, "nvcc": toolkit.version}
    if not kernels:
        return BackendOutput("cuda", toolchain=toolchain)
    parts = _parts(kernels)
    tvm_target = tvm.target.Target({"kind": "cuda", "arch": target.options.arch[0]})
    launches: dict[str, Launch] = {}
    for index, part in enumerate(parts):
        module, own = lower_cuda_kernels(part, tvm_target)
        launches |= own
        code = tvm.get_global_func("target.build.cuda")(module, tvm_target).inspect_source()
        _source(index, context).write_text(let_kernels_wait(code, own))
    with (
        context.counted("compiling CUDA kernel", len(kernels), at_once=context.jobs) as steps,
        workers(context.jobs) as pool,
    ):

        def compile_part(index: int) -> None:
            if _fetch(index, toolkit, target, context):
                steps.skip(len(parts[index]))
                return
            with steps.step(len(parts[index])):
                _compile(index, toolkit, target, context)

        list(pool.map(compile_part, range(len(parts))))
    path = _compile_launchers(parts, launches, target, context)
    library = StaticLibrary(
        path.name,
        (path,),
        tuple(kernel.symbol for kernel in kernels),
        cuda_modules=tuple(CudaModule(_module(index), len(part)) for index, part in enumerate(parts)),
    )
    return BackendOutput("cuda", (library,), licenses=LICENSES, toolchain=toolchain)


def let_kernels_wait(code: str, symbols: Collection[str]) -> str:
    """Insert the wait of programmatic dependent launch at the start of each kernel.

    Raises BackendError unless the code has exactly these kernels.
    """
    found = sorted(match[1] for match in _KERNEL.finditer(code))
    definitions = re.sub(r"\b__global__\b[^;{}]*;", "", code)
    if found != sorted(symbols) or len(re.findall(r"\b__global__\b", definitions)) != len(found):
        expected = ", ".join(sorted(symbols))
        raise BackendError(
            f"cuda: TVM's code has the kernels {', '.join(found) or '(none)'}, expected {expected}",
            hint="packager needs the TVM that it was installed with",
        )
    return _KERNEL.sub(lambda match: match[0] + _WAIT, code)


def _parts(kernels: Sequence[Kernel]) -> list[Sequence[Kernel]]:
    count = -(-len(kernels) // KERNELS_PER_FILE)
    size = -(-len(kernels) // count)
    return [kernels[at : at + size] for at in range(0, len(kernels), size)]


def _module(index: int) -> str:
    return f"pkm_cuda_{index}"


def _fetch(index: int, toolkit: CudaToolkit, target: Target, context: Context) -> bool:
    """Take a part's code from the cache, and return whether it is there."""
    return context.cache.fetch("object", _key(index, toolkit, target, context), context.workdir)


def _compile(index: int, toolkit: CudaToolkit, target: Target, context: Context) -> None:
    source, options = _source(index, context), target.options
    output = source.with_suffix(".fatbin")
    compile_fatbin(toolkit, source, output, options.arch, options.ptx, (), context.toolchain.cc)
    context.cache.add("object", _key(index, toolkit, target, context), (output,))


def _key(index: int, toolkit: CudaToolkit, target: Target, context: Context) -> str:
    options, version = target.options, context.toolchain.versions["cc"]
    return fatbin_key(toolkit, _source(index, context), options.arch, options.ptx, version)


def _source(index: int, context: Context) -> Path:
    return context.workdir / f"kernels_{index}.cu"


def _compile_launchers(
    parts: Sequence[Sequence[Kernel]], launches: Mapping[str, Launch], target: Target, context: Context
) -> Path:
    source = context.workdir / "cuda.c"
    programmatic = _has_programmatic(target)
    source.write_text(
        render(
            "cuda/cuda_kernels.c.j2",
            modules=[
                {
                    "name": _module(index),
                    "image": f"kernels_{index}.fatbin",
                    "kernels": [
                        _kernel_view(i, kernel, launches[kernel.symbol], programmatic) for i, kernel in enumerate(part)
                    ],
                }
                for index, part in enumerate(parts)
            ],
        )
    )
    output = context.workdir / "cuda.o"
    include = folder("runtime_stub") / "include"
    run([context.toolchain.cc, *C_FLAGS, f"-I{include}", "-c", source.name, "-o", output.name], cwd=context.workdir)
    return output


def _has_programmatic(target: Target) -> bool:
    """Whether there is code for GPUs with programmatic launches; the runtime checks the GPU and the code for it."""
    archs = [parse_arch(name) for name in (*target.options.arch, *target.options.ptx)]
    return any(arch.version >= _PROGRAMMATIC for arch in archs)


def _kernel_view(number: int, kernel: Kernel, launch: Launch, programmatic: bool) -> dict[str, Any]:
    pointers = [f"p{index}" for index in range(len(kernel.parameters))]
    scalars = [f"s{index}" for index in range(len(kernel.scalars))]
    names = IdentityMap(zip(kernel.scalars, scalars, strict=True))
    declared = [f"{'' if p.written else 'const '}void *p{index}" for index, p in enumerate(kernel.parameters)]
    declared += [f"int64_t {name}" for name in scalars]

    def extents(group: str) -> str:
        found = [to_extent(launch.extents.get(f"{group}.{axis}", 1), names) for axis in AXES]
        return ", ".join(f"(uint32_t)({c_expression(extent)})" for extent in found)

    return {
        "symbol": kernel.symbol,
        "number": number,
        "parameters": ", ".join(declared),
        "fields": " ".join(f"{field};" for field in declared),
        "arguments": ", ".join([*pointers, *scalars]),
        "grid": extents("blockIdx"),
        "block": extents("threadIdx"),
        "shared_bytes": launch.shared_bytes,
        "flags": "PK_CUDA_PROGRAMMATIC" if programmatic and launch.overlaps else "0",
    }
