"""What `verify` says: findings, the outcome of each check, and both as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Finding:
    """Something that a check found: ``what`` is wrong ``where``, ``why`` it matters, and a ``hint`` what to do.

    ``check`` is ``group.aspect``, ``elf.exports`` for example. Errors fail the verification, warnings do not.
    """

    check: str
    severity: Literal["error", "warning"]
    what: str
    where: str
    why: str
    hint: str


@dataclass(frozen=True)
class Check:
    """The outcome of a group of checks; ``note`` says what was compared, or why it was skipped."""

    name: str
    status: Literal["passed", "failed", "skipped"]
    note: str


@dataclass(frozen=True)
class VerifyResult:
    """All outcomes of one `verify`; ``ok`` means that no finding is an error."""

    path: str
    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the value that ``packager verify --json`` prints."""
        return {
            "schema_version": SCHEMA_VERSION,
            "path": self.path,
            "ok": self.ok,
            "checks": [asdict(check) for check in self.checks],
            "findings": [asdict(finding) for finding in self.findings],
        }


def error(check: str, what: str, *, where: str, why: str, hint: str) -> Finding:
    """Return a finding that fails the verification."""
    return Finding(check, "error", what, where, why, hint)
