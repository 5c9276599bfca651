"""Links a static library into one object: only code reachable from its symbols, with all other names local."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from packager.bundle.elf.symbols import UNDEFINED
from packager.bundle.isa.levels import DISPATCHED_SECTION, clone_symbol, code_section
from packager.codegen.objects import CONSTRUCTOR_SECTIONS, code_sections, forget_uniqueness, is_archive
from packager.codegen.toolchain import run
from packager.errors import ToolchainError
from packager.link.libraries.checks import check_code
from packager.link.libraries.job import Job

# Dissolve COMDAT groups: the linker would merge groups with the same name from different libraries.
_LINK_FLAGS = ("-r", "-d", "--gc-sections", "--force-group-allocation", "--strip-debug", "--discard-all")
# Bundles run with glibc 2.28. These functions have newer versions (2.29: exp to pow, 2.35: hypot, 2.38: fmod, 2.39:
# exp10) that differ only in errno, so unversioned references are bound to the old ones.
_NEWER_MATH = ("exp", "exp2", "exp10", "exp10f", "fmod", "fmodf", "hypot", "hypotf", "log", "log2", "pow")
_FIRST_GLIBC = {"x86_64": "GLIBC_2.2.5", "aarch64": "GLIBC_2.17"}


def link(job: Job, files: Sequence[str], stem: str) -> dict[Path, frozenset[str] | None]:
    """Link the code reachable from the symbols into ``stem``.o; return the linked files, with members for archives."""
    options = job.workdir / f"{job.stem}.options"  # symbols may exceed the length of a command line
    options.write_text("\n".join(f"--undefined={symbol}" for symbol in (*job.library.symbols, *job.data)))
    argv = [job.toolchain.ld, *_LINK_FLAGS, "--trace", "--trace", f"@{options.name}", "-o", f"{stem}.o"]
    try:
        trace = run([*argv, "--start-group", *files, "--end-group"], cwd=job.workdir)
    except ToolchainError as error:
        if error.hint or not error.stderr:  # a full disk, a signal: not the library's fault
            raise
        _explain(job)
        what = f"the files of {job.library.name} cannot be linked together"
        raise job.error(what, "the linker's message names the file", error.detail) from None
    lines = trace.splitlines()
    linked: dict[Path, frozenset[str] | None] = {}
    for path in job.library.files:
        prefix = f"({path})"
        members = frozenset(line.removeprefix(prefix) for line in lines if line.startswith(prefix))
        linked[path] = members if is_archive(path) else None
    return linked


def _explain(job: Job) -> None:
    """After a failed link, check all members for a cause that is clearer than the linker's message, and raise it."""
    defined: set[str] = set()
    for object_file in job.objects(dict.fromkeys(job.library.files)):
        check_code(job, object_file)
        defined.update(symbol.name for symbol in object_file.symbols if symbol.section != UNDEFINED)
    for name in job.library.symbols:
        if name not in defined:
            raise job.missing(name)


def link_without_constructors(job: Job) -> None:
    """Drop the constructors, and code reachable only from them."""
    removals = [f"--remove-section={pattern}" for pattern in CONSTRUCTOR_SECTIONS]
    run([job.toolchain.objcopy, *removals, f"{job.stem}.o", f"{job.stem}-passive.o"], cwd=job.workdir)
    link(job, [f"{job.stem}-passive.o"], job.stem)


def localize(job: Job, prepared: Path, undefined: frozenset[str]) -> None:
    """Make all names local except those that the library provides; for a shared bundle bind glibc versions.

    Code that not every supported CPU runs goes into a separate section.
    """
    level = job.library.level
    clones = {symbol: clone_symbol(symbol, level) for symbol in job.library.symbols}
    section = code_section(level) if level else DISPATCHED_SECTION if job.library.dispatched_features else ""
    moved = [f"--rename-section={name}={section}" for name in code_sections(prepared)] if section else []
    renames = job.workdir / f"{job.stem}.forms"
    renames.write_text("".join(f"{symbol} {clone}\n" for symbol, clone in clones.items() if clone != symbol))
    forget_uniqueness(prepared)
    keep = job.workdir / f"{job.stem}.symbols"
    keep.write_text("".join(f"{symbol}\n" for symbol in (*clones.values(), *job.data)))
    version = _FIRST_GLIBC[job.toolchain.machine]
    names = () if job.static else sorted(undefined.intersection(_NEWER_MATH))
    argv = [job.toolchain.objcopy, f"--keep-global-symbols={keep.name}", "--strip-unneeded", *moved]
    argv += [f"--redefine-syms={renames.name}"] if level else []
    run([*argv, *(f"--redefine-sym={name}={name}@{version}" for name in names), prepared.name], cwd=job.workdir)
