"""Tables of the kinds of Targets and their attributes."""

from __future__ import annotations

from collections.abc import Sequence

from packager.backends.attributes import Attribute, Value
from packager.bundle.fields import value_text
from packager.cli.reports.tables import Table, facts
from packager.targets.availability import KindReport


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
    """Return the tables of one kind: its facts, and its attributes."""
    backend = report.found.backend
    about = [("origin", report.found.origin), ("role", report.role or "-")]
    if backend:
        about[:0] = [("what", backend.summary), ("device", backend.device)]
    columns = ("attribute", "type", "default", "valid", "meaning")
    rows = tuple((one.name, one.type, _shown(one.default), _valid(one), one.doc) for one in report.attributes)
    return [facts(report.found.kind, *about), Table("Attributes", columns, rows)]


def _shown(value: Value) -> str:
    return value_text(value) or "-"


def _valid(attribute: Attribute) -> str:
    if attribute.choices is not None:
        return ", ".join(map(_shown, attribute.choices))
    return "0, 1" if attribute.type == "bool" else f">= {attribute.minimum}" if attribute.minimum is not None else "-"
