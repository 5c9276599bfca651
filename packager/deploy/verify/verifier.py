"""Verifies a bundle: integrity, structure, policy, machine, and optionally its golden pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from packager.bundle.isa.features import can_read_code
from packager.bundle.manifest import Manifest
from packager.bundle.reader import BundleFile, inspect
from packager.deploy.load.folders import library_folders
from packager.deploy.trust.check import refusal
from packager.deploy.trust.trust import Trust, read_trust
from packager.deploy.verify.archive import archive_findings
from packager.deploy.verify.code import code_findings
from packager.deploy.verify.engines import engine_findings
from packager.deploy.verify.findings import Check, Finding, VerifyResult, error
from packager.deploy.verify.gpus import describe_cuda
from packager.deploy.verify.integrity import integrity_findings
from packager.deploy.verify.loading import loading_findings
from packager.deploy.verify.machine import Machine, machine_findings, read_machine, this_machine
from packager.deploy.verify.policy import Policy, policy_findings, read_policy
from packager.deploy.verify.structure import elf_findings, manifest_findings
from packager.progress import report

DEFAULT_TIMEOUT = 300.0
"""Timeout of the golden pairs, in seconds."""


def verify(
    path: str | Path,
    *,
    policy: Policy | str = "default",
    machine: Machine | str | Path | None = None,
    run: bool = False,
    timeout: float = DEFAULT_TIMEOUT,
    trust: Trust | str | Path | None = None,
    signature: str | Path | None = None,
    libraries: Sequence[str | Path] | None = None,
) -> VerifyResult:
    """Verify a bundle; unless ``run``, none of it is executed.

    ``policy`` is a Policy, the name of a built-in one, or the path of a TOML file. ``machine`` is a description, or the
    path of one; None means this machine. ``run`` runs the golden pairs in a subprocess; ``timeout`` is in seconds.
    ``trust`` says whose signature the bundle must have, in the file ``signature``, by default beside it with ``.sig``
    appended; without a trusted one nothing of the bundle is interpreted. ``libraries`` are folders as for
    ``packager.load``: of this machine, not of a described one.

    Problems are reported as findings. Raises BundleError if the file is not a bundle or is damaged, because its
    manifest cannot be trusted then; UsageError for a policy or machine that cannot be read.
    """
    accepted = policy if isinstance(policy, Policy) else read_policy(policy)
    described = read_machine(Path(machine)) if isinstance(machine, (str, Path)) else machine
    signed = [] if trust is None else [_signature(Path(path), trust, signature)]
    if any(findings for _, findings in signed):
        return _result(path, signed)
    bundle = inspect(path)
    manifest = bundle.manifest
    requirements = manifest.requirements
    folders = library_folders(libraries)
    target = described or _machine_for(bundle, folders)
    outcomes = [
        *signed,
        _outcome("integrity", integrity_findings(bundle), f"SHA-256 {manifest.content_sha256[:16]}, constants, golden"),
        _outcome("elf", _elf(bundle), f"exports {', '.join(requirements.exports)}; hardening; dependencies"),
        _outcome("manifest", [*manifest_findings(bundle), *engine_findings(bundle, target)], _compared(manifest)),
        _code(bundle),
        _outcome("policy", policy_findings(manifest, accepted, signed=bool(signed)), accepted.name),
        _outcome(
            "machine",
            machine_findings(manifest, target, searched=described is None),
            _runs(manifest, target, described is not None),
        ),
    ]
    outcomes.append(_run(bundle, [found for _, group in outcomes for found in group], run, timeout, libraries))
    return _result(path, outcomes)


def _machine_for(bundle: BundleFile, folders: Sequence[Path]) -> Machine:
    """Describe this machine as far as a bundle depends on it. Libraries beside the bundle are not asked for their
    version: that would run them."""
    requirements = bundle.manifest.requirements
    sonames = [soname for library in requirements.libraries for soname in library.sonames]
    machine = this_machine(gpus=requirements.cuda is not None, sonames=sonames, folders=folders)
    beside: dict[str, str | None] = {
        soname: None for soname in sonames if (bundle.path.absolute().parent / soname).is_file()
    }
    return replace(machine, libraries=beside | (machine.libraries or {})) if sonames else machine


def _result(path: str | Path, outcomes: list[tuple[Check, list[Finding]]]) -> VerifyResult:
    return VerifyResult(
        str(path), tuple(check for check, _ in outcomes), tuple(finding for _, group in outcomes for finding in group)
    )


def _signature(path: Path, trust: Trust | str | Path, signature: str | Path | None) -> tuple[Check, list[Finding]]:
    trusted = trust if isinstance(trust, Trust) else read_trust(Path(trust))
    refused = refusal(path, trusted, None if signature is None else Path(signature))
    if refused is None:
        return Check("signature", "passed", trusted.name), []
    found = error(
        f"signature.{refused.aspect}",
        refused.what,
        where=refused.where,
        why="who made these bytes is unknown: nothing else of the file was looked at",
        hint=refused.hint,
    )
    return Check("signature", "failed", trusted.name), [found]


def _elf(bundle: BundleFile) -> list[Finding]:
    """Check the image by its section headers, and if nothing is wrong, as the linker sees it that gets the bundle."""
    linker = archive_findings if bundle.manifest.form == "static" else loading_findings
    return list(elf_findings(bundle)) or list(linker(bundle))


def _compared(manifest: Manifest) -> str:
    cuda = manifest.requirements.cuda
    code = f", GPU code for {cuda.describe()}" if cuda else ""
    opened = ", ".join(library.sonames[0] for library in manifest.requirements.libraries)
    return f"{sum(1 for _ in manifest.primitives())} primitives, sizes{code}{f', opens {opened}' if opened else ''}"


def _code(bundle: BundleFile) -> tuple[Check, list[Finding]]:
    report("reading the code")
    if not can_read_code():
        return Check("code", "skipped", "requires disassemblers: pip install iced-x86 capstone"), []
    return _outcome("code", code_findings(bundle), "CPU features of all instructions")


def _runs(manifest: Manifest, machine: Machine, described: bool) -> str:
    """Describe the machine, and the bundle's level that its CPU supports."""
    requirements = manifest.requirements
    text = f"{machine.machine}, glibc {machine.glibc or 'none'}"
    text = f"{text}, {describe_cuda(machine.cuda)}" if requirements.cuda else text
    level = requirements.best_level(machine.cpu_features) if machine.machine == requirements.machine else None
    text = f"{text}, code for {level.name}" if level else text
    return text if described else f"this one: {text}"


def _outcome(name: str, findings: Iterable[Finding], note: str) -> tuple[Check, list[Finding]]:
    found = list(findings)
    failed = any(finding.severity == "error" for finding in found)
    return Check(name, "failed" if failed else "passed", note), found


def _run(
    bundle: BundleFile, earlier: list[Finding], run: bool, timeout: float, folders: Sequence[str | Path] | None
) -> tuple[Check, list[Finding]]:
    golden = bundle.manifest.golden
    if not run:
        return Check("run", "skipped", "not asked for: --run"), []
    if bundle.manifest.form == "static":
        return Check("run", "skipped", "a static archive must be linked first"), []
    if golden is None:
        return Check("run", "skipped", "the bundle has no golden pairs: rebuild with --golden"), []
    if any(found.severity == "error" and not found.check.startswith("policy.") for found in earlier):
        return Check("run", "skipped", "not run because of the findings above"), []
    from packager.deploy.verify.golden import golden_findings  # needs numpy

    report(f"running {golden.cases} golden pairs")
    return _outcome("run", golden_findings(bundle, timeout, folders), f"{golden.cases} golden pairs")
