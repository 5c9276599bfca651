"""Reports the installed kinds of Targets, their attributes, and whether they are available here."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from packager.backends.attributes import Attribute, attributes_of
from packager.backends.base import Unavailable
from packager.backends.registry import Registered, all_backends, find_backend, origin
from packager.errors import PackagerError, ToolchainError
from packager.targets.parsed import is_base

BUILD_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "onnx", "jinja2", "capstone", "iced-x86")


@dataclass(frozen=True)
class KindReport:
    """One kind; ``unavailable`` is the reason why it is not available here, valid only if ``asked``."""

    found: Registered
    attributes: tuple[Attribute, ...]
    asked: bool
    unavailable: Unavailable | None

    @property
    def role(self) -> str | None:
        """``base`` or ``specialized``; None if the backend cannot be loaded."""
        return None if self.found.backend is None else "base" if is_base(self.found.backend) else "specialized"

    def to_json(self) -> dict[str, Any]:
        """Return the JSON record of a kind."""
        backend, reason = self.found.backend, self.unavailable
        record: dict[str, Any] = {
            "kind": self.found.kind,
            "device": backend.device if backend else None,
            "role": self.role,
            "summary": backend.summary if backend else None,
            "origin": self.found.origin,
            "attributes": [attribute.to_json() for attribute in self.attributes],
        }
        if self.asked:
            record["available"] = reason is None
            record["reason"], record["hint"] = (reason.reason, reason.hint or None) if reason else (None, None)
        return record


@dataclass(frozen=True)
class Probe:
    """The result of probing a prerequisite; ``required`` ones are needed to build for this machine."""

    what: str
    ok: bool
    detail: str
    hint: str | None
    required: bool


def report_all() -> list[KindReport]:
    """Return all kinds with their availability. Imports TVM."""
    return [KindReport(found, _attributes(found), True, availability(found.kind)) for found in all_backends()]


def report_kind(kind: str) -> KindReport:
    """Return one kind without its availability. Does not import TVM. Raises UsageError and BackendError."""
    found = Registered(kind, origin(kind), find_backend(kind), None)
    return KindReport(found, _attributes(found), False, None)


def to_json(reports: Sequence[KindReport]) -> dict[str, Any]:
    """Return the JSON value of ``packager targets --json``."""
    return {"schema_version": 1, "kinds": [report.to_json() for report in reports]}


def require_build_packages() -> None:
    """Raise ToolchainError if a package that every build needs is missing, as on the deploy side."""
    missing = [name for name in BUILD_PACKAGES if not probe_package(name, "", required=True).ok]
    if missing:
        raise ToolchainError(f"building needs {', '.join(missing)}", hint="pip install 'packager[build]'")


def availability(kind: str) -> Unavailable | None:
    """Return why Target ``kind`` is not available here, or None. May import TVM.

    Uses the Target's defaults, or the backend's ``example`` if it has required attributes.
    """
    from packager.targets.target_list import parse_targets, unavailable

    try:
        targets = parse_targets(getattr(find_backend(kind), "example", kind))
        require_build_packages()
        target = next(one for one in (*targets.bases, *targets.specialized) if one.kind == kind)
        return unavailable(target)
    except PackagerError as error:
        cause = f" ({error.detail.splitlines()[0]})" if error.detail else ""
        return Unavailable(error.message + cause, error.hint or "")


def _attributes(found: Registered) -> tuple[Attribute, ...]:
    return tuple(attributes_of(found.backend.options).values()) if found.backend else ()


def probe_package(name: str, hint: str, *, required: bool) -> Probe:
    try:
        return Probe(name, True, importlib.metadata.version(name), None, required)
    except importlib.metadata.PackageNotFoundError:
        return Probe(name, False, "not installed", hint, required)
