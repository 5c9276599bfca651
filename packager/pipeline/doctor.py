"""``packager doctor``: what works on this machine, and what to install for the rest."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packager.codegen.cuda_toolkit import find_cuda_toolkit
from packager.codegen.toolchain import find_toolchain
from packager.errors import PackagerError, ToolchainError

if TYPE_CHECKING:
    from packager.backends.base import Unavailable

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
    findings.append(_cuda_toolkit())
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


def _cuda_toolkit() -> Examined:
    """Look at the toolkit that a build for GPUs uses unless its Target names another one."""
    what = "CUDA toolkit"
    try:
        toolkit = find_cuda_toolkit("")
    except ToolchainError as error:
        return Examined(what, False, error.message, f"for GPUs: {error.hint}", False)
    return Examined(what, True, f"{toolkit.version}, {toolkit.origin} of packager[cuda]", None, False)


def availability(kind: str) -> Unavailable | None:
    """Return why Target ``kind`` cannot be built for here, or None. May import TVM.

    It is asked for with its defaults, or where there are attributes without one, as the backend's ``example`` says.
    """
    from packager.backends.base import Unavailable
    from packager.backends.registry import find_backend
    from packager.targets.target_list import parse_targets, unavailable

    try:
        targets = parse_targets(getattr(find_backend(kind), "example", kind))
        require_build_packages()
        target = next(one for one in (*targets.bases, *targets.specialised) if one.kind == kind)
        return unavailable(target)
    except PackagerError as error:
        cause = f" ({error.detail.splitlines()[0]})" if error.detail else ""
        return Unavailable(error.message + cause, error.hint or "")


def _backends() -> list[Examined]:
    from packager.backends.registry import all_backends
    from packager.targets.target_list import parse_targets, unavailable

    findings = []
    for machine in MACHINES:
        target = parse_targets({"kind": "llvm", "mtriple": f"{machine}-linux-gnu"}).host
        what, good = f"backend llvm for {machine}", f"default -mcpu={','.join(target.cpus)}"
        findings.append(_backend(what, unavailable(target), good, required=machine == platform.machine()))
    for found in all_backends():
        if found.kind != "llvm":
            reason = availability(found.kind)
            findings.append(_backend(f"backend {found.kind}", reason, f"from {found.origin}", required=False))
    return findings


def _backend(what: str, reason: Unavailable | None, good: str, *, required: bool) -> Examined:
    if reason is None:
        return Examined(what, True, good, None, required)
    return Examined(what, False, reason.reason, reason.hint or None, required)
