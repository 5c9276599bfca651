"""Attributes of Targets: what the options dataclass of a backend declares, and reading one value of it.

A value is a bool, an int, a float, a str or a tuple of str. It is written as text on a command line, or as the JSON
value of that type; both spellings give equal values.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from packager.bundle.strict_json import shown
from packager.errors import UsageError, valid_names

Value = bool | int | float | str | tuple[str, ...]

TYPES: dict[Any, str] = {bool: "bool", int: "int", float: "float", str: "str", tuple[str, ...]: "list of str"}
# Written in front of a kind or between kinds, so no backend can have them as its own.
RESERVED = ("kind", "compiler")

_BOOLS = {"0": False, "1": True, "false": False, "true": True}
_HINTS = {
    "bool": "valid values: 0, 1, false, true",
    "int": "write for example 3",
    "float": "write for example 0.5",
    "str": "write a text",
    "list of str": "write a,b on a command line or repeat the attribute; in JSON a list of texts, none of them empty",
}
_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True)
class Attribute:
    """One attribute of a kind. ``choices`` and ``minimum`` hold for the elements of a list."""

    name: str
    type: str  # a value of TYPES
    default: Value
    doc: str
    choices: tuple[Value, ...] | None
    minimum: int | None

    def to_json(self) -> dict[str, Any]:
        """Return what ``packager targets --json`` prints."""
        return dataclasses.asdict(self)


def attributes_of(options: type[Any]) -> dict[str, Attribute]:
    """Return the attributes that an options dataclass declares, in its order.

    Raises TypeError for a class that is not a frozen dataclass of ``packager.backends.base.attribute`` fields.
    """
    if not isinstance(options, type) or not dataclasses.is_dataclass(options):
        raise TypeError("options is not a dataclass")
    if not options.__dataclass_params__.frozen:  # type: ignore[attr-defined]  # of every dataclass, but not typed
        raise TypeError("options is not frozen")
    hints = typing.get_type_hints(options)
    return {field.name: _declared(field, hints[field.name]) for field in dataclasses.fields(options)}


def _declared(field: dataclasses.Field[Any], hint: Any) -> Attribute:
    if field.name in RESERVED:
        raise TypeError(f"the name of attribute {field.name!r} is reserved")
    if not str(field.metadata.get("doc", "")).strip():
        raise TypeError(f"attribute {field.name!r} is not declared with attribute(default, doc)")
    if hint not in TYPES:
        raise TypeError(f"attribute {field.name!r} is not one of the types {', '.join(TYPES.values())}")
    default: Any = field.default
    if not has_type(default, TYPES[hint]):
        raise TypeError(f"the default {default!r} of attribute {field.name!r} is not of type {TYPES[hint]}")
    choices, minimum = field.metadata.get("choices"), field.metadata.get("minimum")
    return Attribute(field.name, TYPES[hint], default, field.metadata["doc"], choices, minimum)


def has_type(value: object, declared: str) -> bool:
    """Whether a value is exactly of a declared type: True is no int, and an int no float."""
    if declared == "list of str":
        return isinstance(value, tuple) and all(type(item) is str for item in value)
    return type(value).__name__ == declared


def from_text(kind: str, attribute: Attribute, texts: Sequence[str]) -> Value:
    """Return the value that a command line gives an attribute; ``texts`` has one item for each time it stands there.

    Raises UsageError.
    """
    if attribute.type == "list of str":
        given = [part for text in texts for part in (text.split(",") if text else [])]
        return _checked(kind, attribute, given, tuple(given))
    if len(texts) > 1:
        raise UsageError(
            f"attribute {attribute.name!r} stands twice in Target {kind!r}: {texts[0]!r} and {texts[1]!r}",
            hint=f"it is of type {attribute.type}; only lists can be repeated",
        )
    (text,) = texts
    value: Value | None = None
    match attribute.type:
        case "bool":
            value = _BOOLS.get(text)
        case "int" if re.fullmatch(r"[+-]?[0-9]{1,30}", text):
            value = int(text)
        case "float" if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?", text):
            value = float(text)
        case "str":
            value = text
    return _checked(kind, attribute, text, value)


def from_json(kind: str, attribute: Attribute, value: object) -> Value:
    """Return the value that a JSON object gives an attribute. Raises UsageError."""
    read: Any = value
    match attribute.type:
        case "bool" if type(value) is int and value in (0, 1):
            read = bool(value)
        case "float" if type(value) is int:
            read = float(value) if value in _INT64 else None
        case "list of str" if isinstance(value, list):
            read = tuple(value)
    return _checked(kind, attribute, value, read if has_type(read, attribute.type) else None)


def _checked(kind: str, attribute: Attribute, given: object, value: Value | None) -> Value:
    """Return a value that fits its declaration; ``value`` None says that what was given is not of the type."""
    actual = given if value is None or isinstance(value, tuple) else value
    what = f"attribute {attribute.name!r} of Target {kind!r} is {shown(actual)}"
    if value is None or _is_damaged(value):
        raise UsageError(f"{what}, expected type {attribute.type}", hint=_hint(attribute))
    if value == attribute.default:
        return attribute.default
    items = value if isinstance(value, tuple) else (value,)
    for item in items:
        if attribute.choices is not None and item not in attribute.choices:
            element = f", and {item!r}" if isinstance(value, tuple) else ", which"
            raise UsageError(
                f"{what}{element} is not valid", hint=valid_names(item, _spelt_choices(attribute.choices), "values")
            )
        if attribute.minimum is not None and not isinstance(item, str) and item < attribute.minimum:
            raise UsageError(f"{what}, expected at least {attribute.minimum}")
    return value


def _is_damaged(value: Value) -> bool:
    """Whether a value of the right type cannot stand in a manifest, or means nothing."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, int):
        return value not in _INT64
    if isinstance(value, tuple):
        return any(not item or _is_damaged(item) for item in value)
    return any("\ud800" <= character <= "\udfff" or character == "\0" for character in value)


def _hint(attribute: Attribute) -> str:
    if attribute.choices is not None:
        return f"valid values: {', '.join(_spelt_choices(attribute.choices))}"
    return _HINTS[attribute.type]


def _spelt_choices(choices: Sequence[Value]) -> list[str]:
    """Return choices as on a command line; an empty text, which stands for a default, cannot be shown in a list."""
    return [text for text in map(spelled, choices) if text]


def spelled(value: Value) -> str:
    """Return a value that is no list as on a command line."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def quoted(value: Value) -> str:
    """Return a value as it stands in messages: a list as on a command line."""
    return repr(",".join(value) if isinstance(value, tuple) else value)
