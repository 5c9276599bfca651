"""Function multiversioning: checks libraries with clones for several CPU levels, and drops redundant ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from packager.bundle.hashing import sha256_of_file
from packager.bundle.requirements import CpuLevel
from packager.errors import BackendError
from packager.ir.link_plan import PreparedLibrary
from packager.ir.primitives import BackendOutput, StaticLibrary


def needed_libraries(outputs: Sequence[BackendOutput], cpus: Sequence[str]) -> tuple[BackendOutput, ...]:
    """Drop the libraries whose code is identical to the next lower level's.

    ``cpus`` are the base Target's levels in increasing order; empty for a GPU. Raises BackendError for a library of an
    unknown level, or with clones of functions that the lowest level lacks.
    """
    return tuple(_needed(output, cpus) for output in outputs)


def cpu_levels(libraries: Sequence[PreparedLibrary], cpus: Sequence[str]) -> tuple[CpuLevel, ...]:
    """Return the levels of a bundle: the lowest, and those with clones.

    A function without a clone for a level uses the next lower level's, so each level requires the features of those
    below.
    """
    levels: list[CpuLevel] = []
    features: set[str] = set()
    for cpu in cpus:
        of_level = [library for library in libraries if library.level == (cpu if levels else "")]
        if of_level or not levels:
            features = features.union(*(library.cpu_features for library in of_level))
            levels.append(CpuLevel(cpu, tuple(sorted(features))))
    return tuple(levels)


def _needed(output: BackendOutput, cpus: Sequence[str]) -> BackendOutput:
    ranks = {"": 0, **{cpu: rank for rank, cpu in enumerate(cpus)}}
    for library in output.static_libraries:
        _check_level(output.kind, library, cpus)
    least = {symbol for library in output.static_libraries if not ranks[library.level] for symbol in library.symbols}
    kept: list[StaticLibrary] = []
    for library in sorted(output.static_libraries, key=lambda library: ranks[library.level]):
        rank = ranks[library.level]
        if rank and (strange := sorted(set(library.symbols) - least)):
            raise BackendError(
                f"{output.kind}: {library.name} provides {strange[0]} for {library.level} only",
                hint=f"provide it for {cpus[0]} too: the bundle must run on that CPU",
            )
        if rank and _is_redundant(library, kept):
            continue
        kept.append(library if rank else dataclasses.replace(library, level=""))
    return dataclasses.replace(output, static_libraries=tuple(kept))


def _check_level(kind: str, library: StaticLibrary, cpus: Sequence[str]) -> None:
    if not library.level:
        return
    if library.level not in cpus:
        raise BackendError(
            f"{kind}: {library.name} is for {library.level!r}, which is not one of the Target's CPUs",
            hint=f"the levels are {', '.join(cpus)}" if cpus else "GPU code has no CPU levels",
        )
    if library.dispatched_features:
        raise BackendError(
            f"{kind}: {library.name} is for {library.level!r} and has dispatched_features",
            hint="provide code with its own CPU check without a level",
        )


def _is_redundant(library: StaticLibrary, below: Sequence[StaticLibrary]) -> bool:
    """Whether the next lower level has the same functions from files of equal content."""
    same = [one for one in below if set(one.symbols) & set(library.symbols)][-1:]
    return [(one.symbols, list(_contents(one.files))) for one in same] == [
        (library.symbols, list(_contents(library.files)))
    ]


def _contents(files: Iterable[Path]) -> Iterable[str]:
    return (sha256_of_file(path) if path.is_file() else str(path) for path in files)
