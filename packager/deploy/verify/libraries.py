"""Checks the shared libraries that a bundle's sessions open: as the file lists them, and as a machine has them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from packager.bundle.elf.search import find_library
from packager.bundle.elf.symbols import version_key
from packager.bundle.loaded_libraries import read_libraries
from packager.bundle.manifest import LIBRARIES_SECTION, Manifest
from packager.bundle.reader import BundleFile
from packager.bundle.requirements import LibraryRequirement
from packager.deploy.verify.findings import Finding, error, warning
from packager.errors import BundleError

# The libraries that packager's own backends declare: the function that tells the version, as major * 10000 + minor *
# 100 + patch (cublasLtGetVersion of cuBLAS 12 and 13, cudnnGetVersion of cuDNN 9). TensorRT 8 has major * 1000 instead.
VERSION_FUNCTIONS: Mapping[str, str] = {
    "libcublasLt.so.13": "cublasLtGetVersion",
    "libcublasLt.so.12": "cublasLtGetVersion",
    "libcudnn.so.9": "cudnnGetVersion",
    **dict.fromkeys(
        (
            *(f"libnvinfer.so.{major}" for major in (8, 10, 11)),
            *(f"libnvinfer_lean.so.{major}" for major in (8, 10, 11)),
            "libtensorrt_rtx.so.1",
        ),
        "getInferLibVersion",
    ),
}
_TIMEOUT_S = 60
# In a process of its own: vendors' libraries start threads, and some end the process.
_ASK = """
import ctypes, json, sys
found = {}
for soname, function, path in json.loads(sys.argv[1]):
    try:
        ask = getattr(ctypes.CDLL(path), function)
        ask.restype = ctypes.c_size_t
        found[soname] = ask()
    except (OSError, AttributeError):
        pass
print(json.dumps(found))
"""


def library_findings(bundle: BundleFile) -> Iterator[Finding]:
    """Compare the manifest with the list from which the runtime opens libraries."""
    declared = bundle.manifest.requirements.libraries
    try:
        listed = read_libraries(bundle.path, bundle.elf.sections.get(LIBRARIES_SECTION))
    except BundleError as damage:
        yield error("manifest.loaded_libraries", damage.message, where=LIBRARIES_SECTION)
        return
    if listed != declared:
        yield error(
            "manifest.loaded_libraries",
            f"sessions open {_sonames(listed)}; declared is {_sonames(declared)}, or other facts of these",
            where=f"{LIBRARIES_SECTION}, $.requirements.libraries",
            why="code of another file would run that the manifest does not name",
        )
    opens = any(name.partition("@")[0] == "dlopen" for name in bundle.elf.imports)
    if opens and not declared and bundle.manifest.requirements.cuda is None:
        yield warning(
            "manifest.loaded_libraries",
            "the code can open shared libraries (dlopen), and the manifest names none",
            where="$.requirements.undefined",
            why="what it opens cannot be known before it runs",
            hint="declare it as a LoadedLibrary of the backend: docs/libraries.md",
        )


def _sonames(libraries: Sequence[LibraryRequirement]) -> str:
    return ", ".join(" or ".join(library.sonames) for library in libraries) or "none"


def missing_libraries(manifest: Manifest, found: Mapping[str, str | None] | None, searched: bool) -> Iterator[Finding]:
    """Compare the bundle's libraries with those of a machine, which was ``searched`` for these or for known ones."""
    for index, library in enumerate(manifest.requirements.libraries):
        if library.embedded:
            continue
        where = f"$.requirements.libraries[{index}]"
        there = {soname: version for soname, version in (found or {}).items() if soname in library.sonames}
        fitting = [v for v in there.values() if v is None or version_key(v) >= version_key(library.least)]
        if not fitting:
            known = found is not None and any(soname in VERSION_FUNCTIONS for soname in library.sonames)
            yield _missing(library, there, where, unknown=not (searched or known or there))
        elif library.chosen_with and fitting[0] and version_key(fitting[0]) != version_key(library.chosen_with):
            yield warning(
                "machine.library_version",
                f"the bundle was built for {library.sonames[0]} {library.chosen_with}, the machine has {fitting[0]}",
                where=where,
                why="what was measured for that version may not be the fastest, or is chosen anew",
                hint="build again with records of this version, or install that one",
            )


def _missing(library: LibraryRequirement, there: Mapping[str, str | None], where: str, unknown: bool) -> Finding:
    what = f"sessions open {' or '.join(library.sonames)} of version {library.least} or newer"
    if unknown:
        what += ", which the description of the machine does not know about"
    else:
        what += f"; the machine has {', '.join(f'{soname} {version}' for soname, version in there.items()) or 'none'}"
    why = "the bundle refuses to create a session"
    if library.optional:
        why = "sessions use slower alternatives without it"
    elif unknown:
        why = "without it the bundle refuses to create a session"
    hint = "install it, or put it beside the bundle: docs/libraries.md"
    return (warning if library.optional or unknown else error)("machine.library", what, where=where, why=why, hint=hint)


def find_libraries(
    sonames: Collection[str], folders: Sequence[Path], functions: Mapping[str, str] = VERSION_FUNCTIONS
) -> dict[str, str | None]:
    """Return the sonames that are found, with their versions; None where nobody knows how to ask.

    ``folders`` are searched first, then those of the dynamic linker. Only libraries in ``functions`` are opened.
    """
    paths = {soname: path for soname in sonames if (path := find_library(soname, folders)) is not None}
    asked = {soname: path for soname, path in paths.items() if soname in functions}
    versions = _ask(asked, functions)
    return {soname: versions.get(soname) for soname in paths if soname not in asked or soname in versions}


def _ask(paths: Mapping[str, Path], functions: Mapping[str, str]) -> dict[str, str]:
    if not paths:
        return {}
    query = json.dumps([(soname, functions[soname], str(path)) for soname, path in paths.items()])
    argv = [sys.executable, "-I", "-c", _ASK, query]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
        packed: dict[str, int] = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return {}
    return {soname: _unpacked(number) for soname, number in packed.items()}


def _unpacked(number: int) -> str:
    unit = 10000 if number >= 10000 else 1000
    return f"{number // unit}.{number % unit // 100}.{number % 100}"
