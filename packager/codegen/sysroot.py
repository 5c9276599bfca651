"""Collects the symbols of the system's libraries, as found by the linker: the C library, libgcc, and backends'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packager.bundle.elf import archive
from packager.bundle.elf.file import read_elf
from packager.bundle.elf.window import open_window
from packager.codegen.toolchain import Toolchain, run
from packager.errors import BackendError, ToolchainError
from packager.ir.primitives import SystemLibrary

DYNAMIC_LINKERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
# Without libmvec: few machines have it, and no built-in policy allows it.
C_LIBRARY = frozenset({"libc.so.6", "libm.so.6", *DYNAMIC_LINKERS.values()})
# Of the C library's static part; they want __dso_handle, which comes with the start files that a bundle goes without.
_NEED_START_FILES = frozenset({"atexit", "at_quick_exit", "pthread_atfork"})
_OF_THE_LINKER = frozenset({"_GLOBAL_OFFSET_TABLE_", "_DYNAMIC", "__ehdr_start"})


@dataclass(frozen=True)
class SystemSymbols:
    """The names that code may leave undefined: those of the C library, libgcc and the libraries that a backend
    requires.

    ``libgcc_file`` is libgcc's archive, which defines ``libgcc``.
    """

    c_library: frozenset[str]
    libgcc: frozenset[str]
    libgcc_file: Path
    others: frozenset[str]

    def define(self, symbol: str) -> bool:
        """Whether one of them defines a symbol, possibly with a version (``exp@GLIBC_2.29``)."""
        name = symbol.partition("@")[0]
        return any(name in names for names in (self.c_library, self.libgcc, self.others, _OF_THE_LINKER))


def read_system_symbols(
    toolchain: Toolchain, workdir: Path, kind: str = "", requires: Sequence[SystemLibrary] = ()
) -> SystemSymbols:
    """Return the names that code may leave undefined. Writes ``system.so`` to ``workdir``.

    The files are taken from the linker's trace. Raises BackendError with the backend's ``kind`` if a required library
    is missing, or has another soname.
    """
    shared: dict[str, frozenset[str]] = {}
    archives: dict[Path, frozenset[str]] = {}
    for path in _searched_files(toolchain, workdir, kind, requires):
        if path.suffix == ".a":
            with open_window(path) as window:
                archives[path] = archive.symbol_index(window)
        elif _is_elf(path):  # others are linker scripts, which list further files
            image = read_elf(path)
            shared[image.soname or path.name] = frozenset(image.exports)
    _check_required(kind, requires, shared, archives)
    nonshared = {name for path, names in archives.items() if path.name == "libc_nonshared.a" for name in names}
    return SystemSymbols(
        c_library=frozenset().union(nonshared - _NEED_START_FILES, *(shared[s] for s in C_LIBRARY & shared.keys())),
        libgcc=frozenset(name for path, names in archives.items() if path.name.startswith("libgcc") for name in names),
        libgcc_file=next(path for path in archives if path.name == "libgcc.a"),
        others=frozenset().union(*(shared.get(library.soname, ()) for library in requires)),
    )


def _searched_files(
    toolchain: Toolchain, workdir: Path, kind: str, requires: Sequence[SystemLibrary]
) -> dict[Path, None]:
    flags = ["-shared", "-nostartfiles", "-static-libgcc", "-Wl,--no-as-needed", "-Wl,--trace", "-o", "system.so"]
    try:
        trace = run([toolchain.cc, *flags, "-lm", *(f"-l{library.link_name}" for library in requires)], cwd=workdir)
    except ToolchainError as error:
        if not requires:
            raise
        raise BackendError(
            f"{kind}: a library that it requires cannot be linked: {', '.join(x.soname for x in requires)}",
            hint="install the library's development package",
            detail=error.detail,
        ) from None
    return {Path(line): None for line in trace.splitlines() if line.startswith("/")}


def _check_required(
    kind: str,
    requires: Sequence[SystemLibrary],
    shared: dict[str, frozenset[str]],
    archives: dict[Path, frozenset[str]],
) -> None:
    for library in requires:
        # glibc ships empty archives for libraries merged into libc.so.6, such as libpthread.a.
        found = [names for path, names in archives.items() if path.name == f"lib{library.link_name}.a"]
        if library.soname not in shared and (not found or any(found)):
            what = (
                f"lib{library.link_name}.a, which is not shared"
                if found
                else ", ".join(sorted(shared.keys() - C_LIBRARY))
            )
            raise BackendError(
                f"{kind}: it requires {library.soname}, but -l{library.link_name} finds {what}",
                hint="name the library's real soname; an archive must be part of a static library of the backend",
            )


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"
