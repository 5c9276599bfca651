"""Checks the static libraries that backends return against their metadata, and links each into one object.

Such an object holds the code reachable from the library's symbols, with all other names local. Problems are
BackendErrors that start with the backend's kind and name the symbol and the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from packager.bundle.hashing import sha256_of_file
from packager.bundle.isa import features as isa
from packager.bundle.manifest import StaticLibrary as FileRecord
from packager.codegen.sysroot import read_system_symbols
from packager.codegen.toolchain import Toolchain
from packager.ir.link_plan import PreparedLibrary
from packager.ir.primitives import BackendOutput
from packager.link.libraries.checks import (
    check_files,
    check_linked,
    check_loaded,
    check_owners,
    check_position,
    check_provided,
    check_undefined,
)
from packager.link.libraries.cpu_levels import needed_libraries
from packager.link.libraries.job import Job
from packager.link.libraries.linking import link, link_without_constructors, localize


def check_libraries(
    outputs: Sequence[BackendOutput],
    toolchain: Toolchain,
    workdir: Path,
    *,
    static: bool = False,
    cpus: Sequence[str] = (),
) -> tuple[PreparedLibrary, ...]:
    """Check the outputs of all backends and return their libraries, ready to link.

    ``cpus`` are the base Target's levels; ``static`` is the form of the bundle: a shared one binds functions of the C
    library to versions. Writes to ``workdir``. Raises BackendError; ToolchainError if a tool fails.
    """
    base = read_system_symbols(toolchain, workdir)
    outputs = needed_libraries(outputs, cpus)
    check_owners(outputs, base)
    check_loaded(outputs)
    prepared: list[PreparedLibrary] = []
    for output in outputs:
        system = read_system_symbols(toolchain, workdir, output.kind, output.requires) if output.requires else base
        for library in output.static_libraries:
            stem = f"prepared-{output.kind}-{len(prepared)}"
            prepared.append(_prepare(Job(output.kind, library, toolchain, system, workdir, stem, static)))
    return tuple(prepared)


def _prepare(job: Job) -> PreparedLibrary:
    check_files(job)
    linked = link(job, [str(path) for path in job.library.files], job.stem)
    if check_linked(job, linked):
        link_without_constructors(job)
    prepared = job.workdir / f"{job.stem}.o"
    (image,) = job.objects({prepared: None})
    undefined = image.undefined
    check_provided(job, image)
    check_undefined(job, undefined, linked)
    check_position(job, list(image.position_faults()), linked)
    features = set(isa.cpu_features(prepared)) - set(job.library.dispatched_features)
    localize(job, prepared, undefined)
    return PreparedLibrary(
        kind=job.kind,
        path=prepared,
        symbols=job.library.symbols,
        files=tuple(
            FileRecord(path.name, sha256_of_file(path), tuple(sorted(members or ())))
            for path, members in linked.items()
        ),
        cpu_features=tuple(sorted(features)),
        uses_libgcc=bool((undefined & job.system.libgcc) - job.system.c_library),
        cuda_modules=job.library.cuda_modules,
        level=job.library.level,
        loaded_libraries=job.library.loaded_libraries,
    )
