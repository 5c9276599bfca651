"""Link the files of a static library into one object of what its symbols reach, with all other names local."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from packager.bundle.cpu_levels import DISPATCHED_SECTION, clone_symbol, code_section
from packager.bundle.elf.symbols import UNDEFINED
from packager.codegen.objects import CONSTRUCTOR_SECTIONS, code_sections, forget_uniqueness, is_archive
from packager.codegen.toolchain import run
from packager.errors import ToolchainError
from packager.link.libraries.checks import check_code
from packager.link.libraries.compile_jobs import Job

# Groups are dissolved: the linker would take one for that of another library whose name is the same.
_LINK_FLAGS = ("-r", "-d", "--gc-sections", "--force-group-allocation", "--strip-debug", "--discard-all")
# Bundles run with glibc 2.28. These functions got new versions after it (2.29: exp to pow, 2.35: hypot, 2.38: fmod,
# 2.39: exp10), which differ in errno alone, so code that names no version is bound to the one they have had all along.
_NEWER_MATH = ("exp", "exp2", "exp10", "exp10f", "fmod", "fmodf", "hypot", "hypotf", "log", "log2", "pow")
_FIRST_GLIBC = {"x86_64": "GLIBC_2.2.5", "aarch64": "GLIBC_2.17"}


def link(job: Job, files: Sequence[str], stem: str) -> dict[Path, frozenset[str] | None]:
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


def _explain(job: Job) -> None:
    """Raise what is plainer than the linker's own words: after it has failed, all members are worth a look."""
    defined: set[str] = set()
    for object_file in job.objects(dict.fromkeys(job.library.files)):
        check_code(job, object_file)
        defined.update(symbol.name for symbol in object_file.symbols if symbol.section != UNDEFINED)
    for name in job.library.symbols:
        if name not in defined:
            raise job.missing(name)


def link_without_constructors(job: Job) -> None:
    """Take them out, and then all that only they reach."""
    removals = [f"--remove-section={pattern}" for pattern in CONSTRUCTOR_SECTIONS]
    run([job.toolchain.objcopy, *removals, f"{job.stem}.o", f"{job.stem}-passive.o"], cwd=job.workdir)
    link(job, [f"{job.stem}-passive.o"], job.stem)


def localize(job: Job, prepared: Path, undefined: frozenset[str]) -> None:
    """Make all names local but those that the library provides, and in the shared form choose versions.

    Code that does not run on every CPU that the bundle runs on goes into a section of its own.
    """
    level = job.library.level
    forms = {symbol: clone_symbol(symbol, level) for symbol in job.library.symbols}
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
