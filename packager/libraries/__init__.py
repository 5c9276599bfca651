"""The metadata check: are the static libraries of the backends what these say, and may they be part of a bundle?

Each becomes one object of what its symbols reach, in which all other names are local. Whatever is wrong is a
BackendError that starts with the backend's kind and names the symbol and the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packager import isa
from packager.cpu_levels import DISPATCHED_SECTION, code_section, form_name
from packager.deploy.elf_symbols import INTERNAL, LOCAL, NOTYPE, PROTECTED, UNDEFINED
from packager.digest import sha256_of_file
from packager.errors import BackendError, BundleError, ToolchainError
from packager.ir import PreparedLibrary
from packager.libraries.levels import needed_libraries
from packager.libraries.objects import (
    CONSTRUCTOR_SECTIONS,
    ObjectFile,
    code_sections,
    forget_uniqueness,
    is_archive,
    read_objects,
)
from packager.libraries.sysroot import SystemSymbols, read_system_symbols
from packager.manifest import StaticLibrary as FileRecord
from packager.primitives import BackendOutput, StaticLibrary
from packager.toolchain import Toolchain, run

# Groups are dissolved: the linker would take one for that of another library whose name is the same.
_LINK_FLAGS = ("-r", "-d", "--gc-sections", "--force-group-allocation", "--strip-debug", "--discard-all")
# What the runtime of a CUDA bundle has for the code of backends (packager_cuda.h).
_CUDA_SERVICES = (
    "pk_cuda_copy",
    "pk_cuda_device",
    "pk_cuda_launch",
    "pk_cuda_launch_filled",
    "pk_tensor_map_encode",
    "pk_tensor_map_encode_im2col",
)
# Bundles run with glibc 2.28. These functions got new versions after it (2.29: exp to pow, 2.35: hypot, 2.38: fmod,
# 2.39: exp10), which differ in errno alone, so code that names no version is bound to the one they have had all along.
_NEWER_MATH = ("exp", "exp2", "exp10", "exp10f", "fmod", "fmodf", "hypot", "hypotf", "log", "log2", "pow")
_FIRST_GLIBC = {"x86_64": "GLIBC_2.2.5", "aarch64": "GLIBC_2.17"}
_SHOWN = 3


@dataclass(frozen=True)
class _Job:
    """One library of one backend; files of its own in ``workdir`` start with ``stem``."""

    kind: str
    library: StaticLibrary
    toolchain: Toolchain
    system: SystemSymbols
    workdir: Path
    stem: str
    static: bool

    def error(self, what: str, hint: str, detail: str | None = None) -> BackendError:
        return BackendError(f"{self.kind}: {what}", hint=hint, detail=detail)

    def missing(self, symbol: str) -> BackendError:
        files = ", ".join(path.name for path in self.library.files)
        lack = f"{files} does not define it" if files else "it has no files"
        what = f"{self.library.name} provides {symbol}, but {lack}"
        return self.error(what, "define it, or take it out of the library's symbols")

    @property
    def data(self) -> tuple[str, ...]:
        """What the library provides that is no function."""
        return tuple(module.symbol for module in self.library.cuda_modules)

    @property
    def granted(self) -> frozenset[str]:
        """What it may leave undefined because the entrypoint or the runtime defines it."""
        return frozenset([*_CUDA_SERVICES, *(f"{name}_first" for name in self.data)] if self.data else [])

    def objects(self, linked: Mapping[Path, frozenset[str] | None]) -> Iterator[ObjectFile]:
        """Yield objects of the library: of each file, the named members, or all of it."""
        for path, members in linked.items():
            try:
                yield from read_objects(path, members)
            except BundleError as error:
                raise self.error(f"{path.name}: {error.message}", "hand back ELF objects or archives of them") from None


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
    _check_owners(outputs, base)
    prepared: list[PreparedLibrary] = []
    for output in outputs:
        system = read_system_symbols(toolchain, workdir, output.kind, output.requires) if output.requires else base
        for library in output.static_libraries:
            stem = f"prepared-{output.kind}-{len(prepared)}"
            prepared.append(_prepare(_Job(output.kind, library, toolchain, system, workdir, stem, static)))
    return tuple(prepared)


def _check_owners(outputs: Sequence[BackendOutput], system: SystemSymbols) -> None:
    """Each symbol has one provider, and a backend's functions are in libraries of its own."""
    owners: dict[str, tuple[str, str]] = {}
    for output in outputs:
        for library in output.static_libraries:
            if not library.symbols:
                raise BackendError(f"{output.kind}: {library.name} provides no symbol", hint="leave the library out")
            for symbol in library.symbols:
                place = (output.kind, library.name)
                if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", symbol):
                    raise BackendError(f"{output.kind}: {library.name}: {symbol!r} is no C identifier")
                form = form_name(symbol, library.level)
                if form in owners:
                    raise BackendError(
                        f"{output.kind}: {library.name} provides {symbol}, which {' has in '.join(owners[form])}",
                        hint="start symbols with the name of the backend and of the partition",
                    )
                if symbol in system.c_library:
                    raise BackendError(
                        f"{output.kind}: {library.name} provides {symbol}, a name of the C library",
                        hint="rename it: the whole bundle would call it in place of the C library's",
                    )
                owners[form] = place
        for name, group in output.groups.items():
            for function in group.functions:
                if owners.get(function.symbol, ("", ""))[0] != output.kind:
                    raise BackendError(
                        f"{output.kind}: {name} is computed by {function.symbol}, which none of its libraries provides",
                        hint="list it in the symbols of a StaticLibrary",
                    )


