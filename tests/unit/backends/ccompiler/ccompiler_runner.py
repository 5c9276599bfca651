"""Run what the ccompiler backend makes of one Relax function: compile, link with gcc, call through ctypes."""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tvm import relax, tirx

from packager.backends.base import Context, Target
from packager.backends.ccompiler.backend import BACKEND, OPERATORS
from packager.backends.ccompiler.core.machine import Machine
from packager.backends.ccompiler.module import render_module
from packager.backends.ccompiler.patterns import make_patterns
from packager.codegen.toolchain import find_toolchain
from packager.ir.primitives import BackendOutput, CallSite, Composite, Cost, FunctionGroup, Partition
from packager.placement.match import FlatMain, find_candidates
from packager.targets.target_list import parse_targets

STRICT = ("-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-Wframe-larger-than=131072")
# Compile every module once more with these, as by hand, and run that: how the tests run under sanitizers.
FLAGS = tuple(os.environ.get("CCOMPILER_TEST_FLAGS", "").split())
# Of the compiler: the sanitizers' libraries are for what it makes, and would make it slow.
OWN = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def variable(name: str, shape: Sequence[Any], dtype: str = "float32") -> relax.Var:
    """Return a tensor argument."""
    return relax.Var(name, relax.TensorType(tuple(shape), dtype))


def partition(
    arguments: Sequence[relax.Var],
    body: Callable[..., Any],
    constants: Sequence[int] = (),
    name: str = "part",
) -> Partition:
    """Return a partition of what ``body`` makes of the arguments, every operator in a binding of its own."""
    builder = relax.BlockBuilder()
    with builder.function("main", list(arguments)):
        with builder.dataflow():
            made = body(builder.emit, *arguments)
            results = made if isinstance(made, tuple) else (made,)
            outputs = [builder.emit_output(result) for result in results]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    function = relax.transform.CanonicalizeBindings()(builder.get())["main"]
    return Partition(name, composites(function), function, frozenset(constants), (CallSite((), {}),), Cost(0, 0, 0))


def composites(function: relax.Function) -> tuple[Composite, ...]:
    """Return the matches in a function that have a problem, the largest first; no two have a binding in common."""
    graph = FlatMain(function, len(function.params), lambda _variable: None)
    covered: set[int] = set()
    found = []
    for candidate in find_candidates(graph, make_patterns(OPERATORS)):
        if candidate.problem is not None and covered.isdisjoint(candidate.nodes):
            covered |= candidate.nodes
            found.append(Composite(candidate.pattern.name, (), candidate.problem))
    return tuple(found)


def compile_all(
    partitions: Sequence[Partition], folder: Path, target: str = "ccompiler", base: str = "llvm"
) -> tuple[BackendOutput, Target]:
    """Compile with the backend; ``base`` is the Target of the machine."""
    targets = parse_targets([base, target])
    folder.mkdir(parents=True, exist_ok=True)
    chosen = targets.specialized[0]
    context = Context(folder, find_toolchain(targets.host.machine), targets.host, jobs=1)
    return BACKEND.compile(partitions, chosen, context), chosen


def least_base() -> str:
    """Return the default Target with its least CPU alone: of code for others, which is made too, nothing would run."""
    return f"llvm -mcpu={parse_targets(['llvm']).host.cpus[0]}"


