"""Checks of a static library, in the order in which they run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict

from packager.bundle import strict_json
from packager.bundle.elf.symbols import INTERNAL, LOCAL, NOTYPE, PROTECTED, UNDEFINED
from packager.bundle.isa.levels import clone_symbol
from packager.bundle.requirements import LibraryRequirement
from packager.bundle.strict_json import MismatchError
from packager.codegen.objects import ObjectFile, is_archive
from packager.codegen.sysroot import SystemSymbols
from packager.errors import BackendError, BundleError, listed
from packager.ir.primitives import BackendOutput, LoadedLibrary
from packager.link.libraries.job import Job, Linked

_SHOWN = 3


def check_owners(outputs: Sequence[BackendOutput], system: SystemSymbols) -> None:
    """Check that each symbol has one provider, and that a backend provides its own functions."""
    owners: dict[str, tuple[str, str]] = {}
    for output in outputs:
        for library in output.static_libraries:
            if not library.symbols:
                raise BackendError(f"{output.kind}: {library.name} provides no symbol", hint="leave the library out")
            for symbol in library.symbols:
                place = (output.kind, library.name)
                if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", symbol):
                    raise BackendError(f"{output.kind}: {library.name}: {symbol!r} is not a C identifier")
                clone = clone_symbol(symbol, library.level)
                if clone in owners:
                    raise BackendError(
                        f"{output.kind}: {library.name} provides {symbol}, which {' has in '.join(owners[clone])}",
                        hint="start symbols with the name of the backend and of the partition",
                    )
                if symbol in system.c_library:
                    raise BackendError(
                        f"{output.kind}: {library.name} provides {symbol}, a name of the C library",
                        hint="rename it: it would replace the C library's in the whole bundle",
                    )
                owners[clone] = place
        for name, group in output.groups.items():
            for function in group.functions:
                if owners.get(function.symbol, ("", ""))[0] != output.kind:
                    raise BackendError(
                        f"{output.kind}: {name} is computed by {function.symbol}, which none of its libraries provides",
                        hint="list it in the symbols of a StaticLibrary",
                    )


def check_loaded(outputs: Sequence[BackendOutput]) -> None:
    """Check what is said of loaded libraries: it reaches C, and paths that are opened."""
    owners: dict[str, str] = {}
    for output in outputs:
        for static in output.static_libraries:
            for library in static.loaded_libraries:
                what = f"{output.kind}: {static.name}: loaded library {library.symbol!r}"
                if static.level:
                    raise BackendError(
                        f"{what} is of code for {static.level!r}",
                        hint="compile the code that calls it for the lowest CPU level, which all levels use",
                    )
                if library.symbol in owners:
                    raise BackendError(
                        f"{what} is declared twice, also by {owners[library.symbol]}",
                        hint="start symbols with the name of the backend",
                    )
                owners[library.symbol] = output.kind
                _check_declaration(what, library)


def _check_declaration(what: str, library: LoadedLibrary) -> None:
    try:
        declared = LibraryRequirement(
            library.symbol,
            library.sonames,
            library.least,
            library.chosen_with,
            library.functions,
            optional=False,
            embedded=library.embedded,
        )
        strict_json.read(LibraryRequirement, strict_json.parse(strict_json.canonical(asdict(declared))))
    except (MismatchError, TypeError) as error:
        raise BackendError(
            f"{what}: {error}",
            hint='symbol="acme_blas", sonames=("libacme.so.2",), functions=("acme_version",), least="2.1"',
        ) from None
    for key, value in (("sonames", library.sonames), ("functions", library.functions)):
        if not value:
            raise BackendError(f"{what} has no {key}", hint="name what is to be opened, and what is called")


def check_files(job: Job) -> None:
    """Check that files are objects or archives for the machine, which define nothing else globally."""
    for path in job.library.files:
        if not path.is_file():
            raise job.error(f"{job.library.name}: there is no file {path}", "write it before compile returns")
        try:
            archived = is_archive(path)
        except BundleError as error:
            raise job.error(f"{path.name}: {error.message}", "create a regular archive: ar rcsD") from None
        first = next(job.objects({path: None}), None)
        if first is None:
            raise job.error(f"{path.name}: the archive is empty", "return archives with members")
        check_code(job, first)
        if not archived and (leaks := sorted(set(first.leaks) - {*job.library.symbols, *job.data})):
            raise job.error(
                f"{path.name} defines {listed(leaks, _SHOWN)}, which {job.library.name} does not provide",
                "make them static or hidden, or add them to its symbols",
            )


def check_code(job: Job, object_file: ObjectFile) -> None:
    machine = object_file.machine
    if machine != job.toolchain.machine:
        raise job.error(f"{object_file} is for {machine}, not {job.toolchain.machine}", "compile it for the Target")
    if object_file.is_intermediate:
        raise job.error(f"{object_file} holds intermediate code of the compiler", "compile without -flto")


def check_linked(job: Job, linked: Linked) -> bool:
    """Check each linked object; return whether there are constructors, all of which may be dropped."""
    constructors = False
    for object_file in job.objects(linked):
        check_code(job, object_file)
        if object_file.wants_executable_stack:
            raise job.error(
                f"{object_file} requires an executable stack",
                "do not take the address of nested functions; add .note.GNU-stack to assembly files",
            )
        for name in object_file.constructors():
            if name not in job.library.unneeded_constructors:
                raise job.error(
                    f"{object_file} runs {name} at load or unload, where a bundle must not run code",
                    "call it from the library's functions, or list it in unneeded_constructors if they do not need it",
                )
            constructors = True
    return constructors


def check_provided(job: Job, image: ObjectFile) -> None:
    symbols = {symbol.name: symbol for symbol in image.symbols if symbol.binding != LOCAL}
    files = ", ".join(path.name for path in job.library.files)
    for name in (*job.library.symbols, *job.data):
        symbol = symbols.get(name)
        if symbol is None or symbol.section == UNDEFINED:
            raise job.missing(name)
        if name not in job.data and not (symbol.is_function and image.has_code(symbol)):
            hint = f"assembly needs .type {name}, @function" if symbol.type == NOTYPE else "provide only functions"
            raise job.error(f"{job.library.name} provides {name}, which is not a function in {files}", hint)
        if symbol.visibility in (INTERNAL, PROTECTED):
            visibility = "internal" if symbol.visibility == INTERNAL else "protected"
            raise job.error(f"{name} has {visibility} visibility in {files}", "make it hidden or default")


def check_undefined(job: Job, undefined: frozenset[str], linked: Linked) -> None:
    lacking = [name for name in sorted(undefined - job.granted) if not job.system.define(name)]
    if lacking:
        where = _blame(job, linked, lambda o: not o.undefined.isdisjoint(lacking))
        raise job.error(
            f"{job.library.name} needs {listed(lacking, _SHOWN)} (in {where}), which neither its files nor the C "
            "library nor a library that the backend requires defines",
            "add the file that defines it to the library, or the system's library to `requires`",
        )


def check_position(job: Job, faults: Sequence[str], linked: Linked) -> None:
    if faults:
        reasons = {fault.rpartition(": ")[2] for fault in faults}
        where = _blame(job, linked, lambda o: any(f.rpartition(": ")[2] in reasons for f in o.position_faults()))
        shown = list(dict.fromkeys(faults))
        more = [f"... {len(shown) - _SHOWN} more"] if len(shown) > _SHOWN else []
        detail = "\n".join([*shown[:_SHOWN], *more])
        raise job.error(
            f"{job.library.name}: {where} is not position-independent code", "compile it with -fPIC", detail
        )


def _blame(job: Job, linked: Linked, guilty: Callable[[ObjectFile], bool]) -> str:
    """Return the names of the guilty objects."""
    return listed((str(object_file) for object_file in job.objects(linked) if guilty(object_file)), _SHOWN)
