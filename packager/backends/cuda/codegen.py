"""Kernels to one object: CUDA C++ by TVM, fatbins by nvcc, and C functions that launch the kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tvm

from packager.backends.base import Context
from packager.cuda_toolkit import CudaToolkit, compile_fatbin, find_cuda_toolkit
from packager.lower.kernels_cuda import Launch, lower_cuda_kernels
from packager.manifest import License
from packager.primitives import BackendOutput, CudaModule, Kernel, StaticLibrary
from packager.render import c_expression, render
from packager.resources import folder
from packager.symbolic import to_extent
from packager.targets import Target
from packager.toolchain import run

LICENSES = (License("Apache TVM generated code", "Apache-2.0"),)
C_FLAGS = ("-std=gnu11", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-fno-asynchronous-unwind-tables")
# Kernels to a file: so many that nvcc's start, a second or two, is paid rarely, so few that all cores have work.
KERNELS_PER_FILE = 16
AXES = ("x", "y", "z")


def generate(kernels: Sequence[Kernel], target: Target, context: Context) -> BackendOutput:
    """Compile kernels into ``cuda.o`` in the work folder. Raises BackendError, ToolchainError."""
    toolkit = find_cuda_toolkit(target.options.home)
    toolchain = {"tvm": tvm.__version__, "nvcc": toolkit.version}
    if not kernels:
        return BackendOutput("cuda", toolchain=toolchain)
    parts = _parts(kernels, context.jobs)
    tvm_target = tvm.target.Target({"kind": "cuda", "arch": target.options.arch[0]})
    launches: dict[str, Launch] = {}
    for index, part in enumerate(parts):
        module, own = lower_cuda_kernels(part, tvm_target)
        launches |= own
        code = tvm.get_global_func("target.build.cuda")(module, tvm_target).inspect_source()
        (context.workdir / f"kernels_{index}.cu").write_text(code)
    with ThreadPoolExecutor(context.jobs) as pool:
        list(pool.map(lambda index: _compile(index, toolkit, target, context), range(len(parts))))
    path = _compile_launchers(parts, launches, context)
    library = StaticLibrary(
        path.name,
        (path,),
        tuple(kernel.symbol for kernel in kernels),
        cuda_modules=tuple(CudaModule(_module(index), len(part)) for index, part in enumerate(parts)),
    )
    return BackendOutput("cuda", (library,), licenses=LICENSES, toolchain=toolchain)


def _parts(kernels: Sequence[Kernel], jobs: int) -> list[Sequence[Kernel]]:
    count = max(min(jobs, len(kernels)), -(-len(kernels) // KERNELS_PER_FILE))
    size = -(-len(kernels) // count)
    return [kernels[at : at + size] for at in range(0, len(kernels), size)]


def _module(index: int) -> str:
    return f"pkm_cuda_{index}"


def _compile(index: int, toolkit: CudaToolkit, target: Target, context: Context) -> None:
    source = context.workdir / f"kernels_{index}.cu"
    options = target.options
    output = source.with_suffix(".fatbin")
    compile_fatbin(toolkit, source, output, options.arch, options.ptx, (), context.toolchain.cc)


def _compile_launchers(parts: Sequence[Sequence[Kernel]], launches: Mapping[str, Launch], context: Context) -> Path:
    source = context.workdir / "cuda.c"
    source.write_text(
        render(
            "cuda_kernels.c.j2",
            modules=[
                {
                    "name": _module(index),
                    "image": f"kernels_{index}.fatbin",
                    "kernels": [
                        _kernel_view(number, kernel, launches[kernel.symbol]) for number, kernel in enumerate(part)
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


def _kernel_view(number: int, kernel: Kernel, launch: Launch) -> dict[str, Any]:
    pointers = [f"p{index}" for index in range(len(kernel.parameters))]
    scalars = [f"s{index}" for index in range(len(kernel.scalars))]
    types = ["void *" if parameter.written else "const void *" for parameter in kernel.parameters]
    names = {scalar.__chandle__(): name for scalar, name in zip(kernel.scalars, scalars, strict=True)}
    declared = [f"{type_}{name}" for type_, name in zip(types, pointers, strict=True)]
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
    }
