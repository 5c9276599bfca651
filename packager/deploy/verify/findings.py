"""The result of `verify`: findings, the outcome of each check, and their JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

SCHEMA_VERSION = 1
_MOST_SHOWN = 4


@dataclass(frozen=True)
class Finding:
    """A problem found by a check: ``what`` is wrong ``where``, ``why`` it matters, and a ``hint`` to fix it.

    ``check`` is ``group.aspect``, such as ``elf.exports``. Errors fail the verification, warnings do not.
    """

    check: str
    severity: Literal["error", "warning"]
    what: str
    where: str
    why: str
    hint: str


@dataclass(frozen=True)
class Check:
    """The outcome of a group of checks; ``note`` lists what was compared, or why it was skipped."""

    name: str
    status: Literal["passed", "failed", "skipped"]
    note: str


@dataclass(frozen=True)
class VerifyResult:
    """All outcomes of one `verify`; ``ok`` if no finding is an error."""

    path: str
    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value of ``packager verify --json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "path": self.path,
            "ok": self.ok,
            "checks": [asdict(check) for check in self.checks],
            "findings": [asdict(finding) for finding in self.findings],
        }


def error(
    check: str,
    what: str,
    *,
    where: str,
    why: str = "the manifest does not describe this file",
    hint: str = "rebuild the bundle with `packager build`, and do not edit, strip or relink it",
) -> Finding:
    """Return a finding that fails the verification; by default the file was changed after it was sealed."""
    return Finding(check, "error", what, where, why, hint)


def warning(check: str, what: str, *, where: str, why: str, hint: str) -> Finding:
    """Return a finding that does not fail the verification."""
    return Finding(check, "warning", what, where, why, hint)


def some(problems: Iterator[str]) -> Iterator[str]:
    """Yield the first few: a file that is all wrong has a million."""
    for count, what in enumerate(problems):
        if count == _MOST_SHOWN:
            yield "... and more"
            return
        yield what
