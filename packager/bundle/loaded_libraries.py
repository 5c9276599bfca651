"""Encodes the section that says which shared libraries sessions open: what the runtime opens is what is read back.

Text, zero-terminated piece by piece: for each library its symbol, ``least``, ``chosen_with`` or nothing, whether it is
``required``, ``optional``, ``embedded`` or ``optional embedded``, then its sonames and an empty piece, then its
functions and an empty piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from packager.bundle import strict_json
from packager.bundle.elf.tables import SHF_COMPRESSED, SHT_PROGBITS, Section
from packager.bundle.elf.window import open_window
from packager.bundle.requirements import LibraryRequirement
from packager.bundle.strict_json import MismatchError
from packager.errors import BundleError

if TYPE_CHECKING:
    from packager.bundle.manifest import Manifest

_MAX_BYTES = 1 << 20
_PRESENCE = {
    "required": (False, False),
    "optional": (True, False),
    "embedded": (False, True),
    "optional embedded": (True, True),
}
"""How the section says whether a library is optional, and embedded."""


def library_texts(libraries: Iterable[LibraryRequirement]) -> list[str]:
    """Return the pieces of the section."""
    presence = {facts: words for words, facts in _PRESENCE.items()}
    texts: list[str] = []
    for library in libraries:
        texts += [
            library.symbol,
            library.least,
            library.chosen_with or "",
            presence[library.optional, library.embedded],
        ]
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


def library_contradictions(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield (JSON path, problem) for what a manifest says of loaded libraries that does not fit together."""
    libraries = {library.symbol: library for library in manifest.requirements.libraries}
    called = {symbol for _, primitive in manifest.primitives() for symbol in primitive.libraries}
    for index, library in enumerate(manifest.requirements.libraries):
        path = f"$.requirements.libraries[{index}]"
        if not library.sonames or not library.functions:
            yield path, "has no sonames, or no functions"
        if library.symbol not in called:
            yield path, "no primitive function calls it"
    if unknown := sorted(called - libraries.keys()):
        yield "$.backends", f"a primitive function calls {strict_json.shown(unknown[0])}, which is not a library"
    for number, choice in enumerate(manifest.choices):
        path = f"$.placement.choices[{number}]"
        of_choice = {symbol for alternative in choice.alternatives for symbol in alternative.libraries}
        if unknown := sorted(of_choice - called):
            yield f"{path}.alternatives", f"{strict_json.shown(unknown[0])} is not a library that is called"
        if choice.fallback is None:
            needed = sorted(symbol for symbol in of_choice & libraries.keys() if libraries[symbol].optional)
            if needed:
                yield f"{path}.fallback", f"is null, but {strict_json.shown(needed[0])} is optional"
        elif choice.fallback >= len(choice.alternatives):
            yield f"{path}.fallback", f"is {choice.fallback}, but there are {len(choice.alternatives)} alternatives"
        elif choice.alternatives[choice.fallback].libraries or not of_choice:
            yield f"{path}.fallback", "calls a library, or no other alternative does"
    in_choices = {s for c in manifest.choices for alternative in c.alternatives for s in alternative.libraries}
    for symbol, library in libraries.items():
        if library.optional and symbol not in in_choices:
            yield "$.requirements.libraries", f"{symbol} is optional, but no choice has an alternative that calls it"


def _read(symbol: str, rest: Iterator[str]) -> LibraryRequirement:
    try:
        least, chosen_with, presence = next(rest), next(rest), next(rest)
        library = LibraryRequirement(
            symbol, _until_empty(rest), least, chosen_with or None, _until_empty(rest), *_PRESENCE[presence]
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
