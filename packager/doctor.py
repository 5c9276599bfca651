"""``packager doctor``: what works on this machine, and what to install for the rest."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass

from packager.errors import ToolchainError
from packager.toolchain import find_toolchain

MACHINES = ("x86_64", "aarch64")
BUILD_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "onnx", "jinja2", "capstone")


@dataclass(frozen=True)
class Examined:
    """One thing that was looked at; ``required`` things are needed to build for this machine."""

    what: str
    ok: bool
    detail: str
    hint: str | None
    required: bool


def require_build_packages() -> None:
    """Raise ToolchainError if a package that every build needs is not installed: the deploy side comes without."""
    missing = [name for name in BUILD_PACKAGES if not _package(name, "", required=True).ok]
    if missing:
        raise ToolchainError(f"building needs {', '.join(missing)}", hint="pip install 'packager[build]'")


def examine() -> list[Examined]:
    """Look at Python, the build packages, torch, the C toolchains and the code generators."""
    findings = [Examined("python", True, platform.python_version(), None, True)]
    findings += [_package(name, "pip install 'packager[build]'", required=True) for name in BUILD_PACKAGES]
    findings.append(_package("torch", "for .pt2 models: pip install 'packager[torch]'", required=False))
    findings += [_compiler(machine) for machine in MACHINES]
    if all(finding.ok for finding in findings if finding.required):
        findings += _backends()
    return findings


def _package(name: str, hint: str, *, required: bool) -> Examined:
    try:
        return Examined(name, True, importlib.metadata.version(name), None, required)
    except importlib.metadata.PackageNotFoundError:
        return Examined(name, False, "not installed", hint, required)


def _compiler(machine: str) -> Examined:
    what, required = f"C compiler for {machine}", machine == platform.machine()
    try:
        toolchain = find_toolchain(machine)
    except ToolchainError as error:
        return Examined(what, False, error.message, error.hint, required)
    return Examined(what, True, toolchain.versions["cc"], None, required)


def _backends() -> list[Examined]:
    from packager.backends import BACKENDS
    from packager.targets import parse_targets

    findings = []
    for machine in MACHINES:
        target = parse_targets([{"kind": "llvm", "mtriple": f"{machine}-linux-gnu"}]).host
        unavailable = BACKENDS["llvm"].probe(target)
        what = f"backend llvm for {machine}"
        if unavailable:
            findings.append(Examined(what, False, unavailable.reason, unavailable.hint, machine == platform.machine()))
        else:
            findings.append(Examined(what, True, f"default -mcpu={target.options.mcpu}", None, True))
    return findings