class Runner:
    """One compiled partition as a function of numpy arrays."""

    def __init__(
        self,
        part: Partition,
        folder: Path,
        target: str = "ccompiler",
        *,
        flags: Sequence[str] = (),
        split: int = 3,
        machine: Machine | None = None,
    ) -> None:
        """Compile; with ``machine``, what is rendered for it, which this machine's compiler must understand."""
        base, flags = least_base(), (*flags, *FLAGS) or (("-O2",) if machine is not None else ())
        if flags and "opt_level" not in target:
            target += " -opt_level=0"  # this object is not used
        output, _ = compile_all([part], folder, target, base)
        assert not output.given_back, output.given_back
        self.part, self.folder, self.split = part, folder, split
        self.group: FunctionGroup = output.groups[part.name]
        objects = [str(path) for library in output.static_libraries for path in library.files]
        if machine is not None:
            winograd = parse_targets([base, target]).specialized[0].options.winograd
            source, groups, _ = render_module([part], (), machine, winograd=winograd)
            (folder / "ccompiler.c").write_text(source)
            self.group = groups[part.name]
        if flags:  # compiled once more, as by hand
            march = parse_targets([base, target]).specialized[0].options.march[0]
            source = str(folder / "ccompiler.c")
            command = ["gcc", f"-march={march}", "-fPIC", *STRICT, *flags, "-c", source, "-o", f"{source}.o"]
            done = subprocess.run(command, env=OWN, check=False, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            objects = [f"{source}.o"]
        # The backend's symbols are hidden, as packager wants them: a table beside them can be seen.
        symbols = [function.symbol for function in self.group.functions]
        table = folder / "table.c"
        table.write_text(
            "".join(f"void {symbol}(void);\n" for symbol in symbols)
            + f"void (*const functions[])(void) = {{ {', '.join(symbols)} }};\n"
        )
        library = folder / "part.so"
        link = ["gcc", "-shared", "-fPIC", "-o", str(library), str(table), *objects, "-lm", "-Wl,-z,defs", *flags]
        subprocess.run(link, env=OWN, check=True, capture_output=True)
        self.library = library

    def bindings(self, arrays: Sequence[np.ndarray]) -> dict[str, int]:
        """Return the values of the shape variables."""
        found: dict[str, int] = {}
        for parameter, array in zip(self.part.function.params, arrays, strict=True):
            for extent, size in zip(parameter.ty.shape.values, array.shape, strict=True):
                if isinstance(extent, tirx.Var):
                    assert found.setdefault(str(extent.name), size) == size
        return found

    def __call__(self, *arrays: np.ndarray) -> Any:
        """Return the result, or a tuple of them."""
        values = self.bindings(arrays)
        ty = self.part.function.ret_ty
        types = list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]
        results = [guarded([evaluate(extent, values) for extent in t.shape.values], str(t.dtype)) for t in types]
        arguments = [*(np.ascontiguousarray(array) for array in arrays), *results]
        workspaces = [guarded([evaluate(size, values)], "uint8") for size in self.group.workspaces]
        packed = [np.ascontiguousarray(p.pack(arguments[p.argument])) for p in self.group.packings]
        spaces = {"argument": arguments, "workspace": workspaces, "packed": packed}
        library = ctypes.CDLL(str(self.library))
        table = (ctypes.CFUNCTYPE(ctypes.c_int32) * len(self.group.functions)).in_dll(library, "functions")
        for function, call in zip(self.group.functions, table, strict=True):
            pointers = [ctypes.c_void_p(spaces[p.kind][p.index].ctypes.data) for p in function.parameters]
            scalars = [ctypes.c_int64(evaluate(scalar, values)) for scalar in function.scalars]
            if function.extent is None:
                assert call(*pointers, *scalars) == 0
                continue
            extent = evaluate(function.extent, values)
            # In parts, the last first: iterations are independent.
            cuts = sorted({extent * part // self.split for part in range(self.split + 1)})
            for begin, end in reversed(list(pairwise(cuts))):
                assert call(*pointers, *scalars, ctypes.c_int64(begin), ctypes.c_int64(end)) == 0
        for array in (*results, *workspaces):
            check_guard(array)
        return results[0] if len(results) == 1 else tuple(results)


GUARD = 64


def guarded(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Return an array full of a pattern, with room for more of it on both sides, where nothing may write."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.full(size + 2 * GUARD + 64, 0xA5, np.uint8)
    first = GUARD + -(memory.ctypes.data + GUARD) % 64
    memory[first : first + size] = 0xFF
    return memory[first : first + size].view(dtype).reshape(shape)


def check_guard(array: np.ndarray) -> None:
    """Fail if something was written beside an array."""
    memory: Any = array
    while memory.base is not None:
        memory = memory.base
    first = array.ctypes.data - memory.ctypes.data
    assert (memory[:first] == 0xA5).all()
    assert (memory[first + array.nbytes :] == 0xA5).all()


def evaluate(extent: Any, values: Mapping[str, int]) -> int:
    """Return the value of an extent."""
    if isinstance(extent, int):
        return extent
    if isinstance(extent, tirx.IntImm):
        return int(extent.value)
    if isinstance(extent, tirx.Var):
        return values[str(extent.name)]
    a, b = evaluate(extent.a, values), evaluate(extent.b, values)
    operators: dict[Any, Callable[[int, int], int]] = {
        tirx.Add: lambda x, y: x + y,
        tirx.Sub: lambda x, y: x - y,
        tirx.Mul: lambda x, y: x * y,
        tirx.FloorDiv: lambda x, y: x // y,
        tirx.FloorMod: lambda x, y: x % y,
        tirx.Min: min,
        tirx.Max: max,
    }
    return operators[type(extent)](a, b)
