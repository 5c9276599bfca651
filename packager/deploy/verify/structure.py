"""Checks that the linked image is hardened and self-contained, and matches its manifest."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packager.bundle.elf.tables import SHF_ALLOC, SHF_WRITE, Section
from packager.bundle.isa.levels import clone_symbol
from packager.bundle.manifest import (
    CONSTANTS_SECTION,
    ENTRY_SYMBOL,
    GOLDEN_SECTION,
    GRAPH_SECTION,
    LIBRARIES_SECTION,
    SECTION_NAME,
    SELECTION_SECTION,
)
from packager.bundle.reader import BundleFile
from packager.deploy.verify.code import gpu_code_findings, level_findings
from packager.deploy.verify.findings import Finding, error
from packager.deploy.verify.libraries import library_findings
from packager.errors import listed


def elf_findings(bundle: BundleFile) -> Iterator[Finding]:
    """Check hardening, dependencies and exports of the image."""
    elf, requirements = bundle.elf, bundle.manifest.requirements
    expected = "shared" if bundle.manifest.form == "shared" else "relocatable"
    if elf.type != expected:
        yield error(
            "elf.type",
            f"the file is {elf.type}, not {expected}",
            where="ELF header",
            why=f"the manifest says form {bundle.manifest.form!r}",
        )
    if elf.machine != requirements.machine:
        why = f"the manifest says {requirements.machine}"
        yield error("elf.machine", f"the code is for {elf.machine}", where="ELF header", why=why)
    yield from _export_findings(bundle)
    if elf.exec_stack:
        yield error(
            "elf.exec_stack",
            "the bundle asks for an executable stack",
            where="PT_GNU_STACK" if expected == "shared" else ".note.GNU-stack",
            why="loading it would make the stacks of the whole process executable, or be refused",
            hint='link with -z noexecstack; assembly files need .section .note.GNU-stack,"",@progbits',
        )
    if elf.init_entries or elf.fini_entries:
        yield error(
            "elf.constructors",
            f"{elf.init_entries} functions run when it is loaded, {elf.fini_entries} when it is unloaded",
            where=".init_array, .fini_array",
            why="a bundle must not run code at load",
            hint="find the object that has __attribute__((constructor)) or C++ globals",
        )
    if expected == "relocatable":
        return
    if elf.has_textrel:
        yield error(
            "elf.textrel",
            "the code needs relocations (DT_TEXTREL)",
            where=".dynamic",
            why="its pages would be writable at load and not be shared between processes",
            hint="compile every object with -fPIC",
        )
    if elf.relro != "full":
        yield error(
            "elf.relro",
            f"RELRO is {elf.relro}, not full",
            where="PT_GNU_RELRO, DT_FLAGS",
            why="function pointers would stay writable",
            hint="link with -z relro -z now",
        )
    if elf.writable_code:
        yield error(
            "elf.writable_code",
            "a segment is both writable and executable",
            where="program headers",
            why="code could be changed at run time",
            hint="link without -N or --omagic",
        )
    for tag, value in (("DT_RPATH", elf.rpath), ("DT_RUNPATH", elf.runpath)):
        if value is not None:
            yield error(
                "elf.rpath",
                f"the library search path is set to {value!r}",
                where=tag,
                why="libraries would be taken from a folder that the builder chose",
                hint="link without -rpath",
            )


def _export_findings(bundle: BundleFile) -> Iterator[Finding]:
    elf, requirements = bundle.elf, bundle.manifest.requirements
    where = ".dynsym" if bundle.manifest.form == "shared" else ".symtab"
    why = "symbols could clash in the process"
    yield from _difference("elf.exports", "exported symbol", elf.exports, requirements.exports, where, why)
    entry = ENTRY_SYMBOL if bundle.manifest.form == "shared" else r"[A-Za-z_][A-Za-z0-9_]*_bundle_v1"
    if len(requirements.exports) != 1 or not re.fullmatch(entry, requirements.exports[0]):
        yield error(
            "elf.exports",
            f"declares the exports {listed(requirements.exports)}",
            where="$.requirements.exports",
            why="a bundle exports its entrypoint and nothing else",
        )
    libraries = (*elf.needed, *elf.other_libraries)
    why = "the bundle does not load without it"
    yield from _difference("elf.needed", "library", libraries, requirements.needed, ".dynamic", why)
    why = "the libraries that it needs, or the program that links it, must define it"
    yield from _difference("elf.undefined", "undefined symbol", elf.imports, requirements.undefined, where, why)
    if bundle.manifest.form == "shared":
        yield from _undefined_findings(bundle)
    if bundle.manifest.form == "shared" and elf.glibc != requirements.glibc:
        why = f"the manifest says {_glibc(requirements.glibc)}"
        yield error("elf.glibc", f"the file needs {_glibc(elf.glibc)}", where=".gnu.version_r", why=why)
    if elf.glibc_private:
        yield error(
            "elf.glibc_private",
            f"the file needs {listed(elf.glibc_private)}",
            where=".gnu.version_r",
            why="private symbols of one release of glibc: the next may lack them",
            hint="find the static library with code extracted from a C library",
        )


def _undefined_findings(bundle: BundleFile) -> Iterator[Finding]:
    """Check that each undefined symbol of a shared library is provided by a needed library."""
    elf = bundle.elf
    if strangers := set(elf.version_libraries) - set(elf.needed):
        what = f"symbol versions of {listed(sorted(strangers))}, which the file does not need"
        yield error("elf.undefined", what, where=".gnu.version_r", why="the dynamic linker refuses such a file")
    # A needed library without symbol versions may define unversioned symbols.
    if elf.unversioned and set(elf.needed) <= set(elf.version_libraries):
        yield error(
            "elf.undefined",
            f"undefined symbols that no needed library provides: {listed(elf.unversioned)}",
            where=".dynsym",
            why="they would bind to any library in the process that has these names",
            hint="link with -z defs, and all libraries that the objects need",
        )


def _glibc(version: str | None) -> str:
    return f"glibc {version}" if version else "no glibc"


def _difference(
    check: str, kind: str, found: tuple[str, ...], declared: tuple[str, ...], where: str, why: str
) -> Iterator[Finding]:
    if extra := set(found) - set(declared):
        yield error(check, f"undeclared {kind}: {listed(sorted(extra))}", where=where, why=why)
    if missing := set(declared) - set(found):
        yield error(check, f"declared {kind} is missing: {listed(sorted(missing))}", where=where)


def manifest_findings(bundle: BundleFile) -> Iterator[Finding]:
    """Compare the manifest's symbols, sections and sizes with the image."""
    manifest, elf = bundle.manifest, bundle.elf
    yield from _symbol_findings(bundle)
    yield from level_findings(bundle)
    yield from gpu_code_findings(bundle)
    yield from library_findings(bundle)
    constants = elf.sections.get(CONSTANTS_SECTION)
    golden = elf.sections.get(GOLDEN_SECTION)
    selection = elf.sections.get(SELECTION_SECTION)
    golden_bytes = manifest.golden.bytes if manifest.golden else 0
    embedded = manifest.weights.bytes if manifest.weights.storage == "embedded" else 0
    for check, what, actual, declared in (
        ("manifest.code_size", "bytes of code", elf.code_bytes, manifest.sizes.code),
        ("manifest.constants", f"bytes in {CONSTANTS_SECTION}", _size(constants), manifest.sizes.constants),
        ("manifest.constants", f"bytes in {CONSTANTS_SECTION}", _size(constants), embedded),
        ("manifest.selection", f"bytes in {SELECTION_SECTION}", _size(selection), len(manifest.digits())),
        ("manifest.golden", f"bytes in {GOLDEN_SECTION}", _size(golden), golden_bytes),
    ):
        if actual != declared:
            where = "$.sizes, $.weights, $.choices, $.selection, $.golden"
            yield error(check, f"{actual} {what}, but {declared} declared", where=where)
    for name, section, mapped in (
        (SECTION_NAME, bundle.section, True),
        (CONSTANTS_SECTION, constants, True),
        (SELECTION_SECTION, selection, True),
        (LIBRARIES_SECTION, elf.sections.get(LIBRARIES_SECTION), True),
        (GOLDEN_SECTION, golden, False),
        (GRAPH_SECTION, elf.sections.get(GRAPH_SECTION), False),
    ):
        if section is None:
            continue
        if section.flags & SHF_WRITE or bool(section.flags & SHF_ALLOC) != mapped:
            yield error(
                "manifest.sections",
                f"{name} must be read-only and {'mapped' if mapped else 'not mapped'}",
                where="section headers",
                why="hashed data could change in memory, or memory would be wasted",
            )


