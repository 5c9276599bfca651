"""Splits C into tokens as a compiler does, for a proof that two sources differ in strings and comments alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

_TRIGRAPHS = {"=": "#", "/": "\\", "'": "^", "(": "[", ")": "]", "!": "|", "<": "{", ">": "}", "-": "~"}
_TRIGRAPH = re.compile(r"\?\?([=/'()!<>-])")
_SPLICE = re.compile(r"\\[ \t\f\v]*\n")
_TOKEN = re.compile(
    r"(?P<skipped>[ \t\r\f\v]+|//[^\n]*|/\*.*?\*/)"
    r'|(?P<string>"(?:[^"\\\n]|\\[^\n])*")'
    r"|(?P<other>'(?:[^'\\\n]|\\[^\n])*'|\w+|.)",  # newlines are tokens: they end directives
    re.DOTALL,
)
_MACRO = re.compile(r"[A-Z_][A-Z0-9_]*")
STRING = '""'


def tokens(source: str) -> Iterator[str]:
    """Yield the tokens: each string as ``""``, no comments; a string or comment without an end as its first mark."""
    spliced = _SPLICE.sub("", _TRIGRAPH.sub(lambda match: _TRIGRAPHS[match[1]], source))
    for match in _TOKEN.finditer(spliced):
        if match.lastgroup != "skipped":
            yield STRING if match.lastgroup == "string" else match[0]


def first_difference(one: str, other: str, *, macros: bool = False) -> str | None:
    """Return where the tokens of two sources differ, None if they do not; with ``macros`` macros' names may differ."""
    left, right = list(tokens(one)), list(tokens(other))
    if left == right:
        return None
    for a, b in zip([*left, "the end"], [*right, "the end"], strict=False):
        if a != b and not (macros and _MACRO.fullmatch(a) and _MACRO.fullmatch(b)):
            return f"{a[:80]!r}, not {b[:80]!r}"
    return None
