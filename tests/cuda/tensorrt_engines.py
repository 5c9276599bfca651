"""Engines for the tests of the tensorrt backend: those of the stand-in for the library, and modules of functions."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packager.backends.tensorrt.library import Form
from packager.backends.tensorrt.module import (
    GRAPHS,
    Engine,
    EngineConstant,
    EngineFunction,
    EngineTensor,
    render_module,
)

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent / "tensorrt"
FORMS: dict[str, tuple[Form, str, int]] = {
    "8.6.1": ("tensorrt", "libnvinfer.so.8", 8601),
    "10.13.3": ("tensorrt", "libnvinfer.so.10", 101303),
    "11.1.0": ("tensorrt", "libnvinfer.so.11", 110100),
    "1.7.1": ("tensorrt_rtx", "libtensorrt_rtx.so.1", 10701),
}
"""Versions that there are stand-ins for: the form, its soname, and how it states its version."""
WARNINGS = ("-Wall", "-Wextra", "-Werror")


def make_stand_in(folder: Path, version: str, *flags: str, states: int = 0) -> Path:
    """Compile the stand-in for a version of the library, which ``states`` another one if that is not 0."""
    _, soname, packed = FORMS[version]
    path = folder / soname
    argv = ["gcc", "-D_GNU_SOURCE", f"-DVERSION={states or packed}", "-std=gnu11", "-O1", "-g", "-fPIC", "-shared"]
    argv += ["-fvisibility=hidden", *WARNINGS, *flags, str(SOURCES / "nvinfer.c"), "-o", str(path)]
    subprocess.run([*argv, "-ldl", "-lpthread"], check=True)
    return path


def plan_bytes(
    version: str,
    weights: Sequence[float],
    inputs: Sequence[tuple[str, tuple[int, ...]]],
    outputs: Sequence[tuple[str, tuple[int, ...]]],
    *,
    memory: int = 0,
    weights_name: str = "",
) -> bytes:
    """Return an engine of the stand-in (plan.h); extents of -1 are said by a run."""
    tensors = [(name, 1, shape) for name, shape in inputs] + [(name, 2, shape) for name, shape in outputs]
    data = struct.pack("<8s6i32s", b"FAKEPLAN", FORMS[version][2], memory, bool(weights_name), len(tensors),
                       len(weights), 0, weights_name.encode())  # fmt: skip
    data += struct.pack("<16f", *weights, *[0] * (16 - len(weights)))
    for name, mode, shape in tensors:
        data += struct.pack("<32s4i8q", name.encode(), mode, 0, len(shape), 0, *shape, *[0] * (8 - len(shape)))
    return data + bytes(112 * (4 - len(tensors)))


def engine(version: str, key: str, data: bytes | None, workspace: int = 0, arch: int = 90) -> Engine:
    """Return an engine whose key is one digit again and again."""
    numbers = tuple(map(int, version.split(".")))
    return Engine(key * 64, FORMS[version][0], data, numbers if data else (), arch, workspace)


def simple(symbol: str, made: Engine, output: str = "y") -> EngineFunction:
    """Return a function of x and y, float32 of 2 rows and 3 columns."""
    x, y = (EngineTensor(name, "float32", (2, 3), index) for index, name in enumerate(("x", output)))
    return EngineFunction(symbol, (x,), (y,), made)


def all_functions(version: str, extent: Any) -> list[EngineFunction]:
    """Return the functions of tensorrt/engines.c; ``extent`` is a variable."""
    weights, matrix = (1, 2, 3), (2, 3)
    plan = plan_bytes(version, weights, [("x", matrix)], [("y", matrix)], memory=1000)
    row = (-1,)
    sized = plan_bytes(version, weights, [("a", row), ("b", row)], [("y", row)], memory=300, weights_name="w.0")
    tensors = [EngineTensor(name, "float32", (extent,), index) for index, name in enumerate("aby")]
    return [
        simple("engine_static", engine(version, "0", plan, 1000)),
        EngineFunction(
            "engine_sized",
            tuple(tensors[:2]),
            tuple(tensors[2:]),
            engine(version, "1", sized, 300, arch=0),
            (EngineConstant("w.0", "float32", len(weights), 3),),
        ),
        simple("engine_large", engine(version, "2", plan, 999)),
        simple("engine_pending", engine(version, "3", None)),
        simple("engine_junk", engine(version, "4", b"junk")),
        simple("engine_other", engine(version, "5", plan), "z"),
        simple("engine_elsewhere", engine(version, "6", plan, arch=80)),
    ]


def compile_program(folder: Path, driver: str, functions: Sequence[EngineFunction], *flags: str) -> Path:
    """Compile a program of tensorrt/ with the module of the functions, all warnings being errors."""
    module, program = folder / "module.c", folder / Path(driver).stem
    module.write_text(render_module(functions))
    (folder / GRAPHS).write_bytes(b"")
    for function in functions:
        if function.engine.data is not None:
            (folder / f"{function.symbol}.engine").write_bytes(function.engine.data)
    symbol = f"pkm_{functions[0].engine.library}"
    include = [f"-I{ROOT / 'templates' / 'tensorrt'}", f"-I{ROOT / 'runtime_stub' / 'include'}"]
    argv = ["gcc", "-D_GNU_SOURCE", "-std=gnu11", "-O1", "-g", *flags, *WARNINGS, *include, f"-DLIBRARY={symbol}"]
    argv += [str(SOURCES / driver), module.name, "-o", str(program), "-ldl", "-lpthread"]
    subprocess.run(argv, cwd=folder, check=True)
    return program
