"""Targets as they are written, their kinds and attributes checked by name; no defaults are filled in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packager.backends.attributes import Attribute, Value, attributes_of
from packager.backends.registry import all_backends, find_backend, known_kinds
from packager.bundle.suggestions import valid_names
from packager.errors import UsageError
from packager.targets.text import Written

if TYPE_CHECKING:
    from packager.backends.base import Backend

HOST_DEVICE = "cpu"

# packager's own base Target of each device. The host's needs no attribute, so that a list may leave it out.
DEFAULT_BASE = {HOST_DEVICE: "llvm", "cuda": "cuda"}


@dataclass(frozen=True)
class Parsed:
    """A Target whose kinds and attributes are known to be right, no defaults filled in.

    Of one that is written ``llvm -compiler=ccompiler`` the kind is ``ccompiler``, and ``base_kind`` is ``llvm``, to
    which ``base_values`` belong.
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
    """Read ``BASE -compiler=KIND``: attributes are those of KIND, and others may repeat or set those of BASE."""
    if not is_base(base):
        raise UsageError(
            f"Target {base.kind!r} has no attribute 'compiler': it is a backend that specializes another Target",
            hint=f"write '{base.kind}' alone, or '{DEFAULT_BASE.get(base.device, 'BASE')} -compiler={base.kind}'",
        )
    if compiler not in known_kinds() or is_base(find_backend(compiler)):
        takers = [found.kind for found in all_backends() if found.backend and not is_base(found.backend)]
        raise UsageError(
            f"attribute 'compiler' of Target {base.kind!r} is {compiler!r}, which is not a backend that specializes it",
            hint=valid_names(compiler, sorted(takers), "values"),
        )
    backend = find_backend(compiler)
    if backend.device != base.device:
        raise UsageError(
            f"{written.text} is for the wrong device: {base.kind!r} is for device {base.device!r},"
            f" and {compiler!r} for device {backend.device!r}",
            hint=f"write '{compiler}' alone, beside a Target for device {backend.device!r}",
        )
    own, shared = attributes_of(backend.options), attributes_of(base.options)
    for name in written.attributes:
        if name not in own and name not in shared:
            hint = valid_names(name, sorted({*own, *shared}), "attributes")
            raise UsageError(f"Target '{base.kind} -compiler={compiler}' has no attribute {name!r}", hint=hint)
    values = {name: written.read(compiler, own[name]) for name in written.attributes if name in own}
    # An attribute that both have, as the architectures of GPUs, is said of both.
    claimed = {name: written.read(base.kind, shared[name]) for name in written.attributes if name in shared}
    return Parsed(written.text, compiler, backend.device, False, values, base.kind, claimed)


def is_base(backend: Backend) -> bool:
    """Whether a backend compiles what no one else takes, and does not take parts of a model itself."""
    return hasattr(backend, "generate")


def _attribute_hint(backend: Backend, name: str) -> str:
    base = DEFAULT_BASE.get(backend.device)
    if base and base != backend.kind and name in attributes_of(find_backend(base).options):
        return f"it is an attribute of Target {base!r}: add -t '{base} -{name}=...'"
    valid: Mapping[str, Attribute] = attributes_of(backend.options)
    return valid_names(name, sorted(valid), "attributes")
