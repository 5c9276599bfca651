"""Converts JSON values to frozen dataclasses strictly, and dataclasses to JSON Schema.

A dataclass is the only definition of a format: ``read`` accepts exactly what ``schema`` describes. Fields without a
default are required; unknown keys are refused with a suggestion; there are no implicit conversions except integer to
float. Constraints beyond types are in ``Annotated``.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import reprlib
import types
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from packager.errors import suggestion

T = TypeVar("T")


class MismatchError(ValueError):
    """A value violates its definition; ``path`` is its JSON path, such as ``$.dims[0].min``."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


@dataclass(frozen=True)
class Range:
    """Constrains a number to [minimum, maximum]."""

    minimum: float
    maximum: float = math.inf

    def check(self, value: Any, path: str) -> None:
        if not self.minimum <= value <= self.maximum:
            upper = "" if self.maximum == math.inf else f" and at most {self.maximum}"
            raise MismatchError(path, f"must be at least {self.minimum}{upper}, is {value}")

    def schema(self) -> dict[str, Any]:
        return {"minimum": self.minimum} | ({} if self.maximum == math.inf else {"maximum": self.maximum})


@dataclass(frozen=True)
class Pattern:
    """Constrains a string to a full match of ``regex``; ``what`` describes it in messages."""

    regex: str
    what: str

    def check(self, value: Any, path: str) -> None:
        if re.fullmatch(self.regex, value, re.ASCII) is None:
            raise MismatchError(path, f"must be {self.what}, is {shown(value)}")

    def schema(self) -> dict[str, Any]:
        return {"pattern": f"^(?:{self.regex})$", "description": self.what}


@dataclass(frozen=True)
class HasKey:
    """Requires a key in an object."""

    key: str

    def check(self, value: Any, path: str) -> None:
        if self.key not in value:
            raise MismatchError(path, f"lacks the key {self.key!r}")

    def schema(self) -> dict[str, Any]:
        return {"required": [self.key]}


@dataclass(frozen=True)
class Unique:
    """Requires distinct items in an array, or with ``key``, distinct values of that field."""

    key: str | None = None

    def check(self, value: Any, path: str) -> None:
        seen = set()
        for index, item in enumerate(value):
            identity = getattr(item, self.key) if self.key else item
            if identity in seen:
                raise MismatchError(f"{path}[{index}]", f"{shown(identity)} is listed twice")
            seen.add(identity)

    def schema(self) -> dict[str, Any]:
        return {"uniqueItems": True}


def shown(value: object) -> str:
    """Format ``value`` for a message, truncated."""
    text = reprlib.repr(value) if isinstance(value, (list, dict)) else repr(value)  # no text of a million values
    return text if len(text) <= 60 else text[:57] + "..."


def parse(text: bytes | str) -> Any:
    """Parse a JSON text.

    Raises MismatchError, also for duplicate keys, NaN, bad UTF-8, lone surrogates and excessive nesting.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("an object has the same key twice")
        return result

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    try:
        decoded = text.decode() if isinstance(text, bytes) else text.encode().decode()  # fails for lone surrogates
        value = json.loads(decoded, object_pairs_hook=unique, parse_constant=refuse)
        if "\\u" in decoded:  # an escape may be one
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeErrors are ValueErrors
        raise MismatchError("$", f"not valid JSON: {error}") from None


def canonical(value: Any) -> bytes:
    """Encode as canonical JSON: sorted keys, no whitespace, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def read(cls: type[T], value: Any, path: str = "$") -> T:
    """Convert ``value``, from ``json.loads`` or ``tomllib.loads``, to an instance of the dataclass ``cls``.

    Raises MismatchError.
    """
    result: T = _read(cls, value, path)
    return result


@functools.cache
def _fields(cls: type) -> dict[str, tuple[Any, bool]]:
    """Return name -> (type, required) of a dataclass."""
    hints = get_type_hints(cls, include_extras=True)
    missing = dataclasses.MISSING
    return {
        field.name: (hints[field.name], field.default is missing and field.default_factory is missing)
        for field in dataclasses.fields(cls)
    }


_SCALARS: dict[Any, tuple[str, tuple[type, ...]]] = {
    str: ("string", (str,)),
    int: ("integer", (int,)),
    float: ("number", (int, float)),
    bool: ("boolean", (bool,)),
    type(None): ("null", (type(None),)),
}


