"""Compile all partitions of a model: one C file that states their problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packager.backends.base import Context, Target
from packager.backends.cublas.library import SYMBOL, loaded_library
from packager.backends.cublas.options import CublasOptions
from packager.backends.cublas.problem import TYPES, CublasProblem, describe, epilogue_of, state_problem
from packager.backends.problem_calls import ProblemCall, ProblemMemory
from packager.bundle.hashing import digest, digest_of_folder
from packager.bundle.tuning_records import Records, read_records
from packager.codegen.templates import MARK, render
from packager.codegen.toolchain import run
from packager.errors import BackendError
from packager.graph.identity import IdentityMap
from packager.ir.primitives import (
    BackendOutput,
    Candidates,
    FunctionGroup,
    Partition,
    PrimitiveFunction,
    StaticLibrary,
)
from packager.resources import folder

TEMPLATES = folder("templates") / "cublas"
HEADER_FOLDERS = (TEMPLATES, folder("runtime_stub") / "include")
C_FLAGS = ("-std=gnu11", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-fno-asynchronous-unwind-tables", "-Wall")


@dataclass(frozen=True)
class Draft:
    """The function of a partition."""

    call: ProblemCall
    memory: ProblemMemory
    problem: CublasProblem
    key: str

    def group(self, candidates: Candidates) -> FunctionGroup:
        """Return the finished group."""
        function = PrimitiveFunction(
            self.call.symbol, tuple(self.call.parameters), tuple(self.call.scalars), candidates=candidates
        )
        memory = self.memory
        return FunctionGroup(
            (function,),
            workspaces=tuple(memory.workspaces),
            packings=tuple(memory.packings),
            libraries=(SYMBOL,),
        )

    def view(self) -> dict[str, Any]:
        """Return the values of the template."""
        return {
            "symbol": self.call.symbol,
            "parameters": self.call.signature,
            "fields": self.call.fields,
            "type": TYPES[self.problem.dtype],
            "out": TYPES[self.problem.out],
            "epilogue": epilogue_of(self.problem.chain),
        }


def compile_partitions(partitions: Sequence[Partition], target: Target, context: Context) -> BackendOutput:
    """Compile ``cublas.o``. Raises BackendError, ToolchainError."""
    if not partitions:
        return BackendOutput(target.kind)
    options = target.options
    drafts = {partition.name: draft_partition(partition, options) for partition in partitions}
    records, revision = read_records(options.tuning), revision_of(options)
    library = StaticLibrary(
        "cublas",
        (_compile_module(list(drafts.values()), context),),
        tuple(draft.call.symbol for draft in drafts.values()),
        loaded_libraries=(loaded_library(options),),
    )
    groups = {name: draft.group(choose(draft.key, options, records, revision)) for name, draft in drafts.items()}
    return BackendOutput(target.kind, (library,), groups)


def draft_partition(partition: Partition, options: CublasOptions) -> Draft:
    """Return the function of a partition."""
    arguments = IdentityMap((parameter, index) for index, parameter in enumerate(partition.function.params))
    (composite,) = partition.composites
    problem = composite.problem
    if not isinstance(problem, CublasProblem):
        raise BackendError(f"cublas: {partition.name} ({composite.name}) has no problem of this backend's")
    call, memory = ProblemCall(f"{partition.name}_cublas", "pk_cublas_t"), ProblemMemory()
    state_problem(problem, arguments, call, memory, options)
    return Draft(call, memory, problem, describe(problem, partition.cost.flops))


def revision_of(options: CublasOptions) -> str:
    """Return what measurements of ranks are valid for: how the library is asked."""
    code = digest([digest_of_folder(TEMPLATES, "*"), options.soname, options.candidates, options.workspace_mb])
    return f"cublas {code[:12]}"


def choose(key: str, options: CublasOptions, records: Records, revision: str) -> Candidates:
    """Return the library's answers by rank; the default is the one that records say, or the library's first."""
    names = tuple(f"cublaslt_{rank}" for rank in range(options.candidates))
    measured = [r.chosen for r in records.records if (r.problem, r.revision) == (key, revision) and r.chosen in names]
    return Candidates(key, names, revision, names.index(measured[0]) if measured else 0)


def _compile_module(drafts: Sequence[Draft], context: Context) -> Path:
    source = context.workdir / "cublas.c"
    functions = [draft.view() for draft in drafts]
    source.write_text(render("cublas/module.c.j2", mark=MARK, library=SYMBOL, functions=functions), encoding="utf-8")
    output = source.with_suffix(".o")
    include = [f"-I{path}" for path in HEADER_FOLDERS]
    run([context.toolchain.cc, *C_FLAGS, *include, "-c", source.name, "-o", output.name], cwd=context.workdir)
    return output
