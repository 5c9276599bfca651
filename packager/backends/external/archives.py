"""Check the archives and objects of a library: format, machine, and the symbols of its operators."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from packager.bundle.elf import archive
from packager.bundle.elf.symbols import LOCAL, SHT_SYMTAB, UNDEFINED, Symbol, read_symbols
from packager.bundle.elf.tables import read_sections
from packager.bundle.elf.window import Window, open_window
from packager.custom_ops.library import OpLibrary
from packager.custom_ops.rules import Operator
from packager.errors import BackendError, BundleError, suggestion

_BITCODE = (b"BC\xc0\xde", b"\xde\xc0\x17\x0b")


def check_archives(library: OpLibrary, machine: str) -> None:
    """Check that all objects of a library are for ``machine``, and define the symbols of its operators.

    Raises BackendError that names the library, the file and the symbol.
    """
    defined: dict[str, str] = {}
    local: dict[str, str] = {}
    for place, symbols in [found for path in library.archives for found in _objects(library, path, machine)]:
        for symbol in symbols:
            if symbol.section != UNDEFINED and symbol.name:
                (local if symbol.binding == LOCAL else defined).setdefault(symbol.name, place)
    for operator in library.operators:
        if operator.symbol not in defined:
            raise _undefined(library, operator, defined, local)


def _undefined(library: OpLibrary, operator: Operator, defined: dict[str, str], local: dict[str, str]) -> BackendError:
    symbol = operator.symbol
    message = f"library {library.name!r} does not define {symbol!r}, the function of {operator.name}"
    files = ", ".join(path.name for path in library.archives)
    mangled = [name for name in defined if name.startswith(f"_Z{len(symbol)}{symbol}")]
    if mangled:
        return BackendError(
            f"{message}: {defined[mangled[0]]} defines the C++ function {mangled[0]}",
            hint=f'declare it extern "C" in {library.name}\'s source',
        )
    if symbol in local:
        return BackendError(
            f"{message}: in {local[symbol]} it is static", hint="remove 'static', so that other files can call it"
        )
    functions = [name for name in defined if not name.startswith(("_Z", "."))]
    return BackendError(
        f"{message}{suggestion(symbol, functions)}", hint=f"its files are {files}; `nm` lists what they define"
    )


def _objects(library: OpLibrary, path: Path, machine: str) -> Iterator[tuple[str, list[Symbol]]]:
    """Yield the name of each object for messages, as ``libacme.a(swish.o)``, and its symbols."""
    where = f"library {library.name!r}: {path.name}"
    try:
        with open_window(path) as window:
            start = window.read(0, min(window.size, 8), "file")
            if start == archive.THIN_MAGIC:
                raise BackendError(
                    f"{where} is a thin archive, which holds no code", hint="make it without ar's option T (--thin)"
                )
            if start != archive.MAGIC:
                yield path.name, _symbols(where, window, machine)
                return
            members = list(archive.members(window))
            if not members:
                raise BackendError(f"{where} has no members", hint="ar rcsD libNAME.a a.o b.o makes an archive")
            for member in members:
                place = f"{path.name}({member.name})"
                yield place, _symbols(f"library {library.name!r}: {place}", member.body, machine)
    except BundleError as error:
        raise BackendError(
            f"{where} is neither an archive nor an object file", detail=error.message, hint="name a .a or a .o file"
        ) from None


def _symbols(where: str, window: Window, machine: str) -> list[Symbol]:
    if window.read(0, min(window.size, 4), "object") in _BITCODE:
        raise BackendError(f"{where} is LLVM bitcode and no machine code", hint="compile it without -flto")
    try:
        table = read_sections(window)
        symbols = list(read_symbols(table, SHT_SYMTAB))
    except BundleError as error:
        raise BackendError(
            f"{where} is not an object file for {machine}", detail=error.message, hint="name a .a or a .o file"
        ) from None
    if table.type != "relocatable":
        raise BackendError(
            f"{where} is {table.type} and no object that can be linked in",
            hint="a bundle takes libraries into itself: make a static one, with ar",
        )
    if table.machine != machine:
        raise BackendError(
            f"{where} is for {table.machine}, and the bundle is for {machine}",
            hint=f"compile the library for {machine}, or build with another -mtriple",
        )
    if any(section.name.startswith((".gnu.lto_", ".llvm.lto")) for section in table.sections):
        slim = any(symbol.name == "__gnu_lto_slim" for symbol in symbols)
        raise BackendError(
            f"{where} was compiled with -flto" + (" and has no machine code" if slim else ""),
            hint="compile it without -flto, or add -fno-lto",
        )
    return symbols
