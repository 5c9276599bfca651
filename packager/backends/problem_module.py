"""What backends of libraries that are asked for plans do with their problems: one C file, candidates by rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from packager.backends.base import Context
from packager.backends.problem_calls import ProblemCall, ProblemMemory
from packager.bundle.tuning_records import Records
from packager.codegen.toolchain import run
from packager.ir.primitives import Candidates, FunctionGroup, PrimitiveFunction
from packager.resources import folder

C_FLAGS = ("-std=gnu11", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-fno-asynchronous-unwind-tables", "-Wall")


def group_of(
    call: ProblemCall, memory: ProblemMemory, candidates: Candidates, libraries: Sequence[str]
) -> FunctionGroup:
    """Return the function of one problem as a finished group, which calls ``libraries``, by their symbols."""
    function = PrimitiveFunction(call.symbol, tuple(call.parameters), tuple(call.scalars), candidates=candidates)
    return FunctionGroup(
        (function,),
        workspaces=tuple(memory.workspaces),
        packings=tuple(memory.packings),
        libraries=tuple(libraries),
    )


def ranked(key: str, prefix: str, count: int, records: Records, revision: str) -> Candidates:
    """Return the library's ``count`` answers by rank; the default is the one that records say, or its first."""
    names = tuple(f"{prefix}_{rank}" for rank in range(count))
    measured = [r.chosen for r in records.records if (r.problem, r.revision) == (key, revision) and r.chosen in names]
    return Candidates(key, names, revision, names.index(measured[0]) if measured else 0)


def include_flags(name: str) -> list[str]:
    """Return the C compiler's flags for the headers of a backend."""
    return [f"-I{path}" for path in (folder("templates") / name, folder("runtime_stub") / "include")]


def compile_module(name: str, text: str, context: Context) -> Path:
    """Compile the C text of a backend to ``NAME.o``; its headers are those of its templates. Raises ToolchainError."""
    source = context.workdir / f"{name}.c"
    source.write_text(text, encoding="utf-8")
    output = source.with_suffix(".o")
    run(
        [context.toolchain.cc, *C_FLAGS, *include_flags(name), "-c", source.name, "-o", output.name],
        cwd=context.workdir,
    )
    return output