def _prepare(job: _Job) -> PreparedLibrary:
    _check_files(job)
    linked = _link(job, [str(path) for path in job.library.files], job.stem)
    if _check_linked(job, linked):
        _link_without_constructors(job)
    prepared = job.workdir / f"{job.stem}.o"
    (image,) = job.objects({prepared: None})
    undefined = image.undefined
    _check_provided(job, image)
    _check_undefined(job, undefined, linked)
    _check_position(job, list(image.position_faults()), linked)
    features = set(isa.cpu_features(prepared)) - set(job.library.dispatched_features)
    _localise(job, prepared, undefined)
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


def _check_files(job: _Job) -> None:
    """Objects and archives for the right machine; objects that lend nothing but what the library provides."""
    for path in job.library.files:
        if not path.is_file():
            raise job.error(f"{job.library.name}: there is no file {path}", "write it before compile returns")
        try:
            archived = is_archive(path)
        except BundleError as error:
            raise job.error(f"{path.name}: {error.message}", "make a full one: ar rcsD") from None
        first = next(job.objects({path: None}), None)
        if first is None:
            raise job.error(f"{path.name}: the archive is empty", "hand back archives with members")
        _check_code(job, first)
        if not archived and (leaks := sorted(set(first.leaks) - {*job.library.symbols, *job.data})):
            raise job.error(
                f"{path.name} defines {_names(leaks)}, which {job.library.name} does not provide",
                "make them static or hidden, or add them to its symbols",
            )


def _check_code(job: _Job, object_file: ObjectFile) -> None:
    machine = object_file.machine
    if machine != job.toolchain.machine:
        raise job.error(f"{object_file} is for {machine}, not {job.toolchain.machine}", "compile it for the Target")
    if object_file.is_intermediate:
        raise job.error(f"{object_file} holds intermediate code of the compiler", "compile without -flto")


def _link(job: _Job, files: Sequence[str], stem: str) -> dict[Path, frozenset[str] | None]:
    """Link what the symbols reach into ``stem``.o; return which files it came from, with members for archives."""
    options = job.workdir / f"{job.stem}.options"  # there may be more symbols than a command line holds
    options.write_text("\n".join(f"--undefined={symbol}" for symbol in (*job.library.symbols, *job.data)))
    argv = [job.toolchain.ld, *_LINK_FLAGS, "--trace", "--trace", f"@{options.name}", "-o", f"{stem}.o"]
    try:
        trace = run([*argv, "--start-group", *files, "--end-group"], cwd=job.workdir)
    except ToolchainError as error:
        if error.hint or not error.stderr:  # a full disk, a signal: not the library's fault
            raise
        _explain(job)
        what = f"the files of {job.library.name} cannot be linked together"
        raise job.error(what, "what the linker says names the file", error.detail) from None
    lines = trace.splitlines()
    linked: dict[Path, frozenset[str] | None] = {}
    for path in job.library.files:
        prefix = f"({path})"
        members = frozenset(line.removeprefix(prefix) for line in lines if line.startswith(prefix))
        linked[path] = members if is_archive(path) else None
    return linked


def _explain(job: _Job) -> None:
    """Raise what is plainer than the linker's own words: after it has failed, all members are worth a look."""
    defined: set[str] = set()
    for object_file in job.objects(dict.fromkeys(job.library.files)):
        _check_code(job, object_file)
        defined.update(symbol.name for symbol in object_file.symbols if symbol.section != UNDEFINED)
    for name in job.library.symbols:
        if name not in defined:
            raise job.missing(name)


