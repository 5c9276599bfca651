"""Escape names and strings for C, and keep text that nothing has escaped out of rendered sources.

A model's names are data: they reach a rendered source through ``c_string`` or ``comment_text`` alone, whose results are
``CText``. The template environment passes any other string through ``checked``, which refuses what could start a
string, a comment, a preprocessor directive or a line continuation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_COMMENT_SAFE = re.compile(r"[\w .,:;()<>\[\]{}+=&|!#$%@^~/-]", re.ASCII)
_COMMENT_LIMIT = 200
_PLAIN = re.compile(r"[\w \n.,:;?()<>\[\]{}+=&|!%^~/*-]*", re.ASCII)
_MARKS = ("//", "/*", "*/", "??", "%:", "<%", "%>", "<:", ":>")


class CText(str):
    """Text of C that packager has written or escaped: rendered as it is."""

    __slots__ = ()

    def trimmed(self) -> CText:
        """Return the text without empty lines at its ends."""
        return CText(self.strip("\n"))


def macro(name: str) -> CText:
    """Return ``name`` as an upper-case C identifier."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII).upper()
    return CText(text if not text[:1].isdigit() else f"M{text}")


def comment_text(text: str) -> CText:
    """Escape ``text`` for a C comment of one line: no ``*``, backslash, ``?`` or control character is left.

    Other characters than those of ASCII become ``{U+00E9}``; a long text is cut.
    """
    cut = text if len(text) <= _COMMENT_LIMIT else f"{text[:_COMMENT_LIMIT]} [cut]"
    return CText("".join(char if _COMMENT_SAFE.match(char) else f"{{U+{ord(char):04X}}}" for char in cut))


def c_string(text: str) -> CText:
    """Return a C string literal of ``text`` in UTF-8. Lone surrogates are kept as they are, in three bytes."""
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\?' else f"\\{byte:03o}"
        for byte in text.encode("utf-8", "surrogatepass")
    )
    return CText(f'"{escaped}"')


def header_name(name: str) -> CText:
    """Return ``name``, or ``<name>``, as the operand of #include. Raises ValueError for one that C cannot spell."""
    system = name.startswith("<") and name.endswith(">")
    inner = name[1:-1] if system else name
    if not inner or not inner.isprintable() or set(inner) & set('"<>\\'):
        raise ValueError(f"cannot stand after #include: {name!r}")
    return CText(name if system else f'"{name}"')


def checked(value: Any) -> Any:
    """Return a value that a template prints, if it can neither be a string nor a comment of C.

    Raises ValueError for text that should have been escaped: a fault of packager, whatever the model holds.
    """
    if not isinstance(value, str) or isinstance(value, CText):
        return value
    if not _PLAIN.fullmatch(value) or any(mark in value for mark in _MARKS):
        raise ValueError(f"text that is not escaped reached a template: {value[:80]!r}")
    return value


def joined(items: Iterable[Any]) -> CText:
    """Return a list of C: what ``checked`` lets pass, with commas between."""
    return CText(", ".join(str(checked(item)) for item in items))
