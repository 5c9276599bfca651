"""Targets: what to compile for, and every option of doing so.

A Target is a kind with typed attributes, written as on a command line (``llvm -mcpu=x86-64-v4``) or as a JSON
object. Each backend declares the attributes of its kind once, as a frozen dataclass; this module parses a text
into that dataclass and refuses everything else by name.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import platform
import shlex
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from packager.errors import UsageError


def attribute(default: Any, doc: str) -> Any:
    """Declare one Target attribute of an options dataclass: its default and one line of documentation."""
    return dataclasses.field(default=default, metadata={"doc": doc})


@dataclasses.dataclass(frozen=True)
class LlvmOptions:
    """Attributes of the ``llvm`` kind: TVM's LLVM code generator for the CPU."""

    mtriple: str = attribute("", "LLVM target triple; default: this machine's (x86_64-linux-gnu, aarch64-linux-gnu)")
    mcpu: str = attribute("", "LLVM CPU name, or 'native' for this machine; default: x86-64-v3 or generic")


KINDS: dict[str, type[Any]] = {"llvm": LlvmOptions}

# The portable baseline of each machine, used when a Target names no CPU.
DEFAULT_CPU = {"x86_64": "x86-64-v3", "aarch64": "generic"}


@dataclasses.dataclass(frozen=True)
class Target:
    """One canonical Target: its kind and its options, all defaults filled in."""

    kind: str
    options: LlvmOptions

    def to_json(self) -> dict[str, Any]:
        """Return the form that the manifest and the cache key hold."""
        return {"kind": self.kind, **dataclasses.asdict(self.options)}

    @property
    def machine(self) -> str:
        """The machine in the kernel's words: ``x86_64`` or ``aarch64``."""
        return self.options.mtriple.split("-", 1)[0]


@dataclasses.dataclass(frozen=True)
class TargetList:
    """The canonical list of Targets of one build. ``host`` compiles what no specialised Target takes."""

    host: Target

    def to_json(self) -> list[dict[str, Any]]:
        """Return the list in order of precedence."""
        return [self.host.to_json()]


def parse_targets(texts: Sequence[str | Mapping[str, Any]]) -> TargetList:
    """Parse and canonicalise a list of Targets; an empty list means the host CPU.

    Raises UsageError for an unknown kind, attribute or value, and for duplicates.
    """
    targets = [_parse_one(text) for text in texts]
    if len(targets) > 1:
        raise UsageError(
            f"{len(targets)} Targets of kind 'llvm' were given: " + ", ".join(json.dumps(t.to_json()) for t in targets),
            hint="give one llvm Target; it compiles for one machine",
        )
    return TargetList(host=_with_defaults(targets[0] if targets else Target("llvm", LlvmOptions())))


def _parse_one(text: str | Mapping[str, Any]) -> Target:
    kind, attributes = _split(text)
    if kind not in KINDS:
        raise UsageError(f"unknown Target kind {kind!r}", hint=_suggest(kind, KINDS, "kinds"))
    declared = typing.get_type_hints(KINDS[kind])
    values: dict[str, Any] = {}
    for name, value in attributes.items():
        if name not in declared:
            raise UsageError(f"Target {kind!r} has no attribute {name!r}", hint=_suggest(name, declared, "attributes"))
        if not isinstance(value, declared[name]):
            raise UsageError(
                f"attribute {name!r} of Target {kind!r} is {value!r}, expected type {declared[name].__name__}"
            )
        values[name] = value
    return Target(kind, KINDS[kind](**values))


def _split(text: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if isinstance(text, str) and not text.lstrip().startswith("{"):
        return _split_command_line(text)
    if isinstance(text, str):
        try:
            text = json.loads(text)
        except json.JSONDecodeError as error:
            raise UsageError(f"Target {text!r} is not valid JSON: {error}") from None
    attributes = dict(typing.cast("Mapping[str, Any]", text))
    if not isinstance(attributes.get("kind"), str):
        raise UsageError(f"Target {text!r} has no 'kind'", hint='write for example {"kind": "llvm"}')
    return attributes.pop("kind"), attributes


def _split_command_line(text: str) -> tuple[str, dict[str, Any]]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"Target {text!r} cannot be read: {error}") from None
    if not words or words[0].startswith("-"):
        raise UsageError(f"Target {text!r} has no kind", hint="write for example 'llvm -mcpu=x86-64-v4'")
    attributes: dict[str, Any] = {}
    for word in words[1:]:
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not equals or not name:
            raise UsageError(f"cannot read {word!r} in Target {text!r}", hint="attributes are written -name=value")
        if name in attributes:
            raise UsageError(f"attribute {name!r} stands twice in Target {text!r}")
        attributes[name] = value
    return words[0], attributes


def _suggest(name: str, valid: Mapping[str, Any], what: str) -> str:
    close = difflib.get_close_matches(name, valid, n=1)
    return (f"did you mean {close[0]!r}? " if close else "") + f"valid {what}: {', '.join(sorted(valid))}"


def _with_defaults(target: Target) -> Target:
    options = target.options
    triple = options.mtriple or f"{platform.machine()}-linux-gnu"
    machine = triple.split("-", 1)[0]
    if machine not in DEFAULT_CPU or "-linux" not in triple:
        raise UsageError(
            f"attribute 'mtriple' of Target 'llvm' is {triple!r}, which packager cannot build for",
            hint="valid triples: x86_64-linux-gnu, aarch64-linux-gnu",
        )
    if options.mcpu == "native" and machine != platform.machine():
        raise UsageError(
            f"-mcpu=native means this machine ({platform.machine()}), but -mtriple is {triple!r}",
            hint="name the CPU, or leave -mtriple out",
        )
    return Target(target.kind, LlvmOptions(mtriple=triple, mcpu=options.mcpu or DEFAULT_CPU[machine]))
