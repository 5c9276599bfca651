"""Encodes the section that says which shared libraries sessions open: what the runtime opens is what is read back.

Text, zero-terminated piece by piece: for each library its symbol, ``least``, ``chosen_with`` or nothing, ``required``
or ``optional``, then its sonames and an empty piece, then its functions and an empty piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from packager.bundle import strict_json
from packager.bundle.elf.tables import SHF_COMPRESSED, SHT_PROGBITS, Section
from packager.bundle.elf.window import open_window
from packager.bundle.requirements import LibraryRequirement
from packager.bundle.strict_json import MismatchError
from packager.errors import BundleError

_MAX_BYTES = 1 << 20
_PRESENCE = {"required": False, "optional": True}


def library_texts(libraries: Iterable[LibraryRequirement]) -> list[str]:
    """Return the pieces of the section."""
    presence = {optional: word for word, optional in _PRESENCE.items()}
    texts: list[str] = []
    for library in libraries:
        texts += [library.symbol, library.least, library.chosen_with or "", presence[library.optional]]
        texts += [*library.sonames, "", *library.functions, ""]
    return texts


def read_libraries(path: Path, section: Section | None) -> tuple[LibraryRequirement, ...]:
    """Return the libraries that a file lists; an empty tuple if ``section`` is None.

    Raises BundleError, and UsageError if the file cannot be opened.
    """
    if section is None:
        return ()
    if section.type != SHT_PROGBITS or section.flags & SHF_COMPRESSED or section.size > _MAX_BYTES:
        raise _damaged(f"the section {section.name} is compressed, too long or has no bytes in the file")
    with open_window(path) as window:
        return read_library_texts(window.read(section.offset, section.size, f"section {section.name}"))


def read_library_texts(section: bytes) -> tuple[LibraryRequirement, ...]:
    """Return what a section says. Raises BundleError if it is damaged."""
    try:
        pieces = section.decode("ascii").split("\0")
    except UnicodeDecodeError:
        raise _damaged("it is not text") from None
    if pieces.pop():
        raise _damaged("it is cut short")
    rest = iter(pieces)
    return tuple(_read(symbol, rest) for symbol in rest)


def _read(symbol: str, rest: Iterator[str]) -> LibraryRequirement:
    try:
        least, chosen_with, presence = next(rest), next(rest), next(rest)
        library = LibraryRequirement(
            symbol, _until_empty(rest), least, chosen_with or None, _until_empty(rest), _PRESENCE[presence]
        )
        return strict_json.read(LibraryRequirement, strict_json.parse(strict_json.canonical(asdict(library))))
    except StopIteration:
        raise _damaged(f"it ends within library {symbol[:80]!r}") from None
    except KeyError:
        raise _damaged(f"library {symbol[:80]!r} is neither {' nor '.join(_PRESENCE)}") from None
    except MismatchError as mismatch:
        raise _damaged(str(mismatch)) from None


def _until_empty(rest: Iterator[str]) -> tuple[str, ...]:
    texts = []
    while text := next(rest):
        texts.append(text)
    return tuple(texts)


def _damaged(why: str) -> BundleError:
    return BundleError(f"the list of loaded libraries is damaged: {why}", hint="copy the bundle again, or rebuild it")
