"""TensorRT as a loaded library: its three forms, their sonames and functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packager.bundle.elf.search import find_library, installed_folders
from packager.ir.primitives import KnownLibrary, LoadedLibrary

Form = Literal["tensorrt", "tensorrt_rtx", "tensorrt_lean"]


@dataclass(frozen=True)
class Library:
    """A form of the library: ``number`` stands for it in engine records (``packager.bundle.gpu.engines``).

    ``soname`` lacks the major version. ``majors`` are those whose ABI templates/tensorrt/slots.h has, newest first; of
    any other the library is refused.
    """

    number: int
    soname: str
    majors: tuple[int, ...]
    least: str
    refits: bool

    @property
    def sonames(self) -> tuple[str, ...]:
        """What sessions look for, in this order."""
        return tuple(f"{self.soname}.{major}" for major in self.majors)


LIBRARIES: dict[Form, Library] = {
    "tensorrt": Library(1, "libnvinfer.so", (11, 10, 8), "8.6", refits=True),
    "tensorrt_rtx": Library(2, "libtensorrt_rtx.so", (1,), "1.5", refits=True),
    "tensorrt_lean": Library(3, "libnvinfer_lean.so", (11, 10, 8), "8.6", refits=False),
}
"""TensorRT itself, TensorRT for RTX, and the runtime of version-compatible engines alone."""

KNOWN = tuple(KnownLibrary(library.sonames, "getInferLibVersion") for library in LIBRARIES.values())

FUNCTIONS = ("getInferLibVersion", "createInferRuntime_INTERNAL")
REFITTER = "createInferRefitter_INTERNAL"
"""In the order of PK_TRT_GET_VERSION of templates/tensorrt/slots.h."""


def symbol_of(form: Form) -> str:
    """Return the symbol of the form's ``pk_library_t``."""
    return f"pkm_{form}"


def functions_of(form: Form) -> tuple[str, ...]:
    """Return the functions that are called of a form, in order."""
    return (*FUNCTIONS, REFITTER) if LIBRARIES[form].refits else FUNCTIONS


def loaded_library(
    form: Form, versions: Sequence[tuple[int, ...]] = (), *, embedded: Path | None = None
) -> LoadedLibrary:
    """Return what sessions open for engines that ``versions`` of it have built; any, if it is not known yet.

    ``embedded`` is the file that the bundle gets a copy of.

    Which version fits which engine is the code's to say: engines may be there only later.
    """
    library = LIBRARIES[form]
    majors = {version[0] for version in versions}
    sonames = tuple(f"{library.soname}.{major}" for major in library.majors if not majors or major in majors)
    if embedded is not None:
        sonames = (embedded.name,)
    least = ".".join(map(str, max(versions)[:3])) if versions else library.least
    exact = least if versions and form != "tensorrt_lean" else None
    sonames = sonames or library.sonames
    return LoadedLibrary(symbol_of(form), sonames, functions_of(form), least, exact, embedded is not None)


def installed_library(form: Form, major: int = 0) -> Path | None:
    """Return the newest library of a form that pip has installed for this interpreter, or the dynamic linker finds.

    If ``major`` is not 0, it is of that major version.
    """
    library = LIBRARIES[form]
    sonames = library.sonames if not major else (f"{library.soname}.{major}",)
    found = (find_library(soname, installed_folders()) for soname in sonames)
    return next((path for path in found if path is not None), None)