def _symbol_findings(bundle: BundleFile) -> Iterator[Finding]:
    """Check that the backends' functions are present, executable and local."""
    elf = bundle.elf
    provided = {
        clone_symbol(item.symbol, level) for _, item in bundle.manifest.primitives() for level in ("", *item.levels)
    }
    if absent := provided - elf.symbols.keys():
        what = f"primitive functions missing from the file: {listed(sorted(absent))}"
        hint = "rebuild; do not strip a bundle, its local symbols are part of it"
        yield error("manifest.symbols", what, where=".symtab", hint=hint)
    if others := (provided & elf.symbols.keys()) - elf.functions:
        what = f"primitive functions that are not executable code: {listed(sorted(others))}"
        yield error("manifest.symbols", what, where=".symtab", why="calling them would crash")
    if public := provided.intersection(elf.exports):
        what = f"primitive functions that are exported: {listed(sorted(public))}"
        why = "other libraries' symbols of these names could be called instead"
        where = ".dynsym" if bundle.manifest.form == "shared" else ".symtab"
        yield error("manifest.symbols", what, where=where, why=why)
    for backend in bundle.manifest.backends:
        if backend.primitives and not backend.static_libraries:
            yield error(
                "manifest.libraries",
                f"backend {backend.kind!r} provides functions, but lists no library that contains them",
                where="$.backends",
                why="the origin of the code is unknown",
            )


def _size(section: Section | None) -> int:
    return section.size if section else 0
