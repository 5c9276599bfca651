"""Compile the shims of operators, and check that their libraries can be linked into a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from packager.backends.base import Context
from packager.backends.external.archives import check_archives
from packager.backends.external.shim import Shim, make_shim
from packager.bundle.elf.file import read_elf
from packager.bundle.manifest import License
from packager.codegen.objects import is_archive, read_objects
from packager.codegen.sysroot import read_system_symbols
from packager.codegen.templates import render
from packager.codegen.toolchain import run
from packager.custom_ops.library import OpLibrary
from packager.errors import BackendError, ToolchainError
from packager.ir.primitives import BackendOutput, Partition, StaticLibrary, SystemLibrary
from packager.resources import folder

C_FLAGS = (
    *("-std=c11", "-O2", "-g0", "-fPIC", "-ffunction-sections", "-fdata-sections", "-fno-asynchronous-unwind-tables"),
    *("-Wall", "-Wextra", "-Werror"),
)
# Parts of glibc, which are always present.
C_LIBRARY = ("c", "m", "pthread", "dl", "rt", "util")
_CXX = ("_Z", "__cxa_", "__gxx_", "__dynamic_cast")


def build(partitions: Sequence[Partition], libraries: Sequence[OpLibrary], context: Context) -> BackendOutput:
    """Compile ``partitions``, which call operators of ``libraries``. Raises BackendError."""
    shims = {partition.name: make_shim(partition, libraries) for partition in partitions}
    static_libraries = []
    requires: dict[str, SystemLibrary] = {}
    licenses = []
    for library in libraries:
        own = [shim for shim in shims.values() if shim.library.name == library.name]
        if not own:
            continue
        check_archives(library, context.toolchain.machine)
        static_library = _compile(library, own, context)
        system = _system_libraries(library, static_library.files[0], context)
        _check_undefined(library, static_library, system, context)
        requires |= {needed.soname: needed for needed in system}
        static_libraries.append(static_library)
        licenses.append(License(library.name, library.license))
    return BackendOutput(
        kind="external",
        static_libraries=tuple(static_libraries),
        groups={name: shim.group for name, shim in shims.items()},
        constants={name: array for shim in shims.values() for name, array in shim.constants.items()},
        requires=tuple(requires.values()),
        licenses=tuple(licenses),
    )


def _compile(library: OpLibrary, shims: Sequence[Shim], context: Context) -> StaticLibrary:
    source = context.workdir / f"{library.name}.c"
    source.write_text(
        render("external/external_shim.c.j2", library=library.name, functions=[shim.view for shim in shims]),
        encoding="utf-8",
    )
    output = source.with_suffix(".o")
    include = folder("runtime_stub") / "include"
    argv = [context.toolchain.cc, *C_FLAGS, f"-I{include}", "-c", source.name, "-o", output.name]
    run(argv, cwd=context.workdir)
    return StaticLibrary(
        name=library.name,
        files=(output, *(_archive(library, index, context) for index in range(len(library.archives)))),
        symbols=tuple(function.symbol for shim in shims for function in shim.group.functions),
        dispatched_features=library.dispatched_features,
    )


def _archive(library: OpLibrary, index: int, context: Context) -> Path:
    """Return an archive of the library; an object is wrapped in one, whose symbols the linker can hide."""
    path = library.archives[index].resolve()
    if is_archive(path):
        return path
    own = context.workdir / f"{library.name}-{index}"  # objects of two folders may have one name
    own.mkdir()
    output = own / f"{path.stem}.a"
    run([context.toolchain.ar, "rcsD", output.name, str(path)], cwd=own)
    return output


def _system_libraries(library: OpLibrary, shim: Path, context: Context) -> tuple[SystemLibrary, ...]:
    """Return the declared system libraries with their sonames."""
    found = []
    for name in library.system_libraries:
        if name in C_LIBRARY:
            continue
        output = f"{library.name}-{name}.so"
        argv = [context.toolchain.cc, "-shared", "-nostdlib", "-Wl,--no-as-needed", "-o", output, shim.name]
        try:
            run([*argv, f"-l{name}"], cwd=context.workdir)
        except ToolchainError as error:
            raise BackendError(
                f"library {library.name!r} needs the system library {name!r}, which cannot be linked",
                detail=error.stderr,
                hint=f"install its development package, so that lib{name}.so is there",
            ) from None
        sonames = read_elf(context.workdir / output).needed
        if not sonames:
            raise BackendError(
                f"library {library.name!r} needs the system library {name!r}, which is here as a static archive only",
                hint="add that archive to the library's 'archive'",
            )
        found += [SystemLibrary(name, soname) for soname in sonames]
    return tuple(found)


def _check_undefined(
    library: OpLibrary, built: StaticLibrary, system: Sequence[SystemLibrary], context: Context
) -> None:
    """Raise BackendError, in terms of the library's description, if its code has undefined symbols."""
    output = context.workdir / f"{library.name}-linked.o"
    options = context.workdir / f"{library.name}.options"
    options.write_text("\n".join(f"--undefined={symbol}" for symbol in built.symbols))
    argv = [context.toolchain.ld, "-r", "--gc-sections", f"@{options.name}", "-o", output.name, "--start-group"]
    try:
        run([*argv, *map(str, built.files), "--end-group"], cwd=context.workdir)
    except ToolchainError as error:
        raise BackendError(
            f"library {library.name!r} cannot be linked",
            detail=error.stderr,
            hint="make the archive with `ar rcsD`"
            if "archive has no index" in error.stderr
            else "its archives must fit together: no symbol may be defined twice",
        ) from None
    provided = read_system_symbols(context.toolchain, context.workdir, "external", system)
    (linked,) = read_objects(output)
    lacking = sorted(symbol for symbol in linked.undefined if not provided.define(symbol))
    cxx = [symbol for symbol in lacking if symbol.startswith(_CXX)]
    if cxx:
        raise BackendError(
            f"library {library.name!r} is C++ code that needs its run-time library: {', '.join(cxx)}",
            hint="write it without exceptions, RTTI and the C++ library (-fno-exceptions -fno-rtti), or add "
            "\"stdc++\" to its 'system_libraries', which every machine must then have",
        )
    if lacking:
        raise BackendError(
            f"library {library.name!r} needs symbols that nothing provides: {', '.join(lacking)}",
            hint="add the archive that defines them to 'archive', or the system library to 'system_libraries'",
        )
