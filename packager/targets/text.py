"""Reads the text of Targets: command-line syntax, a JSON object, or a JSON array of objects.

The result is kinds with unchecked attributes; ``parsed`` checks them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packager.backends.attributes import Attribute, Value, from_json, from_text
from packager.bundle import strict_json
from packager.errors import UsageError


@dataclass(frozen=True)
class Written:
    """One unchecked Target. ``attributes`` are JSON values, or with ``is_text`` lists of strings."""

    text: str
    kind: str
    compiler: str | None
    attributes: Mapping[str, Any]
    is_text: bool

    def read(self, kind: str, attribute: Attribute) -> Value:
        """Return the value of a given attribute. Raises UsageError."""
        given = self.attributes[attribute.name]
        return from_text(kind, attribute, given) if self.is_text else from_json(kind, attribute, given)


def read_written(given: str | Mapping[str, Any]) -> list[Written]:
    """Read a text or an object: one Target, or those of a JSON array. Raises UsageError."""
    if isinstance(given, Mapping):
        return [_from_object(given)]
    if not isinstance(given, str):
        raise UsageError(f"Target {given!r} is neither a text nor an object", hint="write for example 'llvm'")
    if not given.lstrip().startswith(("{", "[")):
        return [_from_command_line(given)]
    try:
        value = strict_json.parse(given)
    except strict_json.MismatchError as error:
        raise UsageError(f"Target {given!r} is {error.problem}") from None
    if not isinstance(value, list):
        return [_from_object(value)]
    if not value or not all(isinstance(item, dict) for item in value):
        raise UsageError(f"Target {given!r} is not a list of objects", hint='write for example [{"kind": "llvm"}]')
    return [_from_object(item) for item in value]


def _from_object(value: Mapping[str, Any]) -> Written:
    text = _as_text(value)
    attributes = dict(value)
    kind, compiler = attributes.pop("kind", None), attributes.pop("compiler", None)
    if not isinstance(kind, str):
        raise UsageError(f"Target {text} has no 'kind'", hint='write for example {"kind": "llvm"}')
    if "compiler" in value and not isinstance(compiler, str):
        raise UsageError(
            f"attribute 'compiler' of Target {kind!r} is {compiler!r}, expected type str",
            hint="name the kind of a backend that specializes this Target",
        )
    return Written(text, kind, compiler, attributes, is_text=False)


def _as_text(value: Mapping[str, Any]) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return strict_json.shown(value)  # not JSON: the attribute is refused later


def _from_command_line(text: str) -> Written:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"Target {text!r} cannot be read: {error}") from None
    if not words or words[0].startswith("-"):
        raise UsageError(f"Target {text!r} has no kind", hint="write for example 'llvm -mcpu=x86-64-v4'")
    attributes: dict[str, list[str]] = {}
    for word in words[1:]:
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not equals or not name:
            raise UsageError(f"cannot read {word!r} in Target {text!r}", hint="attributes are written -name=value")
        if name == "kind":
            raise UsageError(f"Target {text!r} has two kinds", hint="write the kind once, at the front")
        attributes.setdefault(name, []).append(value)
    compilers = attributes.pop("compiler", [])
    if len(compilers) > 1:
        raise UsageError(
            f"attribute 'compiler' is given twice in Target {text!r}", hint="give a Target for each compiler"
        )
    return Written(repr(text), words[0], compilers[0] if compilers else None, attributes, is_text=True)