def _read(hint: Any, value: Any, path: str) -> Any:
    """Dispatch on the kind of type. Supports the same kinds as _schema."""
    if hint in _SCALARS:
        return _read_scalar(hint, value, path)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _read_object(hint, value, path)
    readers = {
        Annotated: _read_annotated,
        Literal: _read_literal,
        tuple: _read_array,
        dict: _read_mapping,
        Union: _read_union,
        types.UnionType: _read_union,
    }
    return readers[get_origin(hint)](get_args(hint), value, path)


def _expect(name: str, accepted: type | tuple[type, ...], value: Any, path: str) -> None:
    if not isinstance(value, accepted) or (isinstance(value, bool) and accepted != (bool,)):
        raise MismatchError(path, f"expected {name}, found {_json_type(value)} {shown(value)}")


def _read_scalar(hint: Any, value: Any, path: str) -> Any:
    _expect(*_SCALARS[hint], value, path)
    if hint is not float:
        return value
    if abs(value) > 2**53 and isinstance(value, int):
        raise MismatchError(path, "an integer too large for a float")
    if not math.isfinite(value):
        raise MismatchError(path, "number out of range")
    return float(value)


def _read_annotated(arguments: tuple[Any, ...], value: Any, path: str) -> Any:
    result = _read(arguments[0], value, path)
    for rule in arguments[1:]:
        rule.check(result, path)
    return result


def _read_literal(arguments: tuple[Any, ...], value: Any, path: str) -> Any:
    # In Python True == 1 == 1.0; in JSON they differ.
    if not any(value == argument and type(value) is type(argument) for argument in arguments):
        expected = ", ".join(map(repr, arguments))
        raise MismatchError(path, f"expected one of {expected}; found {shown(value)}")
    return value


def _read_array(arguments: tuple[Any, ...], value: Any, path: str) -> Any:
    _expect("array", list, value, path)
    return tuple(_read(arguments[0], item, f"{path}[{index}]") for index, item in enumerate(value))


def _read_mapping(arguments: tuple[Any, ...], value: Any, path: str) -> Any:
    _expect("object", dict, value, path)
    return {key: _read(arguments[1], item, f"{path}.{key}") for key, item in value.items()}


def _read_object(cls: type, value: Any, path: str) -> Any:
    _expect("object", dict, value, path)
    fields = _fields(cls)
    for key in value:
        if key not in fields:
            raise MismatchError(path, f"unknown key {shown(key)}{suggestion(key, fields)}")
    for key, (_, required) in fields.items():
        if required and key not in value:
            raise MismatchError(path, f"lacks the key {key!r}")
    return cls(**{key: _read(hint, value[key], f"{path}.{key}") for key, (hint, _) in fields.items() if key in value})


def _read_union(alternatives: tuple[Any, ...], value: Any, path: str) -> Any:
    if value is None and type(None) in alternatives:
        return None
    remaining = [alternative for alternative in alternatives if alternative is not type(None)]
    if len(remaining) == 1:
        return _read(remaining[0], value, path)
    problems = []
    for alternative in remaining:
        try:
            return _read(alternative, value, path)
        except MismatchError as mismatch:
            problems.append(mismatch.problem)
    raise MismatchError(path, "; or ".join(problems))


def _json_type(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    return names.get(type(value), "null" if value is None else type(value).__name__)


def schema(cls: type, identifier: str) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) that ``read(cls, ...)`` enforces."""
    definitions: dict[str, Any] = {}
    top = _schema(cls, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": identifier,
        **top,
        "$defs": dict(sorted(definitions.items())),
    }


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if hint in _SCALARS:
        return {"type": _SCALARS[hint][0]}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _object_schema(hint, definitions)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is Annotated:
        rules = (rule.schema() for rule in arguments[1:])
        return functools.reduce(lambda result, rule: result | rule, rules, _schema(arguments[0], definitions))
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    return {"anyOf": [_schema(argument, definitions) for argument in arguments]}


def _object_schema(cls: type, definitions: dict[str, Any]) -> dict[str, Any]:
    if cls.__name__ not in definitions:
        fields = _fields(cls)
        definitions[cls.__name__] = {
            "type": "object",
            "description": (cls.__doc__ or "").split("\n\n")[0].replace("\n", " "),
            "properties": {name: _schema(kind, definitions) for name, (kind, _) in fields.items()},
            "required": [name for name, (_, required) in fields.items() if required],
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{cls.__name__}"}
