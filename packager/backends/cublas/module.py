"""Compile all partitions of a model: one C file that states their problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packager.backends.base import Context, Target
from packager.backends.cublas.library import SYMBOL, loaded_library
from packager.backends.cublas.options import CublasOptions
from packager.backends.cublas.problem import (
    TYPES,
    CublasProblem,
    describe,
    epilogue_of,
    gain_name,
    ones_name,
    scaled_by,
    state_problem,
    wide_type,
)
from packager.backends.problem_calls import ProblemCall, ProblemMemory
from packager.backends.problem_module import compile_module, group_of, ranked
from packager.bundle.hashing import digest, digest_of_folder
from packager.bundle.tuning_records import read_records
from packager.codegen.templates import MARK, render
from packager.errors import BackendError
from packager.graph.identity import IdentityMap
from packager.graph.symbolic import most_elements
from packager.ir.primitives import BackendOutput, Partition, StaticLibrary
from packager.resources import folder

TEMPLATES = folder("templates") / "cublas"


@dataclass(frozen=True)
class Draft:
    """The function of a partition."""

    call: ProblemCall
    memory: ProblemMemory
    problem: CublasProblem
    rows: int
    key: str

    def view(self) -> dict[str, Any]:
        """Return the values of the template."""
        return {
            "symbol": self.call.symbol,
            "parameters": self.call.signature,
            "fields": self.call.fields,
            "type": TYPES[self.problem.dtype],
            "out": TYPES[self.problem.out],
            "wide": TYPES[wide_type(self.problem.out)],
            "epilogue": epilogue_of(self.problem.chain),
            "scaled": scaled_by(self.problem),
        }


def compile_partitions(partitions: Sequence[Partition], target: Target, context: Context) -> BackendOutput:
    """Compile ``cublas.o``. Raises BackendError, ToolchainError."""
    if not partitions:
        return BackendOutput(target.kind)
    options = target.options
    drafts = {partition.name: draft_partition(partition, options) for partition in partitions}
    records, revision = read_records(options.tuning), revision_of(options)
    scaled = [draft for draft in drafts.values() if draft.problem.scales is not None]
    library = StaticLibrary(
        "cublas",
        (compile_module("cublas", render_module(list(drafts.values())), context),),
        tuple(draft.call.symbol for draft in drafts.values()),
        loaded_libraries=(loaded_library(options, scales_columns=bool(scaled)),),
    )
    groups = {}
    for name, draft in drafts.items():
        candidates = ranked(draft.key, "cublaslt", options.candidates, records, revision)
        groups[name] = group_of(draft.call, draft.memory, candidates, (SYMBOL,))
    gains = {draft.problem.gain for draft in drafts.values()} - {1.0}
    constants = {gain_name(gain): np.full(1, gain, np.float32) for gain in gains}
    constants |= {ones_name(draft.rows): np.ones(draft.rows, np.float32) for draft in scaled}
    return BackendOutput(target.kind, (library,), groups, constants=constants)


def draft_partition(partition: Partition, options: CublasOptions) -> Draft:
    """Return the function of a partition."""
    arguments = IdentityMap((parameter, index) for index, parameter in enumerate(partition.function.params))
    (composite,) = partition.composites
    problem = composite.problem
    if not isinstance(problem, CublasProblem):
        raise BackendError(f"cublas: {partition.name} ({composite.name}) has no problem of this backend's")
    call, memory = ProblemCall(f"{partition.name}_cublas", "pk_cublas_t"), ProblemMemory()
    parameters, bounds = partition.function.params, partition.bounds
    rows, batch = (most_elements(extents, parameters, bounds) for extents in (problem.rows, problem.batch))
    state_problem(problem, rows, arguments, call, memory, options)
    return Draft(call, memory, problem, rows, describe(problem, rows, batch))


def revision_of(options: CublasOptions) -> str:
    """Return what measurements of ranks are valid for: how the library is asked."""
    code = digest([digest_of_folder(TEMPLATES, "*"), options.soname, options.candidates, options.workspace_mb])
    return f"cublas {code[:12]}"


def render_module(drafts: Sequence[Draft]) -> str:
    """Return the C of all functions."""
    functions = [draft.view() for draft in drafts]
    return render("cublas/module.c.j2", mark=MARK, library=SYMBOL, functions=functions)
