"""What ``packager targets`` says: the kinds that are installed, and the attributes of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from packager.backends.attributes import Attribute, Value, attributes_of, spelt
from packager.backends.base import Unavailable
from packager.backends.registry import Registered, all_backends, find_backend, origin
from packager.cli.reports.bundle import Table
from packager.pipeline.doctor import availability
from packager.targets.parsed import is_base


@dataclass(frozen=True)
class KindReport:
    """One kind; ``unavailable`` says why it cannot be used here, and is not asked for if ``asked`` is False."""

    found: Registered
    attributes: tuple[Attribute, ...]
    asked: bool
    unavailable: Unavailable | None

    @property
    def role(self) -> str | None:
        """``base``: compiles what no one else takes; ``specialised``: takes parts of a model; None: not known."""
        return None if self.found.backend is None else "base" if is_base(self.found.backend) else "specialised"

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints of a kind."""
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


def report_all() -> list[KindReport]:
    """Return all kinds and whether they can be used here. Imports TVM, to ask."""
    return [KindReport(found, _attributes(found), True, availability(found.kind)) for found in all_backends()]


def report_kind(kind: str) -> KindReport:
    """Return one kind. Does not import TVM. Raises UsageError and BackendError."""
    found = Registered(kind, origin(kind), find_backend(kind), None)
    return KindReport(found, _attributes(found), False, None)


def _attributes(found: Registered) -> tuple[Attribute, ...]:
    return tuple(attributes_of(found.backend.options).values()) if found.backend else ()


def to_json(reports: Sequence[KindReport]) -> dict[str, Any]:
    """Return what ``packager targets --json`` prints."""
    return {"schema_version": 1, "kinds": [report.to_json() for report in reports]}


def list_table(reports: Sequence[KindReport]) -> Table:
    """Return the table of all kinds."""
    rows = []
    for report in reports:
        backend, reason = report.found.backend, report.unavailable
        device, summary = (backend.device, backend.summary) if backend else ("-", "-")
        state = "yes" if reason is None else f"no: {reason.reason}" + (f" (hint: {reason.hint})" if reason.hint else "")
        rows.append((report.found.kind, device, report.role or "-", report.found.origin, summary, state))
    return Table("Target kinds", ("kind", "device", "role", "origin", "what", "available"), tuple(rows))


def kind_tables(report: KindReport) -> list[Table]:
    """Return the tables of one kind: what it is, and its attributes."""
    backend = report.found.backend
    facts = [("origin", report.found.origin), ("role", report.role or "-")]
    if backend:
        facts[:0] = [("what", backend.summary), ("device", backend.device)]
    columns = ("attribute", "type", "default", "valid", "meaning")
    rows = tuple((one.name, one.type, _shown(one.default), _valid(one), one.doc) for one in report.attributes)
    return [Table(report.found.kind, ("", ""), tuple(facts)), Table("Attributes", columns, rows)]


def _shown(value: Value) -> str:
    text = ",".join(value) if isinstance(value, tuple) else spelt(value)
    return text or "-"


def _valid(attribute: Attribute) -> str:
    if attribute.choices is not None:
        return ", ".join(map(_shown, attribute.choices))
    return "0, 1" if attribute.type == "bool" else f">= {attribute.minimum}" if attribute.minimum is not None else "-"
