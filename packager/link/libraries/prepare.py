"""The metadata check: are the static libraries of the backends what these say, and may they be part of a bundle?

Each becomes one object of what its symbols reach, in which all other names are local. Whatever is wrong is a
BackendError that starts with the backend's kind and names the symbol and the file.
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
    check_owners,
    check_position,
    check_provided,
    check_undefined,
)
from packager.link.libraries.compile_jobs import Job
from packager.link.libraries.cpu_levels import needed_libraries
from packager.link.libraries.linking import link, link_without_constructors, localize


def check_libraries(
    outputs: Sequence[BackendOutput],
    toolchain: Toolchain,
    workdir: Path,
    *,
    static: bool = False,
    cpus: Sequence[str] = (),
) -> tuple[PreparedLibrary, ...]:
    """Check what all backends of a build have handed back and return their libraries, ready to be linked.

    ``cpus`` are those of the base Target, which libraries may be for; ``static`` is the form of the bundle: the shared
    one binds functions of the C library to versions. Writes into ``workdir``. Raises BackendError; ToolchainError if a
    tool is at fault.
    """
    base = read_system_symbols(toolchain, workdir)
    outputs = needed_libraries(outputs, cpus)
    check_owners(outputs, base)
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
    )
