"""Parses Targets: from command-line syntax, a JSON object, or a JSON array of objects, to checked kinds and values.

Checks the names of kinds and attributes, and the types of values; defaults are not filled in.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packager.backends.attributes import Attribute, Value, attributes_of, from_json, from_text
from packager.backends.registry import find_backend, known_kinds, own_backends, third_parties
from packager.bundle import strict_json
from packager.errors import UsageError, valid_names

if TYPE_CHECKING:
    from packager.backends.base import Backend

HOST_DEVICE = "cpu"

# The default base Target of each device. The host's has no required attributes, so a list may omit it.
DEFAULT_BASE = {HOST_DEVICE: "llvm", "cuda": "cuda"}


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


@dataclass(frozen=True)
class Parsed:
    """A checked Target, without defaults.

    For ``llvm -compiler=ccompiler`` the kind is ``ccompiler``, and ``base_kind`` is ``llvm``, with ``base_values``.
    """

    text: str
    kind: str
    device: str
    is_base: bool
    values: Mapping[str, Value]
    base_kind: str | None = None
    base_values: Mapping[str, Value] = dataclasses.field(default_factory=dict)


def parse(written: Written) -> Parsed:
    """Check the names and values of a Target. Raises UsageError."""
    backend = find_backend(written.kind)
    own = attributes_of(backend.options)
    if written.compiler is not None:
        return _specialized(written, backend, written.compiler)
    for name in written.attributes:
        if name not in own:
            raise UsageError(f"Target {written.kind!r} has no attribute {name!r}", hint=_attribute_hint(backend, name))
    values = {name: written.read(written.kind, own[name]) for name in written.attributes}
    return Parsed(written.text, written.kind, backend.device, is_base(backend), values)


def _specialized(written: Written, base: Backend, compiler: str) -> Parsed:
    """Parse ``BASE -compiler=KIND``, with attributes of KIND or of BASE."""
    if not is_base(base):
        raise UsageError(
            f"Target {base.kind!r} has no attribute 'compiler': it is a backend that specializes another Target",
            hint=f"write '{base.kind}' alone, or '{DEFAULT_BASE.get(base.device, 'BASE')} -compiler={base.kind}'",
        )
    if compiler not in known_kinds() or is_base(find_backend(compiler)):
        takers = [found.kind for found in own_backends() if not is_base(found)] + [kind for kind, _ in third_parties()]
        raise UsageError(
            f"attribute 'compiler' of Target {base.kind!r} is {compiler!r}, which is not a backend that specializes it",
            hint=valid_names(compiler, sorted(takers), "values"),
        )
    backend = find_backend(compiler)
    if backend.device != base.device:
        raise UsageError(
            f"{written.text} is for the wrong device: {base.kind!r} is for device {base.device!r},"
            f" and {compiler!r} for device {backend.device!r}",
            hint=f"write '{compiler}' alone, and add a Target for device {backend.device!r}",
        )
    own, shared = attributes_of(backend.options), attributes_of(base.options)
    for name in written.attributes:
        if name not in own and name not in shared:
            hint = valid_names(name, sorted({*own, *shared}), "attributes")
            raise UsageError(f"Target '{base.kind} -compiler={compiler}' has no attribute {name!r}", hint=hint)
    values = {name: written.read(compiler, own[name]) for name in written.attributes if name in own}
    # An attribute that both have, such as GPU architectures, applies to both.
    claimed = {name: written.read(base.kind, shared[name]) for name in written.attributes if name in shared}
    return Parsed(written.text, compiler, backend.device, False, values, base.kind, claimed)


def is_base(backend: Backend) -> bool:
    """Whether a backend is a base: it compiles everything that specialized backends do not take."""
    return hasattr(backend, "generate")


def _attribute_hint(backend: Backend, name: str) -> str:
    base = DEFAULT_BASE.get(backend.device)
    if base and base != backend.kind and name in attributes_of(find_backend(base).options):
        return f"it is an attribute of Target {base!r}: add -t '{base} -{name}=...'"
    valid: Mapping[str, Attribute] = attributes_of(backend.options)
    return valid_names(name, sorted(valid), "attributes")
