"""Engines as primitive functions: what a partition's engine is, what its function gets, and the object of them all.

An engine that nobody could build yet is *pending*: its function is there, and fails until ``packager finalize`` has
appended the engine to the bundle.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packager.backends.base import Context
from packager.backends.problem_module import compile_module
from packager.backends.tensorrt.library import LIBRARIES, Form, functions_of, loaded_library, symbol_of
from packager.bundle.dtypes import storage_dtype
from packager.bundle.gpu.engine_graphs import ENGINE_GRAPHS_SECTION
from packager.bundle.gpu.engines import ENGINE_DATA_SECTION, ENGINES_SECTION
from packager.bundle.hashing import sha256
from packager.codegen.escape import c_string
from packager.codegen.templates import MARK, render
from packager.errors import BackendError
from packager.graph.dataflow import same
from packager.ir.primitives import FunctionGroup, Parameter, PrimitiveFunction, StaticLibrary

ALIGNMENT = 256
"""Of device memory, in bytes, as the library wants it: PK_TRT_ALIGNMENT of templates/tensorrt/problem.h."""
MAX_RANK = 8
GRAPHS = "graphs.bin"
TYPES = {
    "float32": 0,
    "float16": 1,
    "int8": 2,
    "int32": 3,
    "bool": 4,
    "uint8": 5,
    "float8_e4m3fn": 6,
    "bfloat16": 7,
    "int64": 8,
}
"""Element types -> ``DataType``; versions before 10 end with ``uint8``."""


@dataclass(frozen=True)
class EngineTensor:
    """An input or output of an engine: its name there, and argument ``argument`` of the partition.

    ``shape`` are extents: integers, or ``tirx`` expressions over the partition's shape variables. An engine that has
    such ones is built with one optimization profile, number 0, which includes all that the dims allow.
    """

    name: str
    dtype: str
    shape: tuple[Any, ...]
    argument: int


@dataclass(frozen=True)
class EngineConstant:
    """Weights that an engine was built with refittable under this name: constant argument ``argument``, as it is."""

    name: str
    dtype: str
    elements: int
    argument: int


@dataclass(frozen=True)
class Engine:
    """An engine, or what it is to be.

    ``key`` is a SHA-256, in hexadecimal, of the partition and of all options: ``packager finalize`` finds the engine's
    place by it. ``data`` is None while it is pending; then ``version`` and ``arch`` are nothing yet, too, and
    ``workspace_bytes`` is what is set aside in the arena, more than which a session allocates itself. ``version`` is
    that of the library, ``(10, 13, 3)``; ``arch`` the architecture of the GPU, 90, or 0 if it runs on several.
    """

    key: str
    library: Form
    data: bytes | None = None
    version: tuple[int, ...] = ()
    arch: int = 0
    workspace_bytes: int = 0


@dataclass(frozen=True)
class EngineFunction:
    """The primitive function of a partition's engine.

    Where a session swaps one of its ``constants``, the engine is refitted; if it cannot be, the run fails.
    """

    symbol: str
    inputs: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]
    engine: Engine
    constants: tuple[EngineConstant, ...] = ()

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Its pointers: inputs, outputs, constants, workspace."""
        return (
            *(Parameter("argument", one.argument) for one in self.inputs),
            *(Parameter("argument", output.argument, written=True) for output in self.outputs),
            *(Parameter("argument", constant.argument) for constant in self.constants),
            Parameter("workspace", 0, written=True),
        )

    @property
    def tensors(self) -> tuple[EngineTensor, ...]:
        """Inputs and outputs."""
        return (*self.inputs, *self.outputs)

    @property
    def extents(self) -> list[Any]:
        """The extents that a run has to say, in the order of tensors and dimensions."""
        return [extent for tensor in self.tensors for extent in tensor.shape if not isinstance(extent, int)]

    @property
    def scalars(self) -> tuple[Any, ...]:
        """The same, each once."""
        found: list[Any] = []
        for extent in self.extents:
            if not any(same(extent, known) for known in found):
                found.append(extent)
        return tuple(found)

    @property
    def workspace(self) -> Any:
        """Bytes of its workspace: of the engine, and copies of tensors whose addresses are not aligned."""
        copies = [
            math.prod(tensor.shape, start=storage_dtype(tensor.dtype).itemsize) + ALIGNMENT for tensor in self.tensors
        ]
        return sum(copies, start=-(-self.engine.workspace_bytes // ALIGNMENT) * ALIGNMENT + ALIGNMENT)


def group_of(function: EngineFunction) -> FunctionGroup:
    """Return the finished group of a partition."""
    return FunctionGroup(
        (PrimitiveFunction(function.symbol, function.parameters, function.scalars),),
        workspaces=(function.workspace,),
        libraries=(symbol_of(function.engine.library),),
    )


def compile_engines(
    functions: Sequence[EngineFunction], context: Context, graphs: bytes = b"", *, embedded: Path | None = None
) -> StaticLibrary:
    """Compile ``tensorrt.o``: the functions, and the engines that there are, inside; ``graphs`` are not loaded.

    With ``embedded``, the file of the library that all of them need, it gets a copy of that too. Raises BackendError
    for functions that cannot be stated, ToolchainError, OSError.
    """
    if embedded is not None:
        shutil.copyfile(embedded, context.workdir / embedded.name)
    for function in functions:
        check_function(function)
        if function.engine.data is not None:
            (context.workdir / _file_of(function)).write_bytes(function.engine.data)
    (context.workdir / GRAPHS).write_bytes(graphs)
    forms = list(dict.fromkeys(function.engine.library for function in functions))
    return StaticLibrary(
        "tensorrt",
        (compile_module("tensorrt", render_module(functions, embedded), context),),
        tuple(function.symbol for function in functions),
        loaded_libraries=tuple(loaded_library(form, _versions(functions, form), embedded=embedded) for form in forms),
    )


def _versions(functions: Sequence[EngineFunction], form: Form) -> list[tuple[int, ...]]:
    """Return the versions of a form that have built the engines; none if one is pending."""
    engines = [function.engine for function in functions if function.engine.library == form]
    return [engine.version for engine in engines] if all(engine.data for engine in engines) else []


def render_module(functions: Sequence[EngineFunction], embedded: Path | None = None) -> str:
    """Return the C of functions; their engines' data, and the library, are in files of the compiler's folder."""
    forms = list(dict.fromkeys(function.engine.library for function in functions))
    return render(
        "tensorrt/module.c.j2",
        mark=MARK,
        section=ENGINES_SECTION,
        data_section=ENGINE_DATA_SECTION,
        graphs_section=ENGINE_GRAPHS_SECTION,
        graphs=GRAPHS,
        libraries=[
            {
                "symbol": symbol_of(form),
                "number": LIBRARIES[form].number,
                "functions": len(functions_of(form)),
                "image": embedded.name if embedded else None,
                "image_bytes": embedded.stat().st_size if embedded else 0,
            }
            for form in forms
        ],
        functions=[_view(function) for function in functions],
    )


def check_function(function: EngineFunction) -> None:
    """Raise BackendError for a function that cannot be stated."""
    for tensor in function.tensors:
        if tensor.dtype not in TYPES or len(tensor.shape) > MAX_RANK:
            raise BackendError(
                f"tensorrt: {function.symbol}: {tensor.name} is {tensor.dtype} of {len(tensor.shape)} dimensions"
            )
    if function.engine.data is not None and not (function.engine.data and function.engine.version):
        raise BackendError(f"tensorrt: {function.symbol}: its engine is empty, or has no version")


def _file_of(function: EngineFunction) -> Path:
    return Path(f"{function.symbol}.engine")


def _view(function: EngineFunction) -> dict[str, Any]:
    engine = function.engine
    data = engine.data or b""
    pointers = [f"p{index}" for index in range(len(function.parameters) - 1)]
    written = [parameter.written for parameter in function.parameters]
    parameters = ["pk_cuda_t *cuda"]
    parameters += [f"{'void *' if writes else 'const void *'}p{index}" for index, writes in enumerate(written)]
    parameters += [f"int64_t s{index}" for index in range(len(function.scalars))]
    return {
        "symbol": function.symbol,
        "key": engine.key,
        "number": LIBRARIES[engine.library].number,
        "library": symbol_of(engine.library),
        "bytes": len(data),
        "memory": engine.workspace_bytes if data else 0,
        "version": ([*engine.version, 0, 0, 0, 0][:4]) if data else [0] * 4,
        "arch": engine.arch if data else 0,
        "sha256": list(bytes.fromhex(sha256([data]))) if data else [0],
        "file": str(_file_of(function)) if data else None,
        "workspace": engine.workspace_bytes,
        "inputs": len(function.inputs),
        "tensors": [
            {
                "name": c_string(tensor.name),
                "type": TYPES[tensor.dtype],
                "rank": len(tensor.shape),
                "extents": [extent if isinstance(extent, int) else -1 for extent in tensor.shape] or [0],
            }
            for tensor in function.tensors
        ],
        "constants": [
            {"name": c_string(constant.name), "type": TYPES[constant.dtype], "elements": constant.elements}
            for constant in function.constants
        ],
        "parameters": ", ".join(parameters),
        "pointers": pointers,
        "extents": [
            f"s{next(index for index, known in enumerate(function.scalars) if same(extent, known))}"
            for extent in function.extents
        ],
    }