def _check_linked(job: _Job, linked: Mapping[Path, frozenset[str] | None]) -> bool:
    """Check each object that was linked; return whether there are constructors, all of which may be left out."""
    constructors = False
    for object_file in job.objects(linked):
        _check_code(job, object_file)
        if object_file.wants_executable_stack:
            raise job.error(
                f"{object_file} wants an executable stack",
                "do not take the address of nested functions; mark assembly files with .note.GNU-stack",
            )
        for name in object_file.constructors():
            if name not in job.library.unneeded_constructors:
                raise job.error(
                    f"{object_file} runs {name} when it is loaded or unloaded; a bundle runs nothing then",
                    "call it from the library's functions, or list it in unneeded_constructors if they do without",
                )
            constructors = True
    return constructors


def _link_without_constructors(job: _Job) -> None:
    """Take them out, and then all that only they reach."""
    removals = [f"--remove-section={pattern}" for pattern in CONSTRUCTOR_SECTIONS]
    run([job.toolchain.objcopy, *removals, f"{job.stem}.o", f"{job.stem}-passive.o"], cwd=job.workdir)
    _link(job, [f"{job.stem}-passive.o"], job.stem)


def _check_provided(job: _Job, image: ObjectFile) -> None:
    symbols = {symbol.name: symbol for symbol in image.symbols if symbol.binding != LOCAL}
    files = ", ".join(path.name for path in job.library.files)
    for name in (*job.library.symbols, *job.data):
        symbol = symbols.get(name)
        if symbol is None or symbol.section == UNDEFINED:
            raise job.missing(name)
        if name not in job.data and not (symbol.is_function and image.has_code(symbol)):
            hint = f"assembly needs .type {name}, @function" if symbol.type == NOTYPE else "provide functions alone"
            raise job.error(f"{job.library.name} provides {name}, which is no function in {files}", hint)
        if symbol.visibility in (INTERNAL, PROTECTED):
            visibility = "internal" if symbol.visibility == INTERNAL else "protected"
            raise job.error(f"{name} has {visibility} visibility in {files}", "make it hidden or default")


def _check_undefined(job: _Job, undefined: frozenset[str], linked: Mapping[Path, frozenset[str] | None]) -> None:
    lacking = [name for name in sorted(undefined - job.granted) if not job.system.define(name)]
    if lacking:
        where = _blame(job, linked, lambda o: not o.undefined.isdisjoint(lacking))
        raise job.error(
            f"{job.library.name} needs {_names(lacking)} (in {where}), which neither its files nor the C library nor a "
            "library that the backend requires defines",
            "add the file that defines it to the library, or the system's library to `requires`",
        )


def _check_position(job: _Job, faults: Sequence[str], linked: Mapping[Path, frozenset[str] | None]) -> None:
    if faults:
        reasons = {fault.rpartition(": ")[2] for fault in faults}
        where = _blame(job, linked, lambda o: any(f.rpartition(": ")[2] in reasons for f in o.position_faults()))
        shown = list(dict.fromkeys(faults))
        raise job.error(
            f"{job.library.name}: {where} is not position-independent code", "compile it with -fPIC", _lines(shown)
        )


def _localise(job: _Job, prepared: Path, undefined: frozenset[str]) -> None:
    """Make all names local but those that the library provides, and in the shared form choose versions.

    Code that does not run on every CPU that the bundle runs on goes into a section of its own.
    """
    level = job.library.level
    forms = {symbol: form_name(symbol, level) for symbol in job.library.symbols}
    section = code_section(level) if level else DISPATCHED_SECTION if job.library.dispatched_features else ""
    moved = [f"--rename-section={name}={section}" for name in code_sections(prepared)] if section else []
    renames = job.workdir / f"{job.stem}.forms"
    renames.write_text("".join(f"{symbol} {form}\n" for symbol, form in forms.items() if form != symbol))
    forget_uniqueness(prepared)
    keep = job.workdir / f"{job.stem}.symbols"
    keep.write_text("".join(f"{symbol}\n" for symbol in (*forms.values(), *job.data)))
    version = _FIRST_GLIBC[job.toolchain.machine]
    names = () if job.static else sorted(undefined.intersection(_NEWER_MATH))
    argv = [job.toolchain.objcopy, f"--keep-global-symbols={keep.name}", "--strip-unneeded", *moved]
    argv += [f"--redefine-syms={renames.name}"] if level else []
    run([*argv, *(f"--redefine-sym={name}={name}@{version}" for name in names), prepared.name], cwd=job.workdir)


def _blame(job: _Job, linked: Mapping[Path, frozenset[str] | None], guilty: Callable[[ObjectFile], bool]) -> str:
    """Return the names of the objects at fault."""
    return _names([str(object_file) for object_file in job.objects(linked) if guilty(object_file)])


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _lines(lines: Sequence[str]) -> str:
    return "\n".join([*lines[:_SHOWN], *([f"... {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else [])])
